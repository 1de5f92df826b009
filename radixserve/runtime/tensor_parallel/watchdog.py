"""Rank 0's eye on the others: notices a rank that hangs, which neither a pipe nor a socket would tell."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from radixserve.errors import RankFailed
from radixserve.runtime.tensor_parallel.pulse import Pulses, beat_interval

DEFAULT_TIMEOUT_S = 300.0
# What is done when an engine starts may take that long at least: a process imports torch before its first beat, perhaps from a cold disk,
# and the largest weight is packed in one move.
STARTING_S = 120.0


class Watchdog:
    """Looks at the ranks' ``pulses`` from time to time, on a thread of its own from `start` to `close`.

    A rank is given up whose process has not beaten for ``timeout_s``, at any time; and while something is expected of all ranks, the one
    that the others wait for if for ``timeout_s`` not one of them made a move. A slow machine alarms nobody: it beats and moves late, not
    never; and of time in which this process was stopped or did not get its turn itself, hardly any counts. ``give_up`` is told, at most
    once, on the watchdog's thread.
    """

    def __init__(self, pulses: Pulses, timeout_s: float, give_up: Callable[[RankFailed], None]) -> None:
        # Which rank this one waits for at the moment, where that is known.
        self.awaited: int | None = None
        self._pulses = pulses
        self._own = pulses.of(0)
        self._timeout_s = timeout_s
        self._interval = beat_interval(timeout_s)
        self._give_up = give_up
        self._expecting = 0
        self._starting = 0
        self._beats = [0] * pulses.ranks
        self._moves = 0
        # Seconds since the last beat of each rank that was seen, and since the last move.
        self._silent = [0.0] * pulses.ranks
        self._still = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="radixserve-watchdog", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def close(self) -> None:
        """Look no more. ``give_up`` may still be running."""
        self._ended.set()

    @contextlib.contextmanager
    def expecting(self, *, starting: bool = False) -> Iterator[None]:
        """Within, ranks are expected to move; the ends are moves. ``starting``: one move may take `STARTING_S` at least."""
        self._own.move()
        self._expecting += 1
        self._starting += starting
        try:
            yield
        finally:
            self._expecting -= 1
            self._starting -= starting
            self._own.move()

    @contextlib.contextmanager
    def awaiting(self, rank: int) -> Iterator[None]:
        """Within, this rank waits for ``rank``."""
        self.awaited = rank
        try:
            yield
        finally:
            self.awaited = None

    def look(self, elapsed: float) -> RankFailed | None:
        """What is wrong, ``elapsed`` seconds after the last look."""
        for rank in range(1, self._pulses.ranks):
            beats = self._pulses.beats(rank)
            self._silent[rank] = 0.0 if beats != self._beats[rank] else self._silent[rank] + elapsed
            self._beats[rank] = beats
            limit = self._limit(starting=not beats)
            if self._silent[rank] >= limit:
                return RankFailed(rank, f"has given no sign of life for {limit:g} s (watchdog_timeout_s)")
        moves = self._pulses.moves()
        self._still = 0.0 if moves != self._moves or not self._expecting else self._still + elapsed
        self._moves = moves
        limit = self._limit(starting=bool(self._starting))
        return self._stuck(limit) if self._still >= limit else None

    def _limit(self, *, starting: bool) -> float:
        return max(self._timeout_s, STARTING_S) if starting else self._timeout_s

    def _stuck(self, limit: float) -> RankFailed:
        sums = self._pulses.sums()
        behind = [rank for rank, count in enumerate(sums) if count == min(sums)]
        rank = behind[0] if len(behind) < len(sums) else self.awaited
        who = "no rank has" if rank is None else "has not"
        return RankFailed(rank, f"{who} gone on for {limit:g} s (watchdog_timeout_s)")

    def _run(self) -> None:
        before = time.monotonic()
        while not self._ended.wait(self._interval):
            now = time.monotonic()
            # Had this process not been stopped meanwhile, it would have looked earlier.
            failure = self.look(min(now - before, 2 * self._interval))
            before = now
            if failure is not None:
                self._give_up(failure)
                return
