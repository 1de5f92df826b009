"""The self-test finds what would break "cold equals warm"."""

from __future__ import annotations

import pytest
import torch

from radixserve.attention import torch_paged
from radixserve.attention.tiling import chunk_blocks
from radixserve.model.torch_ops import OneDNNLinear
from radixserve.runtime.model_runner import ModelRunner
from tests.tiny_decoder import tiny_decoder


def runner(dtype: torch.dtype = torch.float32, kv_dtype: torch.dtype | None = None) -> ModelRunner:
    return ModelRunner(tiny_decoder("qwen3", dtype), num_blocks=8, block_size=16, threads=1, kv_dtype=kv_dtype)


@pytest.mark.parametrize("kv_dtype", [None, torch.int8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nothing_is_broken_here(dtype: torch.dtype, kv_dtype: torch.dtype | None) -> None:
    assert runner(dtype, kv_dtype).broken_promises() == []


def test_a_linear_that_depends_on_the_batch_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = OneDNNLinear.__call__
    monkeypatch.setattr(OneDNNLinear, "__call__", lambda self, x: honest(self, x) * (1.0001 if len(x) == 3 else 1.0))
    assert runner().broken_promises() == [
        "the qkv linear gives a row other bits among 3 rows than among 128",
        "the LM head linear gives a row other bits among 3 rows than among 128",
    ]


@pytest.mark.parametrize("planted", ["chunk depends on the batch", "garbage is not masked"])
def test_an_attention_that_depends_on_the_pieces_is_named(planted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = runner()
    if planted == "garbage is not masked":
        no_garbage: list[int] = []
        monkeypatch.setattr(torch_paged, "chunk_blocks", lambda *args: (chunk_blocks(*args)[0], no_garbage))
    else:
        honest_plan = subject.attention.plan

        def plan(batch: object) -> None:
            subject.attention._scale = 0.25 if batch.num_rows == 1 else 0.2500001  # type: ignore[attr-defined]
            honest_plan(batch)  # type: ignore[arg-type]

        monkeypatch.setattr(subject.attention, "plan", plan)
    assert subject.broken_promises() == [
        "torch_paged attention gives a token other bits when its context is computed in pieces"
    ]
