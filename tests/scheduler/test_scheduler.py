"""The scheduler as a whole, where the random workloads do not state exact numbers."""

from __future__ import annotations

import pytest

from radixserve.messages import FinishReason
from radixserve.scheduler.budget import step_work
from radixserve.scheduler.plan import StepPlan
from tests.scheduler.machine import Machine
from tests.scheduler.naive import Sample

FIXED, TOKEN, CONTEXT = 8e-3, 5.7e-4, 2e-7


def modelled(plan: StepPlan) -> float:
    """Seconds of a step, about as this project's development machine takes them."""
    tokens, work = step_work(plan)
    return FIXED + TOKEN * tokens + CONTEXT * work


def test_there_is_nothing_to_plan_when_nobody_waits() -> None:
    machine = Machine()
    assert machine.scheduler.schedule() is None
    assert machine.scheduler.step == 0
    machine.check_idle()


@pytest.mark.parametrize("target_ms", [40.0, 150.0, 500.0])
@pytest.mark.parametrize("warm", [False, True])
def test_steps_stay_under_the_target_and_prompts_go_on(target_ms: float, warm: bool) -> None:
    """Three prompts of 3,000 tokens beside four streams: no step passes the target, once a step of more than decodes was seen.

    ``warm``: half of one prompt is cached, so it is admitted with a long context, whose tokens cost more.
    """
    machine = Machine(
        max_batch_tokens=4096, itl_target_ms=target_ms, context_length=40_000, num_blocks=8000, check=False
    )
    machine.runner.seconds = modelled
    prompts = [[1000 + index] + [index * 7 + offset for offset in range(2999)] for index in range(3)]
    if warm:
        machine.add("before", prompts[2][:1500], 1)
        machine.run()
    for index in range(4):
        machine.add(f"d{index}", [index], 6000)
    for _ in range(4):
        machine.step()
    for index, prompt in enumerate(prompts):
        machine.add(f"l{index}", prompt, 1)
    plans = []
    while any(f"l{index}" in machine.scheduler.requests for index in range(3)):
        plan = machine.step()
        assert plan is not None
        assert plan.num_tokens > 4, "a prompt goes on in every step"
        plans.append(plan)
    seconds = [modelled(plan) for plan in plans]
    assert all(taken <= max(target_ms / 1000, FIXED + 64 * (TOKEN + 3000 * CONTEXT)) for taken in seconds[:3])
    assert max(seconds[3:]) <= target_ms / 1000 * 1.01
    # The target is used: on average more than two thirds of it.
    assert sum(seconds[5:-3]) / len(seconds[5:-3]) > target_ms / 1000 * 0.67


def test_one_with_a_long_context_is_admitted_only_beside_what_the_target_leaves_for_it() -> None:
    """Its tokens cost so much that the target leaves one block, not one for each of three; someone goes on all the same."""
    machine = Machine(itl_target_ms=40.0, max_batch_tokens=4096, context_length=40_000, num_blocks=3000, check=False)
    machine.runner.seconds = modelled
    prompts = [[1000 + index] + [index * 7 + offset for offset in range(5999)] for index in range(3)]
    machine.add("before", prompts[2][:3000], 1)
    machine.run()
    for index in range(4):
        machine.add(f"d{index}", [index], 100)
    for _ in range(4):
        machine.step()
    for index, prompt in enumerate(prompts):
        machine.add(f"l{index}", prompt, 1)
    for _ in range(5):
        plan = machine.step()
        assert plan is not None
        assert plan.num_tokens > 4


def test_a_target_that_cannot_be_met_starves_nobody() -> None:
    machine = Machine(itl_target_ms=1.0, check=False)
    machine.runner.seconds = modelled
    for index in range(4):
        machine.add(f"d{index}", [index], 200)
    for _ in range(10):
        machine.step()
    machine.add("a", list(range(160)), 1)
    steps = 0
    while not machine.tokens("a"):
        machine.step()
        steps += 1
    assert steps == 10, "one block a step"


def test_without_decodes_nobody_waits_and_the_target_does_not_bind() -> None:
    machine = Machine(itl_target_ms=1.0, max_batch_tokens=1000)
    machine.runner.seconds = modelled
    machine.add("a", list(range(1000)), 1)
    plan = machine.step()
    assert plan is not None and plan.num_tokens == 1000


def test_whole_prompts_are_never_cut() -> None:
    """``chunked_prefill=False``: each prompt is one row; the budget bounds how many start together, not the one."""
    machine = Machine(chunked_prefill=False, max_batch_tokens=100, max_running=8)
    for index, length in enumerate([90, 300, 20, 60, 30]):
        machine.add(f"r{index}", [index] * length, 3)
    firsts: list[list[str]] = []
    while machine.scheduler.has_work:
        plan = machine.step()
        assert plan is not None
        firsts.append([row.rid for row in plan.rows if row.start == 0])
        assert all(row.num_samples == 1 for row in plan.rows)
    assert firsts[:3] == [["r0"], ["r1"], ["r2", "r3"]]
    machine.check_idle()


