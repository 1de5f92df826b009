"""Logits of the decoder against ``transformers`` on the same random weights, in float32."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from radixserve.model.config import Architecture, RopeScaling
from radixserve.runtime.model_runner import ModelRunner
from tests.model.transformers_model import transformers_model
from tests.tiny_decoder import ARCHITECTURES, all_logits, plan_row, tiny_decoder

TOLERANCE = 1e-3
LENGTH = 300

VARIANTS: list[tuple[Architecture, dict[str, Any]]] = [
    *((architecture, {}) for architecture in ARCHITECTURES),
    ("llama", {"rope_scaling": RopeScaling("linear", factor=4.0)}),
    ("llama", {"rope_scaling": RopeScaling("llama3", 8.0, 1.0, 4.0, original_context=64), "rope_theta": 5e5}),
    ("llama", {"bias_qkv": True, "bias_o": True, "bias_mlp": True, "tied_head": True}),
    ("llama", {"num_kv_heads": 6}),
    ("qwen3", {"sliding_window": 50, "sliding_layers": (1,), "head_dim": 24}),
]


@pytest.mark.parametrize(("architecture", "changes"), VARIANTS)
def test_logits_equal_transformers(architecture: Architecture, changes: dict[str, Any]) -> None:
    model = tiny_decoder(architecture, **changes)
    tokens = torch.randint(model.config.vocab_size, (LENGTH,), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        expected = transformers_model(model.config, model.weights)(tokens[None]).logits[0]
    runner = ModelRunner(model, num_blocks=32, block_size=16)
    (logits,) = all_logits(runner, [plan_row(tokens.tolist(), range(19))])
    assert expected.std() > 0.5, "the comparison needs logits that are not degenerate"
    assert (logits - expected).abs().max() < TOLERANCE
    assert torch.equal(logits.argmax(-1), expected.argmax(-1))
