"""Small steps for the kernels: batches, and running one operation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from radixserve.native.library import NativeLibrary
from radixserve.native.operations import Operation
from radixserve.native.program import Program, StepBatch

ALL_ISAS = NativeLibrary.load().available_isas()


def int32(values: npt.ArrayLike) -> npt.NDArray[np.int32]:
    return np.ascontiguousarray(values, dtype=np.int32)


def batch_of(
    token_ids: Sequence[int],
    *,
    positions: Sequence[int] | None = None,
    slots: Sequence[int] | None = None,
    wanted: Sequence[int] | None = None,
) -> StepBatch:
    """A batch of one request; for operations that look at rows only."""
    count = len(token_ids)
    return StepBatch(
        token_ids=int32(token_ids),
        positions=int32(positions if positions is not None else list(range(count))),
        slots=int32(slots if slots is not None else list(range(count))),
        query_start=int32([0, count]),
        seq_lens=int32([count]),
        tables=int32([[0]]),
        wanted_rows=int32(wanted if wanted is not None else list(range(count))),
    )


def run(library: NativeLibrary, operation: Operation, batch: StepBatch | int) -> None:
    """Run one operation; an int stands for a batch of so many rows."""
    Program(library, [operation]).run(batch_of([0] * batch) if isinstance(batch, int) else batch)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors agree in every bit."""
    kind = torch.int16 if a.dtype == torch.bfloat16 else torch.int32
    return a.dtype == b.dtype and torch.equal(a.contiguous().view(kind), b.contiguous().view(kind))
