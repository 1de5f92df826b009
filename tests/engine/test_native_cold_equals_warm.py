"""Cold equals warm on the native kernels, by the same random schedules as on the torch path."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from radixserve.model.config import Architecture
from radixserve.model.loader import LoadedModel
from radixserve.native.library import Isa, NativeLibrary
from radixserve.runtime.block_store import BlockStore
from radixserve.runtime.native_decoder import NativeDecoder, NativeHidden
from radixserve.runtime.native_runner import NativeModelRunner
from radixserve.runtime.native_step import NativeStep
from radixserve.runtime.plan_runner import PlanRunner, RunnableModel
from radixserve.runtime.top_logits import TopLogits
from tests.engine.schedules import Bench, random_schedule
from tests.engine.test_cold_equals_warm import SEEDS, SMOLLM2_LONG_SCHEDULES, SMOLLM2_SCHEDULES, thorough
from tests.native.steps import ALL_ISAS
from tests.quantized_model import Mix, quantized_model
from tests.tiny_decoder import TinyDecoder, tiny_decoder

BEST_ISA = ALL_ISAS[0]
BLOCK_SIZES: dict[Architecture, int] = {"llama": 16, "qwen3": 32, "qwen2": 16, "mistral": 48}
KINDS = [
    (architecture, dtype, isa, 25 if isa == BEST_ISA else 4)
    for architecture in BLOCK_SIZES
    for dtype in (torch.bfloat16, torch.float32)
    for isa in ALL_ISAS
]


# Matrices in the blocks of their file; in some mixes a fused linear is of several.
QUANTIZED: list[tuple[Mix, Architecture, torch.dtype]] = [
    ("Q4_1", "llama", torch.bfloat16),
    ("Q8_0", "qwen2", torch.float32),
    ("K", "qwen3", torch.bfloat16),
    ("mixed", "mistral", torch.bfloat16),
    ("fallback", "qwen2", torch.bfloat16),
]


def native_bench(
    model: RunnableModel,
    block_size: int,
    num_blocks: int,
    isa: Isa = BEST_ISA,
    *,
    keep_blocks: bool = False,
    kv_dtype: torch.dtype | None = None,
    **more: Any,
) -> Bench:
    """A bench whose runner has little room for activations, so that growing is part of the schedules."""
    library = NativeLibrary.load()
    library.set_isa(isa)

    def make(model: RunnableModel, num_blocks: int, block_size: int) -> PlanRunner:
        return NativeModelRunner(
            model,
            library,
            num_blocks=num_blocks,
            block_size=block_size,
            max_batch_tokens=8,
            threads=2,
            keep_blocks=keep_blocks,
            kv_dtype=kv_dtype,
        )

    return Bench(model, block_size, num_blocks, make_runner=make, **more)


def tiny(architecture: Architecture = "llama", dtype: torch.dtype = torch.float32) -> TinyDecoder:
    return tiny_decoder(architecture, dtype, intermediate_size=80)


@pytest.mark.parametrize(("architecture", "dtype", "isa", "examples"), KINDS)
def test_tiny_models(architecture: Architecture, dtype: torch.dtype, isa: Isa, examples: int) -> None:
    block_size = BLOCK_SIZES[architecture]
    bench = native_bench(tiny(architecture, dtype), block_size, 1500 // block_size, isa)

    @thorough(examples)
    @given(seed=SEEDS, long=st.booleans())
    def check(seed: int, long: bool) -> None:
        # Long prompts cross the boundaries of the chunks in which attention is reduced.
        assert bench.differences(random_schedule(seed, bench, max_prompt=330 if long else 60)) == []

    check()


@pytest.mark.parametrize(("architecture", "dtype", "isa", "examples"), KINDS)
def test_tiny_models_with_int8_kv(architecture: Architecture, dtype: torch.dtype, isa: Isa, examples: int) -> None:
    block_size = BLOCK_SIZES[architecture]
    bench = native_bench(tiny(architecture, dtype), block_size, 1500 // block_size, isa, kv_dtype=torch.int8)

    @thorough(examples // 2)
    @given(seed=SEEDS, long=st.booleans())
    def check(seed: int, long: bool) -> None:
        assert bench.differences(random_schedule(seed, bench, max_prompt=330 if long else 60)) == []

    check()


@pytest.mark.parametrize("isa", ALL_ISAS)
@pytest.mark.parametrize(("mix", "architecture", "dtype"), QUANTIZED)
def test_quantized_tiny_models(mix: Mix, architecture: Architecture, dtype: torch.dtype, isa: Isa) -> None:
    block_size = BLOCK_SIZES[architecture]
    model = quantized_model(mix, architecture, dtype)
    bench = native_bench(model, block_size, 1500 // block_size, isa, keep_blocks=True)

    @thorough(10 if isa == BEST_ISA else 2)
    @given(seed=SEEDS, long=st.booleans())
    def check(seed: int, long: bool) -> None:
        assert bench.differences(random_schedule(seed, bench, max_prompt=330 if long else 60)) == []

    check()


@pytest.mark.parametrize(("keep_blocks", "kv_dtype"), [(False, None), (True, None), (True, torch.int8)])
def test_smollm2(smollm2: LoadedModel, keep_blocks: bool, kv_dtype: torch.dtype | None) -> None:
    bench = native_bench(smollm2, 16, 120, keep_blocks=keep_blocks, kv_dtype=kv_dtype, tokenizer=smollm2.tokenizer)

    @thorough(SMOLLM2_SCHEDULES)
    @given(seed=SEEDS)
    def check(seed: int) -> None:
        assert bench.differences(random_schedule(seed, bench, max_prompt=280, max_output=5, requests=4)) == []

    check()


@pytest.mark.long
@pytest.mark.parametrize("isa", ALL_ISAS)
def test_smollm2_long_in_its_own_blocks(smollm2: LoadedModel, isa: Isa) -> None:
    bench = native_bench(smollm2, 16, 120, isa, keep_blocks=True, tokenizer=smollm2.tokenizer)

    @thorough(SMOLLM2_LONG_SCHEDULES if isa == BEST_ISA else SMOLLM2_SCHEDULES)
    @given(seed=SEEDS)
    def check(seed: int) -> None:
        assert bench.differences(random_schedule(seed, bench, max_prompt=400)) == []

    check()


@pytest.mark.long
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("isa", ALL_ISAS)
def test_smollm2_long(smollm2: LoadedModel, dtype: torch.dtype, isa: Isa) -> None:
    weights = {name: weight.to(dtype) if weight.ndim == 2 else weight for name, weight in smollm2.weights.items()}
    model = dataclasses.replace(smollm2, weights=weights)
    bench = native_bench(model, 16, 120, isa, tokenizer=smollm2.tokenizer)

    @thorough(SMOLLM2_LONG_SCHEDULES if isa == BEST_ISA else SMOLLM2_SCHEDULES)
    @given(seed=SEEDS)
    def check(seed: int) -> None:
        assert bench.differences(random_schedule(seed, bench, max_prompt=400)) == []

    check()


# --- The test must be able to fail ------------------------------------------------------------------------------------


def isa_by_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another family of kernels serves larger batches."""
    run = NativeDecoder.run

    def faulty(self: NativeDecoder, step: NativeStep) -> NativeHidden:
        self.library.set_isa("generic" if step.num_tokens > 20 else BEST_ISA)
        return run(self, step)

    monkeypatch.setattr(NativeDecoder, "run", faulty)


