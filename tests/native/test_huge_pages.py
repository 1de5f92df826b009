"""Pieces of huge memory keep what is written to them, apart from one another."""

from __future__ import annotations

import gc
import itertools

import torch

from radixserve.native.huge_pages import HugeMemory


def bytes_of(count: int, seed: int) -> torch.Tensor:
    return torch.randint(0, 256, (count,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def test_pieces_begin_as_zeros_are_aligned_and_do_not_overlap() -> None:
    memory = HugeMemory()
    sizes = (1, 63, 64, 65, 1 << 20)
    pieces = [memory.zeros(size) for size in sizes]
    for piece, size in zip(pieces, sizes, strict=True):
        assert piece.shape == (size,) and piece.data_ptr() % 64 == 0 and not piece.any()
        piece.copy_(bytes_of(size, size))
    for piece, size in zip(pieces, sizes, strict=True):
        assert torch.equal(piece, bytes_of(size, size))
    places = sorted((piece.data_ptr(), piece.numel()) for piece in pieces)
    assert all(first + size <= second for (first, size), (second, _) in itertools.pairwise(places))


def test_a_piece_larger_than_a_mapping_has_one_of_its_own_and_outlives_the_memory() -> None:
    memory = HugeMemory()
    pieces = {size: memory.zeros(size) for size in (10, 65 << 20, 11)}
    for size, piece in pieces.items():
        piece.copy_(bytes_of(size, size))
    del memory
    gc.collect()
    for size, piece in pieces.items():
        assert torch.equal(piece, bytes_of(size, size))
