"""A whole engine over the GPU's attention backend, its kernels replaced by references on the CPU: the same tokens as torch_paged.

What this shows: the scheduler's plans (chunks, shared prefixes, copies, preemption, samples) as FlashInfer's Python layer
takes them, step after step. What it cannot show is a kernel. Skipped where FlashInfer is not installed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from radixserve import Engine, SamplingParams
from radixserve.attention.flashinfer import backend as backend_module
from radixserve.attention.flashinfer.backend import FlashInferAttention
from radixserve.attention.flashinfer.cascade import CascadeCost
from radixserve.model.config import Architecture, ModelConfig
from radixserve.runtime import model_runner
from tests.attention.flashinfer.fake_kernels import Kernels, replaced_kernels
from tests.tiny_model import tiny_model

pytest.importorskip("flashinfer", reason="FlashInfer is not installed: make test-contract installs it")

TRUNK = "The same long beginning of every prompt, some one hundred characters of it, so that blocks are shared. "
PROMPTS = [
    f"{TRUNK}{branch}{leaf}" for branch in ("Left, and then: ", "Right, and then: ") for leaf in ("a", "bb", "ccc")
]
OPTIONS: dict[str, Any] = {
    "kernels": "torch",
    "threads": 1,
    "num_blocks": 60,
    "max_batch_tokens": 48,
    "max_running": 8,
    "check_every_step": True,
}


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernels]:
    monkeypatch.setattr(backend_module, "WORKSPACE_BYTES", 1 << 12)
    yield from replaced_kernels(monkeypatch)


def tokens(architecture: Architecture) -> list[tuple[int, ...]]:
    sampling = [SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)] * len(PROMPTS)
    sampling[-1] = SamplingParams(temperature=1.0, seed=3, n=3, max_tokens=9, ignore_eos=True)
    with Engine.from_model(tiny_model(architecture), **OPTIONS) as engine:
        results = engine.generate(PROMPTS, sampling)
    return [tuple(sample.token_ids) for result in results for sample in result.all_samples]


@pytest.mark.parametrize("architecture", ["llama", "mistral"])
def test_the_same_tokens_as_torch_paged(
    architecture: Architecture, kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = tokens(architecture)
    assert not kernels.plans
    made: list[FlashInferAttention] = []

    def create(name: str, config: ModelConfig, *, device: torch.device, **options: Any) -> FlashInferAttention:
        attention = FlashInferAttention(config, device=device, **options)
        attention.cost = CascadeCost(attention.cost.page, 0, 0)
        made.append(attention)
        return attention

    monkeypatch.setattr(model_runner, "create_attention", create)
    monkeypatch.setattr(model_runner, "broken_promises", lambda *arguments: [])
    assert tokens(architecture) == expected
    assert kernels.plans
    # Mistral's layers are all windowed, so nothing is read in a cascade there.
    assert (made[0].cascades > 0) == (architecture == "llama")