def test_a_static_batch_admits_only_into_an_empty_one() -> None:
    machine = Machine(batching="static", max_running=3)
    for index in range(5):
        machine.add(f"r{index}", [index], 2 + index)
    assert [len(plan.rows) for plan in machine.run()] == [3, 3, 2, 1, 2, 2, 2, 2, 2, 1]
    machine.check_idle()


def test_stops_end_a_sample_and_name_their_reason() -> None:
    """An end token of the model has no name, a stop token asked for has; ``min_tokens`` is the sampler's to keep."""
    for eos, ignore, stop, reason, name in [
        ((), False, (), FinishReason.LENGTH, None),
        (range(50), False, (), FinishReason.STOP, None),
        (range(50), True, (), FinishReason.LENGTH, None),
        ((), False, tuple(range(50)), FinishReason.STOP, "token"),
        (range(50), True, tuple(range(50)), FinishReason.STOP, "token"),
    ]:
        machine = Machine(eos_ids=tuple(eos))
        machine.add("a", [1, 2], 5, ignore_eos=ignore, stop_token_ids=stop)
        machine.run()
        sample = machine.samples["a", 0]
        assert sample.finish_reason is reason
        assert len(sample.token_ids) == (1 if reason is FinishReason.STOP else 5)
        assert sample.stop_reason == (sample.token_ids[-1] if name else None)
        machine.check_idle()


def test_no_tokens_computes_the_prompt_and_draws_nothing() -> None:
    machine = Machine()
    machine.add("a", list(range(20)), 0)
    plan = machine.step()
    assert plan is not None and plan.rows[0].num_samples == 0
    assert machine.samples["a", 0] == Sample(finish_reason=FinishReason.LENGTH)
    again = machine.add("b", list(range(21)), 1)
    machine.run()
    assert again.group.cached_tokens == 20
    machine.check_idle()


def test_a_request_can_be_ended_from_outside_and_the_first_reason_stands() -> None:
    """As the engine does at a stop string."""
    machine = Machine()
    request = machine.add("a", [1, 2], 9)
    machine.step()
    machine.scheduler.finish(request, FinishReason.STOP, "###")
    machine.scheduler.finish(request, FinishReason.ABORT)
    machine.collect()
    sample = machine.samples["a", 0]
    assert (sample.finish_reason, sample.stop_reason, len(sample.token_ids)) == (FinishReason.STOP, "###", 1)
    machine.check_idle()


def test_two_equal_prompts_in_one_step_end_with_the_blocks_of_one() -> None:
    """Equal decodes in lock-step fill equal blocks: the tables are switched to the tree's and the duplicates freed."""
    machine = Machine(block_size=4)
    machine.add("a", list(range(9)), 20, temperature=0.0)
    machine.add("b", list(range(9)), 20, temperature=0.0)
    for _ in range(12):
        plan = machine.step()
        assert plan is not None
        tables = [row.table for row in plan.rows]
        settled = (plan.rows[0].start // 4) if plan.step > 1 else 2
        assert tables[0][:settled].tolist() == tables[1][:settled].tolist()
    machine.run()
    assert machine.tokens("a") == machine.tokens("b")
    assert machine.cache.pool.num_tree == 7
    machine.check_idle()


def test_salts_part_what_is_shared_and_public_prefixes_are_seen_by_all() -> None:
    machine = Machine()
    prompt = list(range(64))
    hits = {}
    for rid, salt in [("a", b"a"), ("b", b"b"), ("a2", b"a"), ("public", b""), ("c", b"c"), ("public2", b"")]:
        request = machine.add(rid, prompt, 1, salt=salt)
        machine.run()
        hits[rid] = request.group.cached_tokens
    assert hits == {"a": 0, "b": 0, "a2": 63, "public": 0, "c": 63, "public2": 63}
    machine.check_idle()


@pytest.mark.parametrize("mode", ["off", "force_miss"])
def test_the_baselines_share_nothing(mode: str) -> None:
    machine = Machine(prefix_cache=mode)  # type: ignore[arg-type]
    for index in range(3):
        machine.add(f"r{index}", list(range(40)), 2)
    plan = machine.step()
    assert plan is not None and plan.num_tokens == 120
    machine.run()
    again = machine.add("again", list(range(40)), 2)
    machine.run()
    assert again.group.cached_tokens == 0
    assert (machine.cache.pool.num_tree == 0) == (mode == "off")
    machine.check_idle()


def test_counters_count() -> None:
    machine = Machine()
    machine.add("a", list(range(20)), 3)
    machine.add("b", list(range(20)), 3)
    machine.run()
    stats = machine.scheduler.stats
    assert (stats.steps, stats.rows, stats.generated_tokens) == (3, 6, 6)
    assert stats.computed_tokens == 20 + 4 + 2 + 2
    assert stats.finished == {"length": 2}
    assert machine.requests["a"].timings().steps_waited == 1


def test_the_result_must_be_of_the_plan() -> None:
    machine = Machine()
    machine.add("a", [1], 2)
    first = machine.plan()
    assert first is not None
    result = machine.runner.execute(first)
    machine.scheduler.update(first, result)
    machine.collect()
    second = machine.plan()
    assert second is not None
    with pytest.raises(AssertionError, match="belongs"):
        machine.scheduler.update(second, result)
