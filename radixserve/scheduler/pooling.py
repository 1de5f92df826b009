"""One vector for a prompt, from the hidden states of its tokens."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from radixserve.messages import Pooling

States = npt.NDArray[np.float64]


class Pool:
    """Gathers the final hidden states of a prompt of ``num_prompt`` tokens, in order of position.

    ``mean`` adds them up one by one in float64, so the sum does not depend on how they were parted into steps (its length is
    scaled to 1 anyway, so nothing is divided); ``last`` takes the last token's. ``next``: the first position whose state is
    still wanted. The whole sequence is prompt: nothing is drawn after it.
    """

    __slots__ = ("_sum", "kind", "next", "num_prompt")

    def __init__(self, kind: Pooling, num_prompt: int) -> None:
        self.kind = kind
        self.num_prompt = num_prompt
        self.next = 0 if kind == "mean" else num_prompt - 1
        self._sum: States | None = None

    def start_in(self, start: int, end: int) -> int | None:
        """The first position of [start, end) whose state is wanted: it and all after it are; None if none is."""
        first = max(start, self.next)
        return first if first < end else None

    def add(self, states: States) -> None:
        """The states [n, hidden] of the positions from ``next`` on."""
        before = np.zeros((1, states.shape[1])) if self._sum is None else self._sum[None]
        # A cumulative sum has only one order in which it can add.
        self._sum = np.cumsum(np.concatenate((before, states)), axis=0)[-1]
        self.next += len(states)

    def vector(self) -> list[float] | None:
        """The pooled states, scaled to length 1; None until all are there."""
        if self._sum is None or self.next < self.num_prompt:
            return None
        length = float(np.sqrt(np.dot(self._sum, self._sum)))
        scaled: list[float] = (self._sum / length if length > 0 else self._sum).tolist()
        return scaled
