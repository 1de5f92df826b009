"""Cold equals warm: tokens and logprobs of a request have the same bits whatever ran before, beside or instead of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from radixserve.attention import torch_paged
from radixserve.cache.prefix_cache import PrefixCache
from radixserve.runtime.kv_store import KVStore
from tests.engine.schedules import Bench, random_schedule
from tests.tiny_decoder import tiny_decoder

TINY_SCHEDULES = 200
SMOLLM2_SCHEDULES = 10
SMOLLM2_LONG_SCHEDULES = 200
KINDS = [
    (architecture, dtype, block_size)
    for architecture, block_size in (("llama", 16), ("qwen3", 4), ("qwen2", 1), ("mistral", 5))
    for dtype in (torch.bfloat16, torch.float32)
]


@pytest.mark.parametrize(("architecture", "dtype", "block_size"), KINDS)
def test_tiny_models(architecture: str, dtype: torch.dtype, block_size: int) -> None:
    bench = Bench(tiny_decoder(architecture, dtype), block_size, 600 // block_size)
    for seed in range(TINY_SCHEDULES // len(KINDS)):
        assert bench.differences(random_schedule(seed, bench)) == [], f"schedule {seed}"
