"""Blocks run out: who gives way, and what it keeps."""

from __future__ import annotations

from typing import Any

import pytest

from tests.scheduler.machine import Machine
from tests.scheduler.test_failures import whole


def crowded(**options: Any) -> Machine:
    """Twelve blocks of four tokens; requests that are admitted on a low estimate and then grow."""
    machine = Machine(num_blocks=12, block_size=4, watermark=0.0, max_running=4, **options)
    machine.scheduler._planner.admission.estimate.share = 0.05
    return machine


def test_a_preempted_request_keeps_its_tokens_and_repeats_none() -> None:
    machine = crowded()
    for index in range(3):
        machine.add(f"r{index}", [10 * index + offset for offset in range(5)], 20)
    machine.run()
    assert machine.scheduler.stats.preemptions > 0
    for index in range(3):
        assert machine.samples[f"r{index}", 0] == whole(f"r{index}", [10 * index + offset for offset in range(5)], 20)
    preempted = [request for request in machine.requests.values() if request.num_preemptions]
    assert preempted
    assert all(request.timings().preemptions == request.num_preemptions for request in preempted)
    assert machine.requests["r0"].num_preemptions == 0, "the first to come never gives way to later ones"
    machine.check_idle()


@pytest.mark.parametrize(
    ("priorities", "victim"),
    [([0, 0, 0], "r2"), ([0, 0, 1], "r1"), ([0, 5, 1], "r0"), ([2, 1, 1], "r2"), ([1, 1, 2], "r1")],
)
def test_the_lowest_priority_gives_way_and_of_equals_the_latest(priorities: list[int], victim: str) -> None:
    machine = crowded()
    for index, priority in enumerate(priorities):
        machine.add(f"r{index}", [10 * index + offset for offset in range(5)], 20, priority=priority)
    while not machine.scheduler.stats.preemptions:
        machine.step()
    assert [rid for rid, request in machine.requests.items() if request.num_preemptions] == [victim]
    machine.run()
    machine.check_idle()


def test_a_preemption_withdraws_no_planned_row_and_admits_nobody_in_its_place() -> None:
    machine = crowded()
    for index in range(4):
        machine.add(f"r{index}", [10 * index + offset for offset in range(5)], 20)
    while machine.scheduler.has_work:
        before, waiting = machine.scheduler.stats.preemptions, len(machine.scheduler.waiting)
        plan = machine.plan()
        assert plan is not None
        if (count := machine.scheduler.stats.preemptions - before) > 0:
            assert len(machine.scheduler.waiting) == waiting + count
            assert {row.rid for row in plan.rows} == {request.rid for request in machine.scheduler.running}
        machine.complete(plan)
        machine.collect()
    assert machine.scheduler.stats.preemptions > 0
    machine.check_idle()


def test_a_preempted_request_comes_back_by_a_prefix_hit_and_does_not_count_it_as_cached() -> None:
    machine = crowded()
    for index in range(3):
        machine.add(f"r{index}", [10 * index + offset for offset in range(5)], 13)
    resumed = []
    while machine.scheduler.has_work:
        held = {
            request.rid: machine.cache.match(request.namespace, request.key, request.match_limit).total
            for request in machine.scheduler.waiting
            if request.num_preemptions
        }
        plan = machine.step()
        assert plan is not None
        resumed += [(row.start, held[row.rid]) for row in plan.rows if row.rid in held]
    assert resumed == [(8, 8)], "of its four blocks the two others took the last two; the rest is not computed again"
    assert all(request.group.cached_tokens == 0 for request in machine.requests.values())
    machine.check_idle()


def test_a_preemption_raises_the_estimate_of_outputs() -> None:
    machine = crowded()
    for index in range(3):
        machine.add(f"r{index}", [10 * index + offset for offset in range(5)], 20)
    before = machine.scheduler.estimate
    while not machine.scheduler.stats.preemptions:
        machine.step()
    assert machine.scheduler.estimate > before


def test_reserving_the_maximum_never_preempts() -> None:
    machine = crowded(admission="reserve_max")
    for index in range(6):
        machine.add(f"r{index}", [10 * index + offset for offset in range(5)], 20)
    machine.run()
    assert machine.scheduler.stats.preemptions == 0
    machine.check_idle()


@pytest.mark.parametrize("prompt", range(1, 17))
@pytest.mark.parametrize("warm", [False, True])
def test_a_request_that_fills_the_whole_pool_ends(prompt: int, warm: bool) -> None:
    """Even where the cache holds a part-filled block of it, whose copy would take one block more than there are."""
    machine = Machine(num_blocks=4, block_size=4, max_running=2)
    if warm:
        machine.add("before", list(range(prompt)), 1)
        machine.run()
    machine.add("a", list(range(prompt)), 16 - prompt)
    machine.run(max_steps=40)
    assert machine.samples["a", 0] == whole("a", list(range(prompt)), 16 - prompt)
    machine.check_idle()
