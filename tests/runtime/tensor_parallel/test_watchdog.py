"""When a rank is given up, and which one, by what the counters say. Time is told, not waited for."""

from __future__ import annotations

import itertools
import queue
from types import SimpleNamespace

import pytest

from radixserve.errors import RankFailed
from radixserve.runtime.tensor_parallel import watchdog as watchdog_module
from radixserve.runtime.tensor_parallel.pulse import Pulses, pulse_memory
from radixserve.runtime.tensor_parallel.watchdog import Watchdog

TIMEOUT_S = 200.0
RANKS = 3


class Watched:
    """A watchdog that is asked by hand, and the ranks' own counters."""

    def __init__(self) -> None:
        with pulse_memory(RANKS) as memory:
            pulses = Pulses(memory, RANKS)
        self.ranks = [pulses.of(rank) for rank in range(RANKS)]
        self.given_up: queue.SimpleQueue[RankFailed] = queue.SimpleQueue()
        self.dog = Watchdog(pulses, TIMEOUT_S, self.given_up.put)

    def beat(self, *silent: int) -> None:
        """All ranks beat but these."""
        for rank, pulse in enumerate(self.ranks):
            if rank not in silent:
                pulse.beat()

    def look(self, elapsed: float = 0.4 * TIMEOUT_S, times: int = 1, silent: tuple[int, ...] = ()) -> str | None:
        """All but ``silent`` beat and the watchdog looks, so many times; what it says at last."""
        for _ in range(times):
            self.beat(*silent)
            found = self.dog.look(elapsed)
            if found is not None:
                return str(found)
        return None


@pytest.fixture
def watched() -> Watched:
    watched = Watched()
    assert watched.look(0.1) is None
    return watched


def test_a_pause_is_no_alarm_as_long_as_ranks_beat(watched: Watched) -> None:
    assert watched.look(times=50) is None


def test_a_rank_without_a_beat_is_given_up_in_a_pause_too(watched: Watched) -> None:
    assert watched.look(times=2, silent=(2,)) is None
    assert watched.look(silent=(2,)) == "rank 2 has given no sign of life for 200 s (watchdog_timeout_s)"


def test_a_beat_in_time_starts_anew(watched: Watched) -> None:
    for _ in range(10):
        assert watched.look(times=2, silent=(1,)) is None
        assert watched.look() is None


def test_a_slow_step_is_no_alarm_as_long_as_any_rank_moves(watched: Watched) -> None:
    with watched.dog.expecting():
        for rank in (0, 1, 2, 1, 0):
            assert watched.look(times=2) is None
            watched.ranks[rank].move()
            assert watched.look() is None


@pytest.mark.parametrize("stuck", range(RANKS))
def test_the_rank_that_the_others_wait_for_is_named(watched: Watched, stuck: int) -> None:
    with watched.dog.expecting():
        for _ in range(4):
            for pulse in watched.ranks:
                pulse.begin_sum()
        for rank in set(range(RANKS)) - {stuck}:
            watched.ranks[rank].begin_sum()
        assert watched.look(times=3) is None
        assert watched.look() == f"rank {stuck} has not gone on for 200 s (watchdog_timeout_s)"


def test_outside_sums_it_is_the_one_that_is_waited_for(watched: Watched) -> None:
    with watched.dog.expecting(), watched.dog.awaiting(2):
        assert str(watched.look(times=4)).startswith("rank 2 has not gone on")


def test_where_nobody_is_known_to_be_behind_nobody_is_named(watched: Watched) -> None:
    with watched.dog.expecting():
        with watched.dog.awaiting(2):
            pass
        assert watched.look(times=4) == "tensor parallelism ended: no rank has gone on for 200 s (watchdog_timeout_s)"


def test_a_step_is_not_charged_for_the_pause_before_it(watched: Watched) -> None:
    assert watched.look(times=10) is None
    with watched.dog.expecting():
        assert watched.look(times=2) is None


def test_steps_without_sums_move(watched: Watched) -> None:
    for _ in range(10):
        with watched.dog.expecting():
            assert watched.look() is None


def test_a_start_may_take_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog_module, "STARTING_S", 10 * TIMEOUT_S)
    watched = Watched()
    assert watched.look(times=24, silent=(1,)) is None
    assert watched.look(silent=(1,)) == "rank 1 has given no sign of life for 2000 s (watchdog_timeout_s)"
    watched = Watched()
    assert watched.look() is None
    with watched.dog.expecting(starting=True), watched.dog.awaiting(1):
        assert watched.look(times=24) is None
        assert watched.look(times=3) == "rank 1 has not gone on for 2000 s (watchdog_timeout_s)"
    with watched.dog.expecting(), watched.dog.awaiting(2):
        assert watched.look(times=4) == "rank 2 has not gone on for 200 s (watchdog_timeout_s)"


def test_time_in_which_rank_0_itself_stood_still_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = itertools.count(step=1e6)
    monkeypatch.setattr(watchdog_module, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    watched = Watched()
    looks: list[float] = []

    def look(elapsed: float) -> RankFailed | None:
        looks.append(elapsed)
        return RankFailed(1, "is seen") if len(looks) == 3 else None

    watched.dog._interval = 0.001
    monkeypatch.setattr(watched.dog, "look", look)
    watched.dog.start()
    assert str(watched.given_up.get(timeout=60)) == "rank 1 is seen"
    assert looks == [0.002] * 3
    watched.dog._thread.join()
    assert watched.given_up.empty()


def test_it_ends_when_it_is_told(watched: Watched) -> None:
    watched.dog._interval = 0.001
    watched.dog.start()
    watched.dog.close()
    watched.dog._thread.join(60)
    assert not watched.dog._thread.is_alive()
