"""The KV store."""

from __future__ import annotations

import numpy as np
import torch

from radixserve.runtime.kv_store import KVStore
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
