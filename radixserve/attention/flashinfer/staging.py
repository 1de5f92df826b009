"""What a planned step keeps on the host until the GPU has taken it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from radixserve.attention.flashinfer.pages import Int32Array

FIRST_CAPACITY = 1 << 16


@dataclass(frozen=True, slots=True, eq=False)
class Staged:
    """One array, twice: ``host`` in pinned memory, ``device`` where the kernels read it. Both int32, both views."""

    host: torch.Tensor
    device: torch.Tensor


class Staging:
    """Brings a step's arrays to the device in one copy, which runs in the order of the current stream.

    The copy reads pinned memory when the GPU comes to it, perhaps long after `load` has returned. So `load` must not be called
    again before `wait`, which returns when what was enqueued before the last `mark` has run.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._on_gpu = device.type == "cuda"
        self._marked = torch.cuda.Event() if self._on_gpu else None  # type: ignore[no-untyped-call]
        self._reserve(FIRST_CAPACITY)

    def load(self, arrays: Sequence[Int32Array]) -> list[Staged]:
        """The arrays on host and device; valid until the next call."""
        ends = np.cumsum([len(array) for array in arrays]).tolist()
        if ends[-1] > len(self._host):
            self._reserve(max(ends[-1], 2 * len(self._host)))
        view = self._host.numpy()
        for array, end in zip(arrays, ends, strict=True):
            view[end - len(array) : end] = array
        self._buffer[: ends[-1]].copy_(self._host[: ends[-1]], non_blocking=True)
        return [
            Staged(self._host[end - len(array) : end], self._buffer[end - len(array) : end])
            for array, end in zip(arrays, ends, strict=True)
        ]

    def mark(self) -> None:
        """Everything that reads this step's pinned memory is enqueued."""
        if self._marked is not None:
            self._marked.record()

    def wait(self) -> None:
        """Block until the pinned memory may be written again."""
        if self._marked is not None:
            self._marked.synchronize()

    def _reserve(self, capacity: int) -> None:
        self._host = torch.empty(capacity, dtype=torch.int32, pin_memory=self._on_gpu)
        self._buffer = torch.empty(capacity, dtype=torch.int32, device=self._device)
