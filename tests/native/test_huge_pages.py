"""Pieces of huge memory keep what was copied, apart from one another."""

from __future__ import annotations

import gc
import itertools

import torch

from radixserve.native.huge_pages import HugeMemory


def bytes_of(count: int, seed: int) -> torch.Tensor:
    return torch.randint(0, 256, (count,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def test_pieces_are_aligned_and_do_not_overlap() -> None:
    memory = HugeMemory()
    data = [bytes_of(count, count) for count in (1, 63, 64, 65, 1 << 20)]
    pieces = [memory.copy(item) for item in data]
    for piece, item in zip(pieces, data, strict=True):
        assert torch.equal(piece, item) and piece.data_ptr() % 64 == 0
    places = sorted((piece.data_ptr(), piece.numel()) for piece in pieces)
    assert all(first + size <= second for (first, size), (second, _) in itertools.pairwise(places))


def test_a_copy_shares_nothing_with_what_it_was_made_of() -> None:
    data = bytes_of(100, 1)
    piece = HugeMemory().copy(data)
    data.zero_()
    assert torch.equal(piece, bytes_of(100, 1))


def test_a_piece_larger_than_a_mapping_has_one_of_its_own_and_outlives_the_memory() -> None:
    memory = HugeMemory()
    small, large = memory.copy(bytes_of(10, 2)), memory.copy(bytes_of(65 << 20, 3))
    after = memory.copy(bytes_of(10, 4))
    del memory
    gc.collect()
    assert torch.equal(small, bytes_of(10, 2)) and torch.equal(after, bytes_of(10, 4))
    assert torch.equal(large, bytes_of(65 << 20, 3))
