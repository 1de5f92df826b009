"""A step's operations, recorded once per model and run by one call of the library."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from radixserve.native import abi
from radixserve.native.library import NativeLibrary
from radixserve.native.operations import Operation

Int32Array = npt.NDArray[np.int32]


class StepBatch:
    """The arrays of one flattened forward pass, all int32 and C-contiguous; kept alive, not copied.

    ``token_ids``, ``positions``, ``slots``: [T]; ``query_start``: [R + 1]; ``seq_lens``: [R], tokens of each request after this step;
    ``tables``: [R, blocks], block ids of each request in order (entries behind its last block are not read); ``wanted_rows``: [W].
    """

    __slots__ = ("_arrays", "struct")

    def __init__(
        self,
        *,
        token_ids: Int32Array,
        positions: Int32Array,
        slots: Int32Array,
        query_start: Int32Array,
        seq_lens: Int32Array,
        tables: Int32Array,
        wanted_rows: Int32Array,
    ) -> None:
        self._arrays = (token_ids, positions, slots, query_start, seq_lens, tables, wanted_rows)
        for array in self._arrays:
            assert array.dtype == np.int32 and array.flags.c_contiguous
        assert len(positions) == len(slots) == len(token_ids)
        assert len(query_start) == len(seq_lens) + 1 == len(tables) + 1
        self.struct = abi.BatchStruct(
            tokens=len(token_ids),
            requests=len(seq_lens),
            wanted=len(wanted_rows),
            table_stride=tables.shape[1],
            token_ids=token_ids.ctypes.data,
            positions=positions.ctypes.data,
            slots=slots.ctypes.data,
            query_start=query_start.ctypes.data,
            seq_lens=seq_lens.ctypes.data,
            tables=tables.ctypes.data,
            wanted_rows=wanted_rows.ctypes.data,
        )


class Program:
    """A list of operations bound to their tensors; `run` takes them through one step."""

    def __init__(self, library: NativeLibrary, operations: Iterable[Operation]) -> None:
        self._library = library
        self._operations = tuple(operations)
        self._ops = (abi.OpStruct * len(self._operations))(
            *(
                abi.OpStruct(operation.kind, operation.rows, ctypes.addressof(operation.params))
                for operation in self._operations
            )
        )

    @property
    def operations(self) -> tuple[Operation, ...]:
        """The operations in the order in which they run."""
        return self._operations

    def run(self, batch: StepBatch) -> None:
        """Run all operations on the batch; the tensors' capacities must hold its tokens and wanted rows."""
        self._library.run(self._ops, batch.struct)
