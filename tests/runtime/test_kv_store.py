"""The KV store."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from radixserve.runtime.block_store import block_bytes
from radixserve.runtime.kv_quantization import dequantize, quantize
from radixserve.runtime.kv_store import Int8KVStore, KVStore
from tests.tiny_decoder import tiny_config

CONFIG = tiny_config("llama", num_layers=3)


def filled(num_blocks: int = 6, block_size: int = 4) -> KVStore:
    kv = KVStore(CONFIG, num_blocks=num_blocks, block_size=block_size, dtype=torch.bfloat16, device=torch.device("cpu"))
    slots = torch.randperm(num_blocks * block_size, generator=torch.Generator().manual_seed(0))
    for layer in range(3):
        value = (slots + 100 * layer).bfloat16()[:, None, None].expand(-1, 2, 16)
        kv.write(layer, slots, value, -value)
    return kv


def test_write_puts_tokens_in_their_slots() -> None:
    kv = filled()
    for layer in range(3):
        expected = (torch.arange(24.0) + 100 * layer).bfloat16().view(6, 4, 1, 1).expand(-1, -1, 2, 16)
        assert torch.equal(kv.keys(layer), expected)
        assert torch.equal(kv.values(layer), -expected)


def test_copies_take_whole_blocks_of_all_layers_and_read_before_they_write() -> None:
    kv = filled()
    before = [(kv.keys(layer).clone(), kv.values(layer).clone()) for layer in range(3)]
    kv.copy_blocks(np.array([[0, 1], [1, 2], [0, 5]], np.int32))
    for layer, (keys, values) in enumerate(before):
        for block, source in enumerate([0, 0, 1, 3, 4, 0]):
            assert torch.equal(kv.keys(layer)[block], keys[source])
            assert torch.equal(kv.values(layer)[block], values[source])
    kv.copy_blocks(np.empty((0, 2), np.int32))


def test_poison_takes_only_the_named_blocks() -> None:
    kv = filled()
    kv.poison([2, 4])
    for layer in range(3):
        for half in (kv.keys(layer), kv.values(layer)):
            assert half.isnan().flatten(1).all(1).tolist() == [False, False, True, False, True, False]
            assert not half[[0, 1, 3, 5]].isnan().any()


def test_bytes() -> None:
    kv = filled()
    assert kv.block_bytes == CONFIG.kv_bytes_per_token(2) * 4
    assert kv.num_bytes == 6 * kv.block_bytes
    assert kv.block_bytes == block_bytes(CONFIG, 4, torch.bfloat16)


def test_float8_is_copied_and_poisoned_byte_by_byte() -> None:
    kv = KVStore(CONFIG, num_blocks=3, block_size=4, dtype=torch.float8_e4m3fn, device=torch.device("cpu"))
    kv.poison(np.arange(3))
    assert torch.isnan(kv.keys(0).float()).all()
    kv.keys(2)[0] = 1.5
    kv.copy_blocks(np.array([[0, 2]], np.int32))
    assert (kv.keys(2)[2].float() == 1.5).all()
    assert torch.isnan(kv.keys(2)[1].float()).all() and torch.isnan(kv.keys(1)[2].float()).all()
    assert kv.block_bytes == 2 * 3 * 4 * 2 * 16


# --- Rounded to int8 --------------------------------------------------------------------------------------------------


def filled_int8(block_size: int = 4, dtype: torch.dtype = torch.float32) -> tuple[Int8KVStore, torch.Tensor]:
    """A store of six blocks, and K of its slots; V is -K."""
    kv = Int8KVStore(CONFIG, num_blocks=6, block_size=block_size, dtype=dtype, device=torch.device("cpu"))
    kv.poison(range(6))
    k = torch.randn(6 * block_size, 2, 16, generator=torch.Generator().manual_seed(0))
    for layer in range(3):
        kv.write(layer, torch.arange(6 * block_size), k + layer, -k - layer)
    return kv, k


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_int8_gives_back_what_rounding_leaves(block_size: int, dtype: torch.dtype) -> None:
    kv, k = filled_int8(block_size, dtype)
    blocks = torch.tensor([5, 0, 2])
    for layer in range(3):
        expected = dequantize(*quantize(k + layer), dtype=dtype).view(6, block_size, 2, 16)[blocks]
        keys, values = kv.read(layer, blocks)
        assert keys.dtype == dtype
        assert torch.equal(keys, expected) and torch.equal(values, -expected)


def test_int8_blocks_are_copied_and_poisoned_with_their_scales() -> None:
    kv, _ = filled_int8()
    everything = torch.arange(6)
    before = [kv.read(layer, everything) for layer in range(3)]
    kv.copy_blocks(np.array([[0, 1], [1, 2]], np.int32))
    kv.poison([4])
    for layer, halves in enumerate(before):
        for now, then in zip(kv.read(layer, everything), halves, strict=True):
            assert torch.equal(now[[0, 1, 2, 3, 5]], then[[0, 0, 1, 3, 5]])
            assert now[4].isnan().all()


def test_int8_bytes() -> None:
    kv, _ = filled_int8()
    assert kv.block_bytes == block_bytes(CONFIG, 4, torch.int8) == 2 * 3 * 2 * 4 * (16 + 2)
