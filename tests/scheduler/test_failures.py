"""Steps and rows that fail, and requests that are aborted at the wrong moment."""

from __future__ import annotations

from functools import partial

import pytest

from radixserve.messages import FinishReason
from radixserve.scheduler.plan import PlanRow, StepPlan
from tests.scheduler.fake_runner import StepFailed
from tests.scheduler.machine import Machine
from tests.scheduler.naive import Sample


def fail_with(machine: Machine, rid: str) -> None:
    """Every step with a row of ``rid`` raises."""

    def fault(plan: StepPlan) -> None:
        if any(row.rid == rid for row in plan.rows):
            raise StepFailed("boom")

    machine.runner.fault = fault


def whole(rid: str, prompt: list[int], max_tokens: int) -> Sample:
    """What ``prompt`` brings on a machine of its own."""
    machine = Machine()
    machine.add(rid, prompt, max_tokens)
    machine.run()
    return machine.samples[rid, 0]


def test_only_the_request_that_fails_alone_is_failed() -> None:
    """A step of five fails; each is run alone once, the culprit ends, and the four others go on as if nothing had been."""
    machine = Machine()
    prompts = {f"r{index}": [1, 2, 3] * 10 + [index] for index in range(5)}
    for rid, prompt in prompts.items():
        machine.add(rid, prompt, 6)
    fail_with(machine, "r2")
    plans = machine.run()
    assert [len(plan.rows) for plan in plans[:7]] == [5, 1, 1, 1, 1, 1, 4]
    for rid, prompt in prompts.items():
        sample = machine.samples[rid, 0]
        if rid == "r2":
            assert (sample.finish_reason, sample.error, sample.token_ids) == (FinishReason.ERROR, "boom", [])
        else:
            assert sample == whole(rid, prompt, 6)
    assert machine.scheduler.stats.failed_steps == 2
    machine.check_idle()


def test_a_failure_that_does_not_come_back_fails_nobody() -> None:
    machine = Machine()
    for index in range(4):
        machine.add(f"r{index}", [7] * 40 + [index], 5)
    machine.step()
    machine.runner.fault = lambda plan: fault(plan)

    def fault(plan: StepPlan) -> None:
        if plan.step == 3:
            raise StepFailed("once")

    machine.run()
    assert {sample.finish_reason for sample in machine.samples.values()} == {FinishReason.LENGTH}
    assert machine.samples["r1", 0] == whole("r1", [7] * 40 + [1], 5)
    machine.check_idle()


def test_a_failed_step_leaves_no_trace_in_counts_or_cache() -> None:
    machine = Machine()
    first = machine.add("a", list(range(50)), 4)
    second = machine.add("b", [*range(40), 99], 4)
    plan = machine.plan()
    assert plan is not None
    assert second.group.cached_tokens == 32
    machine.scheduler.fail(plan, StepFailed("x"))
    machine.check()
    assert (first.num_computed, second.num_computed) == (0, 0)
    assert second.group.cached_tokens == 0
    assert machine.cache.pool.num_free == machine.cache.pool.total
    machine.run()
    assert second.group.cached_tokens == 40
    machine.check_idle()


def test_new_requests_wait_until_it_is_clear_who_failed() -> None:
    machine = Machine()
    machine.add("a", [1] * 20, 3)
    machine.add("b", [2] * 20, 3)
    fail_with(machine, "b")
    machine.step()
    machine.add("late", [3] * 20, 3)
    rows = [[row.rid for row in plan.rows] for plan in machine.run()]
    assert rows[:2] == [["a"], ["b"]]
    assert rows[2] == ["a", "late"]
    machine.check_idle()


def test_a_suspect_can_be_aborted() -> None:
    machine = Machine()
    for rid in ("a", "b", "c"):
        machine.add(rid, [ord(rid)] * 20, 3)
    fail_with(machine, "b")
    machine.step()
    machine.scheduler.abort("b")
    machine.step(lambda: machine.scheduler.abort("a"))
    machine.run()
    reasons = {rid: machine.samples[rid, 0].finish_reason for rid in ("a", "b", "c")}
    assert reasons == {"a": FinishReason.ABORT, "b": FinishReason.ABORT, "c": FinishReason.LENGTH}
    machine.check_idle()


