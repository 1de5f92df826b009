"""Memory in pages of 2 MiB, for what every step reads from end to end.

A step walks through all weights. In pages of 4 KiB that is a look at the page table every few hundred nanoseconds, which in
a virtual machine is itself two tables deep.
"""

from __future__ import annotations

import mmap

import torch

_PAGE = 2 << 20
_ALIGNMENT = 64
# Of one mapping. Memory that is not written to takes no room.
_MAPPING = 64 << 20


class HugeMemory:
    """Hands out pieces of anonymous mappings one after the other.

    The kernel is asked for huge pages and may have none; then these are pages like others. A mapping lives as long as any
    piece of it.
    """

    def __init__(self) -> None:
        self._mapping: torch.Tensor | None = None
        self._used = 0

    def zeros(self, size: int) -> torch.Tensor:
        """Zeros uint8[size], 64-byte aligned, beside what was handed out before."""
        if self._mapping is None or self._used + size > len(self._mapping):
            self._mapping, self._used = _map(max(_MAPPING, size)), 0
        piece = self._mapping[self._used : self._used + size]
        self._used += -(-size // _ALIGNMENT) * _ALIGNMENT
        return piece


def _map(size: int) -> torch.Tensor:
    """Untouched memory of at least ``size`` bytes that begins at a huge page."""
    # Private: pages of shared mappings are another matter to the kernel.
    mapped = mmap.mmap(-1, size + _PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        mapped.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(mapped, dtype=torch.uint8)
    return whole[-whole.data_ptr() % _PAGE :]