def copies_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last copy of a step is not made."""
    copy = BlockStore.copy_blocks
    monkeypatch.setattr(BlockStore, "copy_blocks", lambda self, copies: copy(self, copies[:-1]))


def wrong_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """With three rows or more, the logits of the last come from the token before."""
    logits = NativeHidden.logits

    def faulty(self: NativeHidden, tokens: Any) -> torch.Tensor:
        shifted = np.array(tokens)
        shifted[-1] -= len(tokens) > 2
        return logits(self, shifted)

    monkeypatch.setattr(NativeHidden, "logits", faulty)


def wrong_row_of_the_largest(monkeypatch: pytest.MonkeyPatch) -> None:
    """With two rows or more that their largest logits decide, those of the last come from the token before."""
    top = NativeHidden.top

    def faulty(self: NativeHidden, tokens: Any, count: int) -> TopLogits:
        shifted = np.array(tokens)
        shifted[-1] -= len(tokens) > 1
        return top(self, shifted, count)

    monkeypatch.setattr(NativeHidden, "top", faulty)


FAULTS = [copies_left_out, wrong_row, wrong_row_of_the_largest, *([isa_by_batch] if len(ALL_ISAS) > 1 else [])]


@pytest.mark.parametrize("plant", FAULTS)
def test_planted_faults_are_found(plant: Callable[[pytest.MonkeyPatch], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    bench = native_bench(tiny(), 16, 1500 // 16)
    assert any(bench.differences(random_schedule(seed, bench, max_prompt=330)) for seed in range(25))
