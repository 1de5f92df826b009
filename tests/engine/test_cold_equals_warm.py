"""Cold equals warm: tokens and logprobs of a request have the same bits whatever ran before, beside or instead of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from radixserve.attention.torch_paged import TorchPagedAttention
from radixserve.cache.lease import Lease
from radixserve.model.config import Architecture
from radixserve.model.loader import LoadedModel
from radixserve.runtime.forward_batch import ForwardBatch
from radixserve.runtime.kv_store import KVStore
from radixserve.runtime.model_runner import ModelRunner
from radixserve.runtime.plan_runner import PlanRunner, RunnableModel
from radixserve.scheduler.request import Request
from tests.engine.schedules import Bench, random_schedule
from tests.tiny_decoder import tiny_decoder

TINY_SCHEDULES = 200
SMOLLM2_SCHEDULES = 10
SMOLLM2_LONG_SCHEDULES = 200
BLOCK_SIZES: dict[Architecture, int] = {"llama": 16, "qwen3": 4, "qwen2": 1, "mistral": 5}
KINDS = [
    (architecture, dtype, block_size)
    for architecture, block_size in BLOCK_SIZES.items()
    for dtype in (torch.bfloat16, torch.float32)
]
SEEDS = st.integers(0, 2**32 - 1)


def thorough(examples: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


@pytest.mark.parametrize(("architecture", "dtype", "block_size"), KINDS)
def test_tiny_models(architecture: Architecture, dtype: torch.dtype, block_size: int) -> None:
    bench = Bench(tiny_decoder(architecture, dtype), block_size, 1500 // block_size)

    @thorough(TINY_SCHEDULES // len(KINDS))
    @given(seed=SEEDS, long=st.booleans())
    def check(seed: int, long: bool) -> None:
        # Long prompts cross the boundaries of the chunks in which attention is reduced.
        assert bench.differences(random_schedule(seed, bench, max_prompt=330 if long else 60)) == []

    check()


@pytest.mark.parametrize(("architecture", "dtype", "block_size"), KINDS[1::3])
def test_tiny_models_with_int8_kv(architecture: Architecture, dtype: torch.dtype, block_size: int) -> None:
    def make(model: RunnableModel, num_blocks: int, block_size: int) -> PlanRunner:
        return ModelRunner(model, num_blocks=num_blocks, block_size=block_size, threads=1, kv_dtype=torch.int8)

    bench = Bench(tiny_decoder(architecture, dtype), block_size, 1500 // block_size, make_runner=make)

    @thorough(TINY_SCHEDULES // len(KINDS))
    @given(seed=SEEDS, long=st.booleans())
    def check(seed: int, long: bool) -> None:
        assert bench.differences(random_schedule(seed, bench, max_prompt=330 if long else 60)) == []

    check()


def smollm2_bench(model: LoadedModel) -> Bench:
    return Bench(model, 16, 120, model.tokenizer)


def test_smollm2(smollm2: LoadedModel) -> None:
    bench = smollm2_bench(smollm2)

    @thorough(SMOLLM2_SCHEDULES)
    @given(seed=SEEDS)
    def check(seed: int) -> None:
        assert bench.differences(random_schedule(seed, bench, max_prompt=280, max_output=5, requests=4)) == []

    check()


@pytest.mark.long
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_smollm2_long(smollm2: LoadedModel, dtype: torch.dtype) -> None:
    weights = {name: weight.to(dtype) if weight.ndim == 2 else weight for name, weight in smollm2.weights.items()}
    bench = smollm2_bench(dataclasses.replace(smollm2, weights=weights))

    @thorough(SMOLLM2_LONG_SCHEDULES)
    @given(seed=SEEDS)
    def check(seed: int) -> None:
        assert bench.differences(random_schedule(seed, bench, max_prompt=400)) == []

    check()


# --- The test must be able to fail ------------------------------------------------------------------------------------


def split_by_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The chunks in which attention is reduced depend on the number of rows."""
    plan = TorchPagedAttention.plan

    def faulty(self: TorchPagedAttention, batch: ForwardBatch) -> None:
        self.chunk = 128 if batch.num_rows > 1 else 256
        self._shapes = tuple(dataclasses.replace(shape, chunk=self.chunk) for shape in self._shapes)
        plan(self, batch)

    monkeypatch.setattr(TorchPagedAttention, "plan", faulty)


def cap_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that wants prompt logprobs may be served from the cache all the same."""
    monkeypatch.setattr(Request, "match_limit", property(lambda self: self.num_tokens - 1))


def slot_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """One slot less is copied than is counted as computed."""
    leased = Lease.leased_tokens
    assert isinstance(leased, property) and leased.fget is not None
    count = leased.fget

    def faulty(self: Lease) -> int:
        tokens: int = count(self)
        # Only where the block has room for one slot more; the tokens are then found by nobody's KV.
        return tokens + (1 if self.copy is not None and self.copy.length % 4 == 1 else 0)

    monkeypatch.setattr(Lease, "leased_tokens", property(faulty))


def stale_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """V of the last token of a step is not written in the last layer."""
    write = KVStore.write

    def faulty(self: KVStore, layer: int, slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        if layer == 1 and len(slots) > 8:
            v = torch.cat([v[:-1], self.values(layer).reshape(-1, *v.shape[1:])[slots[-1:]].nan_to_num(0.0)])
        write(self, layer, slots, k, v)

    monkeypatch.setattr(KVStore, "write", faulty)


@pytest.mark.parametrize("plant", [split_by_batch, cap_removed, slot_not_copied, stale_values])
def test_planted_faults_are_found(plant: Callable[[pytest.MonkeyPatch], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    bench = Bench(tiny_decoder("llama", torch.float32), 16, 1500 // 16)
    found = 0
    for seed in range(25):
        try:
            found += bool(bench.differences(random_schedule(seed, bench, max_prompt=330)))
        except AssertionError:
            found += 1
    assert found > 0
