"""Tiny random decoders and one-line plans for tests of the forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from radixserve.messages import SamplingParams
from radixserve.model.config import Architecture, ModelConfig
from radixserve.model.generation_config import GenerationDefaults
from radixserve.runtime.forward_batch import ForwardBatch
from radixserve.runtime.plan_runner import PlanRunner
from radixserve.scheduler.plan import PlanRow, StepPlan

ARCHITECTURES: tuple[Architecture, ...] = ("llama", "mistral", "qwen2", "qwen3")


@dataclass(frozen=True, slots=True)
class TinyDecoder:
    """What the runner needs of a model."""

    config: ModelConfig
    weights: dict[str, torch.Tensor]
    generation: GenerationDefaults = field(default_factory=GenerationDefaults)


def tiny_config(architecture: Architecture, **changes: Any) -> ModelConfig:
    """Odd, small sizes, with what is special to the architecture switched on."""
    values: dict[str, Any] = {
        "architecture": architecture,
        "vocab_size": 131,
        "hidden_size": 48,
        "intermediate_size": 72,
        "num_layers": 2,
        "num_heads": 6,
        "num_kv_heads": 2,
        "head_dim": 16,
        "context_length": 4096,
        "tied_head": architecture == "qwen2",
        "bias_qkv": architecture == "qwen2",
        "qk_norm": architecture == "qwen3",
        "sliding_window": 37 if architecture == "mistral" else None,
    }
    return ModelConfig(**{**values, **changes})


def tiny_decoder(
    architecture: Architecture = "llama", dtype: torch.dtype = torch.float32, seed: int = 0, **changes: Any
) -> TinyDecoder:
    """Seeded random weights, scaled so that attention and logits are far from uniform."""
    config = tiny_config(architecture, **changes)
    generator = torch.Generator().manual_seed(seed)
    weights: dict[str, torch.Tensor] = {}

    def normal(name: str, *shape: int, scale: float | None = None) -> None:
        spread = 1.5 * shape[-1] ** -0.5 if scale is None else scale
        weights[name] = (torch.randn(shape, generator=generator) * spread).to(dtype)

    def norm(name: str, size: int) -> None:
        weights[name] = torch.rand(size, generator=generator) + 0.5

    normal("embed", config.vocab_size, config.hidden_size, scale=1.0)
    norm("final_norm", config.hidden_size)
    if not config.tied_head:
        normal("head", config.vocab_size, config.hidden_size)
    widths = {"q": config.num_heads, "k": config.num_kv_heads, "v": config.num_kv_heads}
    for layer in range(config.num_layers):
        prefix = f"layers.{layer}."
        for name in ("attn_norm", "mlp_norm"):
            norm(prefix + name, config.hidden_size)
        for name, heads in widths.items():
            normal(prefix + name, heads * config.head_dim, config.hidden_size)
            if config.bias_qkv:
                normal(f"{prefix}{name}_bias", heads * config.head_dim, scale=0.5)
            if config.qk_norm and name != "v":
                norm(f"{prefix}{name}_norm", config.head_dim)
        normal(prefix + "o", config.hidden_size, config.num_heads * config.head_dim)
        normal(prefix + "gate", config.intermediate_size, config.hidden_size)
        normal(prefix + "up", config.intermediate_size, config.hidden_size)
        normal(prefix + "down", config.hidden_size, config.intermediate_size)
        if config.bias_o:
            normal(prefix + "o_bias", config.hidden_size, scale=0.5)
        if config.bias_mlp:
            normal(prefix + "gate_bias", config.intermediate_size, scale=0.5)
            normal(prefix + "up_bias", config.intermediate_size, scale=0.5)
            normal(prefix + "down_bias", config.hidden_size, scale=0.5)
    return TinyDecoder(config, weights)


def plan_row(
    tokens: npt.ArrayLike,
    table: npt.ArrayLike,
    *,
    start: int = 0,
    rid: str = "r",
    score: Sequence[int] | None = None,
    num_samples: int = 1,
) -> PlanRow:
    """A greedy row. ``score``: the tokens that follow the row's, for whose logprobs it asks from its first position on."""
    ids = np.array(tokens, np.int32)
    return PlanRow(
        rid=rid,
        start=start,
        tokens=ids,
        table=np.array(table, np.int32),
        sampling=SamplingParams(temperature=0.0, logprobs=3, prompt_logprobs=None if score is None else 3),
        seed=0,
        num_prompt=start + len(ids),
        num_samples=num_samples,
        prompt_logprob_start=start,
        prompt_logprob_targets=None if score is None else np.asarray(score, np.int32),
    )


def all_logits(runner: PlanRunner, rows: Sequence[PlanRow]) -> list[torch.Tensor]:
    """Float32 logits [len(row.tokens), vocab] of every token of every row, from one forward pass; writes the runner's KV."""
    with torch.inference_mode():
        batch = ForwardBatch.from_plan(StepPlan(0, tuple(rows)), runner.kv.block_size)
        hidden = runner.forward(batch)
        pieces = np.arange(batch.num_tokens)
        logits = [
            hidden.logits(pieces[first : first + runner.logits_rows]).clone()
            for first in range(0, batch.num_tokens, runner.logits_rows)
        ]
    return list(torch.split(torch.cat(logits), [len(row.tokens) for row in rows]))
