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
from radixserve.engine import assembly
from radixserve.engine.core import EngineCore
from radixserve.model.config import Architecture, ModelConfig
from radixserve.runtime import model_runner, runner_choice
from radixserve.runtime.device_start import StepLimits, start
from radixserve.runtime.model_runner import ModelRunner
from radixserve.runtime.token_feed import TokenFeed
from tests.attention.flashinfer.fake_kernels import GRAPH, NO_SPLIT, Kernels, replaced_kernels
from tests.runtime.test_decode_graphs import Recorder
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


def tokens(architecture: Architecture, **options: Any) -> list[tuple[int, ...]]:
    sampling = [SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)] * len(PROMPTS)
    sampling[-1] = SamplingParams(temperature=1.0, seed=3, n=3, max_tokens=9, ignore_eos=True)
    with Engine.from_model(tiny_model(architecture), **OPTIONS, **options) as engine:
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
    assert kernels.plans and not any(plan[GRAPH] for plan in kernels.plans)
    # Mistral's layers are all windowed, so nothing is read in a cascade there.
    assert (made[0].cascades > 0) == (architecture == "llama")


class Device:
    """Memory of a device that has as much as anybody asks for."""

    def free(self) -> int:
        return 1 << 40

    def allocated(self) -> int:
        return 0

    def peak(self) -> int:
        return 0


@pytest.mark.parametrize(("deterministic", "overlap"), [(False, "off"), (True, "off"), (False, "on")])
def test_the_same_tokens_with_captured_decodes(
    deterministic: bool, overlap: str, kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start of an engine on a GPU: the largest step is run, the pool made, decodes of up to eight rows are captured.

    With overlap greedy tokens are written where the graph reads them, after the step was staged.
    """
    expected = tokens("llama")
    started: list[ModelRunner] = []

    def create(name: str, config: ModelConfig, *, device: torch.device, **options: Any) -> FlashInferAttention:
        return FlashInferAttention(config, device=device, **{**options, "deterministic": deterministic})

    class Started(ModelRunner):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            limits = StepLimits(OPTIONS["max_batch_tokens"], OPTIONS["max_running"], 512, options["block_size"])
            blocks = options["num_blocks"]
            self.allocate(limits.blocks)
            start(
                self,
                limits,
                pool_blocks=lambda memory: int(blocks),
                memory=Device(),
                graph_rows=8,
                graph_bytes=1 << 20,
                recorder=Recorder(),
            )
            started.append(self)

    monkeypatch.setattr(model_runner, "create_attention", create)
    monkeypatch.setattr(model_runner, "broken_promises", lambda *arguments: [])
    monkeypatch.setattr(runner_choice, "ModelRunner", Started)
    if overlap == "on":
        monkeypatch.setattr(
            assembly,
            "EngineCore",
            lambda config, runner, *more, **options: EngineCore(config, TokenFeed(runner), *more, **options),
        )
    assert tokens("llama", overlap=overlap) == expected
    (runner,) = started
    assert isinstance(runner.attention, FlashInferAttention)
    assert runner.attention.cascades == (not deterministic), "its kernels were loaded before anybody waits for them"
    assert runner.graphs is not None and runner.graphs.sizes == (1, 2, 4, 8)
    assert runner.graphs.replays > 10
    assert runner.kv.num_blocks == OPTIONS["num_blocks"] + 1
    graphs = [plan for plan in kernels.plans if plan[GRAPH]]
    assert len(graphs) == runner.graphs.replays + len(runner.graphs.sizes)
    assert {plan[NO_SPLIT] for plan in graphs} == {deterministic}
