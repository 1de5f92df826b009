"""What the GPU's backend says it cannot do, and who is chosen instead. Needs neither FlashInfer nor a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from radixserve.attention.flashinfer import backend
from radixserve.attention.flashinfer.backend import FP8, FlashInferAttention
from radixserve.attention.registry import create_attention
from radixserve.attention.torch_paged import TorchPagedAttention
from radixserve.errors import ConfigError
from tests.tiny_decoder import tiny_config


@pytest.mark.parametrize(
    ("changes", "arguments", "reasons"),
    [
        ({}, ("cuda", torch.bfloat16), []),
        ({}, ("cuda", torch.float16, FP8), []),
        ({"attention_soft_cap": 30.0, "sliding_window": 100}, ("cuda", torch.bfloat16), []),
        ({}, ("cpu", torch.bfloat16), ["flashinfer runs on NVIDIA GPUs, not on cpu"]),
        ({}, ("cuda", torch.float32), ["flashinfer computes in bfloat16 or float16, not in torch.float32"]),
        (
            {},
            ("cuda", torch.bfloat16, torch.float16),
            ["flashinfer stores KV in torch.bfloat16 or torch.float8_e4m3fn, not in torch.float16"],
        ),
        (
            {"head_dim": 80},
            ("cuda", torch.bfloat16),
            ["flashinfer has kernels for heads of 64, 128 and 256, not of 80"],
        ),
    ],
)
def test_reasons(
    changes: dict[str, Any], arguments: tuple[Any, ...], reasons: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "missing", lambda device: [])
    assert FlashInferAttention.supports(tiny_config("llama", **{"head_dim": 64, **changes}), *arguments) == reasons


def test_what_is_missing_on_the_machine_is_among_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "missing", lambda device: [f"no {device}"])
    assert FlashInferAttention.supports(tiny_config("llama", head_dim=64), "cuda", torch.bfloat16) == ["no cuda"]


@pytest.mark.parametrize("name", ["auto", "flashinfer"])
def test_a_gpu_is_served_by_flashinfer_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "missing", lambda device: ["no GPU"])
    with pytest.raises(ConfigError, match=r"^attention: flashinfer has kernels for heads .* not of 16; no GPU$"):
        create_attention(name, tiny_config("llama"), block_size=16, dtype=torch.bfloat16, device=torch.device("cuda"))


def test_torch_paged_refuses_what_it_does_not_do() -> None:
    config = tiny_config("llama", attention_soft_cap=30.0)
    assert TorchPagedAttention.supports(config, "cpu", torch.bfloat16, FP8) == [
        "torch_paged stores KV in torch.bfloat16 or int8, not in torch.float8_e4m3fn",
        "torch_paged has no soft cap of attention scores",
    ]
