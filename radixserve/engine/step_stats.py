"""What is counted of the steps: totals, the last one, and histograms with fixed edges."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import Any

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_TOKENS = (1, 4, 16, 64, 256, 512, 1024, 2048, 4096, 8192, 16384)


class Histogram:
    """Counts of values up to each of ``edges``, and of all; ``total`` is their sum."""

    def __init__(self, edges: tuple[float, ...]) -> None:
        self.edges = edges
        self.total = 0.0
        self._counts = [0] * (len(edges) + 1)

    def observe(self, value: float) -> None:
        """Count ``value``."""
        self._counts[bisect_left(self.edges, value)] += 1
        self.total += value

    def report(self) -> dict[str, Any]:
        """``edges``; ``counts``: cumulative, the last one (no edge) of all; ``sum``."""
        return {"edges": list(self.edges), "counts": list(accumulate(self._counts)), "sum": self.total}


class StepStats:
    """Counts every step that ran, failed ones included."""

    def __init__(self) -> None:
        self._seconds = Histogram(_SECONDS)
        self._rows = Histogram(_ROWS)
        self._tokens = Histogram(_TOKENS)
        self._count = 0
        self._last: tuple[float, int, int] = (0.0, 0, 0)
        self._end = 0.0

    def observe(self, began: float, end: float, rows: int, tokens: int) -> None:
        """A step of ``rows`` rows and ``tokens`` tokens was planned at ``began`` and handed out at ``end``, in seconds of one clock.

        It took the time between; where the step before it ended later than it began, the time since then, so that no time
        counts twice.
        """
        seconds = end - max(began, self._end)
        self._end = end
        self._count += 1
        self._last = (seconds, rows, tokens)
        self._seconds.observe(seconds)
        self._rows.observe(rows)
        self._tokens.observe(tokens)

    def report(self) -> dict[str, Any]:
        """``count`` and ``seconds`` of all, ``last_*`` of the last step, and the histograms."""
        seconds, rows, tokens = self._last
        return {
            "count": self._count,
            "seconds": self._seconds.total,
            "last_seconds": seconds,
            "last_rows": rows,
            "last_tokens": tokens,
            "step_seconds": self._seconds.report(),
            "batch_rows": self._rows.report(),
            "batch_tokens": self._tokens.report(),
        }
