"""What fits beside what runs, and what a step will find in place."""

from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixserve.scheduler.admission import StepForecast
from tests.scheduler.machine import Machine
from tests.scheduler.workloads import prompts


@settings(deadline=None, max_examples=150)
@given(
    st.lists(prompts(), max_size=4),
    st.lists(st.tuples(prompts(), st.sampled_from([b"", b"", b"a"])), min_size=1, max_size=8),
    st.sampled_from([1, 3, 4, 16]),
    st.sampled_from(["on", "on", "force_miss", "off"]),
)
def test_the_forecast_of_a_step_is_what_the_step_finds(
    before: list[tuple[int, ...]],
    together: list[tuple[tuple[int, ...], bytes]],
    size: int,
    mode: Literal["on", "off", "force_miss"],
) -> None:
    """Requests that are planned whole in one step start where the forecast said, on a warm cache and a cold one.

    A part-filled block may be gone: one that was planned before continued it, and what it writes is no source of copies.
    """
    machine = Machine(block_size=size, policy="fcfs", prefix_cache=mode, num_blocks=400, chunked_prefill=False)
    for index, prompt in enumerate(before):
        machine.add(f"b{index}", prompt, 1)
        machine.run()
    forecast = StepForecast(machine.cache)
    starts = []
    for index, (prompt, salt) in enumerate(together):
        request = machine.add(f"r{index}", prompt, 1, salt=salt)
        outlook = forecast.look(request)
        forecast.accept(request, outlook)
        starts.append(outlook.start)
    plan = machine.step()
    assert plan is not None
    assert all(start // size * size <= row.start <= start for row, start in zip(plan.rows, starts, strict=True))
    assert forecast.spans == [(start, row.end) for row, start in zip(plan.rows, starts, strict=True)]


def admitted(machine: Machine) -> int:
    plan = machine.plan()
    return 0 if plan is None else len(plan.rows)


def test_what_is_shared_takes_blocks_once() -> None:
    """A prefix of 10 blocks and one block each: eleven of twenty blocks hold one request or ten."""
    together, apart = (Machine(num_blocks=20, watermark=0.0) for _ in range(2))
    for index in range(12):
        together.add(f"r{index}", [1] * 160 + [index], 1)
        apart.add(f"r{index}", [index] * 160 + [1], 1)
    assert admitted(together) == 10
    assert admitted(apart) == 1


def test_what_is_cached_but_unlocked_counts_as_taken() -> None:
    """Ten blocks are cached; to lease them takes them away from what could be evicted."""
    machine = Machine(num_blocks=20, watermark=0.0)
    machine.add("before", [1] * 160, 1)
    machine.run()
    machine.add("other", [2] * 140, 1)
    machine.add("again", [1] * 160 + [3], 1)
    assert admitted(machine) == 2
    machine = Machine(num_blocks=19, watermark=0.0)
    machine.add("before", [1] * 160, 1)
    machine.run()
    machine.add("other", [2] * 140, 1)
    machine.add("again", [1] * 160 + [3], 1)
    assert admitted(machine) == 1


@pytest.mark.parametrize(("watermark", "count"), [(0.0, 10), (0.1, 9), (0.5, 5), (0.95, 1)])
def test_the_watermark_stays_free(watermark: float, count: int) -> None:
    """Ten requests of ten blocks in a hundred; the first is admitted whatever the watermark says."""
    machine = Machine(num_blocks=100, watermark=watermark)
    for index in range(12):
        machine.add(f"r{index}", [index] * 159, 1)
    assert admitted(machine) == count


@pytest.mark.parametrize(("admission", "count"), [("adaptive", 6), ("reserve_max", 3)])
def test_the_output_is_reserved_as_expected_or_whole(admission: str, count: int) -> None:
    """16 prompt tokens and 464 of output: 30 blocks each when reserved whole; half of them are expected at first."""
    machine = Machine(num_blocks=100, watermark=0.0, admission=admission)
    for index in range(12):
        machine.add(f"r{index}", [index] * 16, 464)
    assert admitted(machine) == count


def test_what_running_requests_are_expected_to_need_is_not_given_away() -> None:
    machine = Machine(num_blocks=60, watermark=0.0, admission="reserve_max")
    machine.add("a", [1] * 16, 464)
    assert admitted(machine) == 1
    machine = Machine(num_blocks=60, watermark=0.0, admission="reserve_max")
    machine.add("a", [1] * 16, 464)
    machine.step()
    machine.add("b", [2] * 16, 464)
    machine.add("c", [3] * 16, 1)
    plan = machine.step()
    assert plan is not None
    assert [row.rid for row in plan.rows] == ["a", "b"]


def test_parallel_samples_need_blocks_for_each() -> None:
    """A prompt of 4 full blocks is shared; each of 8 samples adds two blocks."""
    machine = Machine(num_blocks=39, watermark=0.0, admission="reserve_max")
    machine.add("a", [1] * 64, 32, n=8)
    machine.add("b", [2] * 64, 32, n=8)
    assert admitted(machine) == 1
    machine = Machine(num_blocks=40, watermark=0.0, admission="reserve_max")
    machine.add("a", [1] * 64, 32, n=8)
    machine.add("b", [2] * 64, 32, n=8)
    assert admitted(machine) == 2
