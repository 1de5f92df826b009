"""When the tree's nodes were last used, in seconds, from the tree's logical clock: one look at the wall clock a step."""

from __future__ import annotations

from bisect import bisect_left

_MOST_SAMPLES = 4096
_COARSENESS = 0.1


class AccessTimes:
    """Pairs of logical and real time, in a bounded number.

    When there are too many, those are forgotten without which ages are still right to a tenth: as resolution goes with age, a
    few hundred are enough for years.
    """

    def __init__(self) -> None:
        self._ticks: list[int] = []
        self._seconds: list[float] = []

    def sample(self, tick: int, now: float) -> None:
        """The logical clock stands at ``tick`` at ``now`` (seconds, never less than before)."""
        if self._ticks and self._ticks[-1] == tick:
            return
        self._ticks.append(tick)
        self._seconds.append(now)
        if len(self._ticks) > _MOST_SAMPLES:
            self._thin(now)

    def _thin(self, now: float) -> None:
        seconds = self._seconds
        kept = [0]
        for index in range(1, len(seconds) - 1):
            following = seconds[index + 1]
            if following - seconds[kept[-1]] > _COARSENESS * (now - following):
                kept.append(index)
        kept.append(len(seconds) - 1)
        self._ticks = [self._ticks[index] for index in kept]
        self._seconds = [seconds[index] for index in kept]

    def idle(self, tick: int, now: float) -> float:
        """Seconds from when ``tick`` passed until ``now``: at least so many, 0 if it passed after the last sample."""
        at = bisect_left(self._ticks, tick)
        return now - self._seconds[at] if at < len(self._ticks) else 0.0
