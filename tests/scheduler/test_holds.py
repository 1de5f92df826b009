"""Holds under pressure: they give way before anybody is preempted or refused, and change no output."""

from __future__ import annotations

from typing import Any

import pytest

from radixserve.messages import FinishReason
from radixserve.scheduler.plan import RowResult, StepPlan, StepResult
from tests.scheduler.machine import Machine

SIZE = 4


def crowded(*, share: float = 1.0, blocks: int = 20, **options: Any) -> Machine:
    """A pool that is full of holds: five prompts of sixteen tokens."""
    machine = Machine(num_blocks=blocks, block_size=SIZE, hold_share=share, watermark=0.0, **options)
    for index in range(blocks // 4):
        prompt = [100 * (index + 1) + at for at in range(16)]
        machine.add(f"p{index}", prompt, 0)
        machine.run()
        machine.hold(f"h{index}", prompt)
    return machine


def held(machine: Machine) -> list[str]:
    return [f"h{index}" for index in range(10) if f"h{index}" in machine.cache.holds]


def test_holds_fill_the_pool() -> None:
    machine = crowded()
    assert machine.cache.available_blocks == 0 and machine.cache.yieldable_blocks == 20
    assert held(machine) == ["h0", "h1", "h2", "h3", "h4"]


def test_a_request_that_would_not_fit_is_admitted_beside_others() -> None:
    machine = crowded(admission="reserve_max")
    machine.add("a", list(range(6)), 6)
    machine.step()
    # Alone it is admitted in any case; for three blocks one hold went.
    assert held(machine) == ["h1", "h2", "h3", "h4"]
    machine.add("b", list(range(50, 58)), 4)
    machine.step()
    assert machine.requests["b"].started_step is not None
    assert held(machine) == ["h2", "h3", "h4"]
    machine.run()
    assert machine.scheduler.stats.preemptions == 0


def test_a_request_that_would_not_fit_without_them_either_ends_none() -> None:
    machine = crowded(admission="reserve_max")
    machine.add("a", list(range(6)), 30)
    machine.step()
    before = held(machine)
    machine.add("b", list(range(50, 98)), 10)
    machine.step()
    assert machine.requests["b"].started_step is None and held(machine) == before


def test_decodes_take_from_holds_before_they_preempt() -> None:
    machine = crowded()
    for index in range(3):
        machine.add(f"d{index}", [index], 20, ignore_eos=True)
    machine.run()
    assert machine.scheduler.stats.preemptions == 0
    assert machine.cache.holds.stats.gave_way > 0
    assert all(machine.samples[f"d{index}", 0].finish_reason is FinishReason.LENGTH for index in range(3))


def test_a_prompt_that_runs_alone_takes_what_it_needs_and_no_more() -> None:
    machine = crowded()
    machine.add("long", list(range(40)), 1)
    machine.run()
    # Eleven blocks: three holds of four.
    assert held(machine) == ["h3", "h4"]


def test_a_request_uses_the_prefix_that_is_held_for_it() -> None:
    machine = crowded(share=0.9, blocks=24)
    prompt = [600 + at for at in range(16)]
    machine.add("next", [*prompt, 1, 2], 1)
    machine.run()
    assert machine.requests["next"].group.cached_tokens == 16


@pytest.mark.parametrize("policy", ["lpm", "fcfs", "dfs-weight", "priority"])
def test_what_is_held_outlives_a_flood(policy: str) -> None:
    """A prefix is still there when its time comes, whatever passed through the rest of the pool one after the other."""
    machine = Machine(num_blocks=24, block_size=SIZE, hold_share=0.25, policy=policy)
    prefix = list(range(1000, 1022))
    machine.add("first", prefix, 0)
    machine.run()
    assert machine.hold("h", prefix) == 22
    for index in range(20):
        machine.add(f"f{index}", [40 * index + at for at in range(30)], 3)
        machine.run()
    assert machine.cache.stats.evicted_blocks > 100
    machine.add("last", [*prefix, 5], 1)
    machine.run()
    assert machine.requests["last"].group.cached_tokens == 22
    machine.check_idle()


def test_a_request_does_not_end_the_hold_that_it_needs() -> None:
    machine = crowded(admission="reserve_max")
    machine.add("a", list(range(6)), 6, ignore_eos=True)
    machine.step()
    assert held(machine) == ["h1", "h2", "h3", "h4"]
    machine.add("next", [200 + at for at in range(16)] + [1, 2], 6)
    machine.step()
    assert machine.requests["next"].group.cached_tokens == 16
    assert held(machine) == ["h1", "h3", "h4"]


def test_none_ends_for_a_request_that_has_to_wait_all_the_same() -> None:
    machine = crowded(admission="reserve_max", max_batch_tokens=8, max_running=8, chunked_prefill=False)
    machine.add("a", list(range(6)), 6, ignore_eos=True)
    machine.step()
    machine.add("b", list(range(50, 54)), 4)
    machine.add("too wide", list(range(60, 68)), 4)
    machine.step()
    assert machine.requests["b"].started_step is not None and machine.requests["too wide"].started_step is None
    assert held(machine) == ["h2", "h3", "h4"]


@pytest.mark.parametrize("length", [12, 13, 14])
def test_a_hold_keeps_nothing_of_a_row_without_finite_logits(length: int) -> None:
    machine = Machine(num_blocks=40, block_size=SIZE)
    prefix = list(range(14))
    machine.add("first", prefix, 0)
    machine.run()
    assert machine.hold("h", prefix[:length]) == length
    machine.runner.error = lambda row: "not finite" if row.rid == "bad" else None
    for rid, reason in (("bad", FinishReason.ERROR), ("good", FinishReason.LENGTH)):
        machine.add(rid, [*prefix, 14, 15], 3)
        machine.run()
        assert machine.samples[rid, 0].finish_reason is reason
    machine.check_idle()


def test_a_request_that_is_to_blame_itself_leaves_its_prefix_held() -> None:
    machine = Machine(num_blocks=40, block_size=SIZE)
    prefix = list(range(14))
    machine.add("first", prefix, 0)
    machine.run()
    machine.hold("h", prefix)
    execute = machine.runner.execute

    def too_complex(plan: StepPlan) -> StepResult:
        result = execute(plan)
        return StepResult(plan.step, (RowResult(error="too complex", error_param="constraint"),) * len(result.rows))

    machine.runner.execute = too_complex  # type: ignore[method-assign]
    machine.add("bad", [*prefix, 14, 15, 16], 3)
    machine.run()
    machine.runner.execute = execute  # type: ignore[method-assign]
    assert machine.samples["bad", 0].finish_reason is FinishReason.ERROR
    assert "h" in machine.cache.holds
    machine.add("good", [*prefix, 14, 15, 16, 17], 3)
    machine.run()
    # Its KV is as good as anybody's.
    assert machine.requests["good"].group.cached_tokens == 17
    machine.check_idle()
