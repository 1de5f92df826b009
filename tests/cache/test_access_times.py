"""When the tree's nodes were last used, from one look at the clock a step."""

from __future__ import annotations

from itertools import pairwise

from radixserve.cache.access_times import AccessTimes


def test_a_tick_is_as_old_as_the_first_look_after_it() -> None:
    times = AccessTimes()
    times.sample(10, 100.0)
    times.sample(20, 101.0)
    times.sample(20, 105.0)  # nothing was used since
    assert [times.idle(tick, 110.0) for tick in (3, 10, 11, 20)] == [10.0, 10.0, 9.0, 9.0]
    assert times.idle(21, 110.0) == 0.0
    assert AccessTimes().idle(0, 5.0) == 0.0


def test_memory_is_bounded_and_old_times_stay_right_if_coarser() -> None:
    times = AccessTimes()
    steps = 100_000
    for step in range(steps):
        times.sample(10 * step, float(step))
    assert len(times._ticks) == len(times._seconds) <= 4096
    ages = [times.idle(10 * step, float(steps)) for step in range(steps)]
    assert all(later <= earlier for earlier, later in pairwise(ages))
    for step, age in enumerate(ages):
        true = steps - step
        assert true / 1.1 - 1 <= age <= true, f"step {step}: {age} of {true}"
    assert ages[-20:] == [float(steps - step) for step in range(steps - 20, steps)]