def test_a_request_without_a_row_holds_nothing_of_a_step_that_may_fail() -> None:
    """F follows L through a shared prompt; when 36 decodes leave less than two blocks, only L goes on, and the step fails."""
    machine = Machine(max_batch_tokens=64, max_running=64, policy="fcfs")
    for index in range(20):
        machine.add(f"d{index}", [1000 + index], 30)
    machine.step()
    shared = [index % 50 for index in range(200)]
    machine.add("L", [*shared, 60, 61], 4)
    machine.add("F", [*shared, *range(100, 200)], 4)
    machine.add("N", [77], 20, n=16)
    machine.step()
    plan = machine.plan()
    assert plan is not None
    assert {"L", "F"} & {row.rid for row in plan.rows} == {"L"}
    machine.scheduler.fail(plan, StepFailed("x"))
    machine.check()
    machine.run()
    assert machine.samples["F", 0] == whole("F", [*shared, *range(100, 200)], 4)
    machine.check_idle()


def test_a_row_that_fails_fails_alone_and_its_kv_is_not_kept() -> None:
    machine = Machine()
    bad, good = [1] * 20 + [2] * 20, [1] * 20 + [3] * 20

    def error(row: PlanRow) -> str | None:
        return "not finite" if row.rid == "bad" else None

    machine.runner.error = error
    machine.add("bad", bad, 4)
    machine.add("good", good, 4)
    machine.run()
    assert machine.samples["bad", 0] == Sample(finish_reason=FinishReason.ERROR, error="not finite")
    assert machine.samples["good", 0] == whole("good", good, 4)
    again = machine.add("again", bad, 4)
    machine.run()
    assert again.group.cached_tokens < 32, "the failed row's own blocks are gone"
    assert machine.samples["again", 0] == whole("again", bad, 4)
    machine.check_idle()


def test_kv_of_a_failed_row_is_not_kept_if_it_was_aborted_meanwhile() -> None:
    machine = Machine()
    machine.add("a", list(range(40)), 4)
    plan = machine.plan()
    machine.scheduler.abort("a")
    machine.runner.error = lambda row: "not finite"
    assert plan is not None
    machine.complete(plan)
    machine.runner.error = lambda row: None
    again = machine.add("b", list(range(50)), 4)
    machine.collect()
    machine.run()
    assert machine.samples["a", 0].finish_reason is FinishReason.ABORT
    assert again.group.cached_tokens == 0
    assert machine.samples["b", 0] == whole("b", list(range(50)), 4)
    machine.check_idle()


def test_an_abort_of_what_is_not_there_is_a_no_op() -> None:
    machine = Machine()
    machine.scheduler.abort("nobody")
    machine.add("a", [1, 2, 3], 2)
    machine.run()
    machine.scheduler.abort("a")
    machine.scheduler.abort("a")
    assert not machine.scheduler.has_updates
    assert machine.samples["a", 0].finish_reason is FinishReason.LENGTH
    machine.check_idle()


@pytest.mark.parametrize("chunk", [1, 5, 16, 33])
def test_an_abort_after_every_chunk_keeps_what_was_computed_and_nothing_else(chunk: int) -> None:
    """In every interleaving with a step in flight; a later request hits what was computed and gets the cold tokens."""
    prompt = list(range(50))
    for after in range(6):
        for in_flight in (False, True):
            machine = Machine(max_batch_tokens=max(chunk, 2), max_running=2)
            request = machine.add("a", prompt, 4)
            for _ in range(after):
                machine.step()
            if in_flight:
                machine.step(partial(machine.scheduler.abort, "a"))
            else:
                machine.scheduler.abort("a")
                machine.collect()
            computed = request.num_computed
            again = machine.add("b", prompt, 4)
            machine.run()
            assert again.group.cached_tokens == min(computed, len(prompt) - 1)
            assert machine.samples["b", 0] == whole("b", prompt, 4)
            machine.check_idle()


def test_a_waiting_request_that_is_aborted_leaves_the_queue() -> None:
    for policy in ("lpm", "fcfs", "dfs-weight", "priority"):
        machine = Machine(max_running=1, policy=policy)
        machine.add("a", [1], 5)
        machine.add("b", [2], 5)
        machine.step()
        machine.scheduler.abort("b")
        machine.run()
        assert machine.samples["b", 0] == Sample(finish_reason=FinishReason.ABORT)
        machine.check_idle()
