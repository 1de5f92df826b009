"""One tensor of a GGUF file."""

from __future__ import annotations

import mmap
from dataclasses import dataclass

from radixserve.model.gguf_types import Bytes, Floats, TensorType


@dataclass(frozen=True, slots=True, eq=False)
class GGUFTensor:
    """One tensor as it lies in the file.

    ``shape``: slowest dimension first, as in numpy (a linear weight is [out, in]). ``raw``: read-only uint8
    [*shape[:-1], row bytes], a view of ``mapped`` from byte ``begin`` on; the file stays mapped as long as a view lives.
    """

    name: str
    type: TensorType
    shape: tuple[int, ...]
    raw: Bytes
    mapped: mmap.mmap
    begin: int

    def dequantize(self) -> Floats:
        """All weights as float32 of ``shape``."""
        return self.type.dequantize(self.raw)

    def release(self) -> None:
        """Give the tensor's pages back to the system, which reads them again when they are needed again.

        For whoever has made its own copy: mapped pages that were touched count as memory of the process.
        """
        if hasattr(mmap, "MADV_DONTNEED"):
            first = self.begin // mmap.PAGESIZE * mmap.PAGESIZE
            self.mapped.madvise(mmap.MADV_DONTNEED, first, self.begin + self.raw.nbytes - first)
