"""What a planned step keeps on the host until the GPU has taken it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from radixserve.attention.flashinfer.pages import Int32Array, Int64Array

FIRST_CAPACITY = 1 << 16


@dataclass(frozen=True, slots=True, eq=False)
class Staged:
    """One array, twice: ``host`` in pinned memory, ``device`` where the kernels read it. Views, of the array's own type."""

    host: torch.Tensor
    device: torch.Tensor


class Staging:
    """Brings a step's arrays to the device in one copy, which runs in the order of the current stream.

    The copy reads pinned memory when the GPU comes to it, perhaps long after `load` has returned. So `load` must not be called
    again before `wait`, which returns when what was enqueued before the last `mark` has run.

    ``capacity``: how many int32 there is room for, and then memory is never replaced: a captured graph reads from it. None
    grows as it must.
    """

    def __init__(self, device: torch.device, capacity: int | None = None) -> None:
        self._device = device
        self._on_gpu = device.type == "cuda"
        self._marked = torch.cuda.Event() if self._on_gpu else None  # type: ignore[no-untyped-call]
        self._grows = capacity is None
        self._reserve(FIRST_CAPACITY if capacity is None else capacity)

    def load(self, wide: Sequence[Int64Array], narrow: Sequence[Int32Array]) -> tuple[list[Staged], list[Staged]]:
        """The arrays, int64 and int32, on host and device; valid until the next call.

        An array lies where it lay the last time as long as those before it, ``wide`` ones first, are of the same lengths.
        """
        # Wide ones first, so that they lie at multiples of their size.
        lengths = [2 * len(array) for array in wide] + [len(array) for array in narrow]
        ends = np.cumsum(lengths).tolist()
        if ends[-1] > len(self._host):
            assert self._grows, f"{ends[-1]} numbers for a step that was captured with {len(self._host)}"
            self._reserve(max(ends[-1], 2 * len(self._host)))
        places = [slice(end - length, end) for end, length in zip(ends, lengths, strict=True)]
        view = self._host.numpy()
        for place, own in zip(places, wide, strict=False):
            view[place] = np.ascontiguousarray(own, np.int64).view(np.int32)
        for place, array in zip(places[len(wide) :], narrow, strict=True):
            view[place] = array
        self._buffer[: ends[-1]].copy_(self._host[: ends[-1]], non_blocking=True)
        staged = [Staged(self._host[place], self._buffer[place]) for place in places]
        return [
            Staged(each.host.view(torch.int64), each.device.view(torch.int64)) for each in staged[: len(wide)]
        ], staged[len(wide) :]

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
