"""What rank 0 can see of every rank without asking it: a few counters in memory that all ranks share."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterator

# Seconds between two beats, and their largest share of the time after which a rank without one is given up.
LONGEST_BEAT_S = 1.0
_BEAT_SHARE = 0.1
_BEATS, _MOVES, _SUMS = range(3)
_COUNTERS = 3
_COUNTER_BYTES = 8


class Pulses:
    """The counters of ``ranks`` ranks, in the memory behind ``descriptor`` (of `pulse_memory`), which every rank maps. A rank writes
    its own only.

    *Beats* are counted by a thread and say that a process is not stopped. *Moves* are counted by what computes, for each weight in
    loading, before and after every sum in a step: they say that it goes on, however slowly. *Sums* are those that were begun; since all
    ranks go through the same ones, the rank with the fewest is the one that the others wait for.
    """

    def __init__(self, descriptor: int, ranks: int) -> None:
        self.ranks = ranks
        self._counters = memoryview(mmap.mmap(descriptor, _size(ranks))).cast("q")

    def of(self, rank: int) -> Pulse:
        """The counters that ``rank`` itself writes."""
        return Pulse(self._counters[rank * _COUNTERS : (rank + 1) * _COUNTERS])

    def beats(self, rank: int) -> int:
        """Beats of ``rank``."""
        return self._counters[rank * _COUNTERS + _BEATS]

    def moves(self) -> int:
        """Moves of all ranks together."""
        return sum(self._counters[_MOVES::_COUNTERS])

    def sums(self) -> list[int]:
        """Sums that were begun, by rank."""
        return list(self._counters[_SUMS::_COUNTERS])


class Pulse:
    """One rank's own counters. One thread beats, another moves."""

    __slots__ = ("_counters",)

    def __init__(self, counters: memoryview) -> None:
        self._counters = counters

    def beat(self) -> None:
        """The process runs."""
        self._counters[_BEATS] += 1

    def move(self) -> None:
        """What it computes goes on."""
        self._counters[_MOVES] += 1

    def begin_sum(self) -> None:
        """It is about to wait for the others in a sum; a move as well."""
        self._counters[_SUMS] += 1
        self._counters[_MOVES] += 1


@contextlib.contextmanager
def pulse_memory(ranks: int) -> Iterator[int]:
    """A descriptor of memory for so many ranks, all zeros. Who has mapped or inherited it by the end keeps it."""
    # No file: what writes a mapped file waits for its disk at times, or dies where that is full.
    descriptor = os.memfd_create("radixserve-pulses")
    try:
        os.ftruncate(descriptor, _size(ranks))
        yield descriptor
    finally:
        os.close(descriptor)


def beat_interval(timeout_s: float) -> float:
    """Seconds between two beats where a rank without one is given up after ``timeout_s``."""
    return min(LONGEST_BEAT_S, _BEAT_SHARE * timeout_s)


def _size(ranks: int) -> int:
    return ranks * _COUNTERS * _COUNTER_BYTES
