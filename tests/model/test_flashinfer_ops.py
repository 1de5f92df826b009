"""The GPU's arithmetic through FlashInfer's Python layer, its kernels replaced by references. Skipped without it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional

from radixserve.attention.torch_paged import TorchPagedAttention
from radixserve.model.config import Architecture
from radixserve.model.decoder import Decoder
from radixserve.model.flashinfer_ops import FlashInferOps
from radixserve.model.ops import Ops
from radixserve.model.torch_ops import TorchOps
from radixserve.runtime.bit_promise import broken_promises
from radixserve.runtime.forward_batch import ForwardBatch
from radixserve.runtime.kv_store import KVStore
from radixserve.scheduler.plan import StepPlan
from tests.tiny_decoder import ARCHITECTURES, TinyDecoder, plan_row, tiny_decoder

pytest.importorskip("flashinfer", reason="FlashInfer is not installed: make test-contract installs it")
CPU = torch.device("cpu")


def rmsnorm(out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float, pdl: bool) -> None:
    assert x.dtype == weight.dtype == out.dtype, "the kernel reads the weight as numbers of its input's type"
    out.copy_(functional.rms_norm(x.float(), weight.shape, weight.float(), eps))


def fused_add_rmsnorm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, pdl: bool) -> None:
    assert x.dim() == residual.dim() == 2
    residual.copy_(residual.float() + x.float())
    rmsnorm(x, residual, weight, eps, pdl)


def silu_and_mul(out: torch.Tensor, x: torch.Tensor, pdl: bool) -> None:
    gate, up = x.float().chunk(2, -1)
    out.copy_(functional.silu(gate) * up)


def rotate(
    q: torch.Tensor,
    k: torch.Tensor,
    q_out: torch.Tensor,
    k_out: torch.Tensor,
    table: torch.Tensor,
    positions: torch.Tensor,
    interleave: bool,
) -> None:
    assert not interleave
    assert table.dtype == torch.float32 and table.is_contiguous()
    cos, sin = table[positions.long()].chunk(2, -1)
    for heads, out in ((q, q_out), (k, k_out)):
        first, second = heads.float().chunk(2, -1)
        c, s = cos[:, None], sin[:, None]
        out.copy_(torch.cat((first * c - second * s, second * c + first * s), -1))


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    import flashinfer.activation
    import flashinfer.norm
    import flashinfer.rope

    norms = SimpleNamespace(rmsnorm=rmsnorm, fused_add_rmsnorm=fused_add_rmsnorm)
    monkeypatch.setattr(flashinfer.norm, "_use_cuda_norm", lambda device: True)
    monkeypatch.setattr(flashinfer.norm, "get_norm_module", lambda: norms)
    monkeypatch.setattr(
        flashinfer.activation, "get_act_and_mul_module", lambda name: SimpleNamespace(silu_and_mul=silu_and_mul)
    )
    monkeypatch.setattr(
        flashinfer.rope, "get_rope_module", lambda: SimpleNamespace(apply_rope_pos_ids_cos_sin_cache=rotate)
    )


def logits(model: TinyDecoder, weights: dict[str, torch.Tensor], ops: Ops) -> torch.Tensor:
    """Logits of two rows at different positions, by the whole decoder over torch_paged."""
    config, dtype = model.config, weights["embed"].dtype
    decoder = Decoder(config, weights, ops)
    kv = KVStore(config, num_blocks=8, block_size=16, dtype=dtype, device=CPU)
    attention = TorchPagedAttention(config, block_size=16, dtype=dtype)
    with torch.inference_mode():
        for rows in (
            (plan_row([3, 1, 4, 1, 5], [0]), plan_row(range(2, 22), [1, 2])),
            (plan_row([9, 2], [0], start=5), plan_row([6], [1, 2], start=20)),
        ):
            hidden = decoder.forward(ForwardBatch.from_plan(StepPlan(0, rows), 16), attention, kv)
        return decoder.logits(hidden)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_whole_decoder_agrees_with_the_cpus(architecture: Architecture, deterministic: bool) -> None:
    model = tiny_decoder(architecture, torch.bfloat16)
    halves = logits(model, model.weights, FlashInferOps(torch.bfloat16, deterministic=deterministic))
    exact = logits(model, {name: each.float() for name, each in model.weights.items()}, TorchOps(torch.float32))
    assert halves.dtype == torch.float32
    usual = (logits(model, model.weights, TorchOps(torch.bfloat16)) - exact).abs().max()
    # The residual stream is rounded after every block, so a little more is lost than on the CPU.
    assert (halves - exact).abs().max() < max(4 * float(usual), 0.05)


@pytest.mark.parametrize("deterministic", [False, True])
def test_the_self_test_sees_products_that_depend_on_the_batch(
    deterministic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU's library takes another kernel for another number of rows; in tiles it never sees another."""
    product = functional.linear

    def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return product(x, weight, bias) * (1 + 0.01 * (len(x) % 7))

    monkeypatch.setattr("radixserve.model.flashinfer_ops.functional.linear", linear)
    model = tiny_decoder("qwen3", torch.bfloat16)
    decoder = Decoder(model.config, model.weights, FlashInferOps(torch.bfloat16, deterministic=deterministic))
    attention = TorchPagedAttention(model.config, block_size=16, dtype=torch.bfloat16)
    reasons = broken_promises(decoder, attention, 16, torch.bfloat16, CPU)
    found = [
        name for name in ("qkv", "o", "gate and up", "down") if any(f"the {name} linear" in each for each in reasons)
    ]
    assert found == ([] if deterministic else ["qkv", "o", "gate and up", "down"])


def test_neither_weights_nor_a_first_residual_are_changed() -> None:
    model = tiny_decoder("llama", torch.bfloat16)
    before = {name: each.clone() for name, each in model.weights.items()}
    logits(model, model.weights, FlashInferOps(torch.bfloat16))
    assert all(torch.equal(before[name], each) for name, each in model.weights.items())


def test_a_table_of_one_step_is_not_used_for_the_next() -> None:
    ops = FlashInferOps(torch.float16)
    heads = torch.ones(2, 3, 8, dtype=torch.float16)

    def turned(angle: float) -> torch.Tensor:
        cos, sin = torch.full((2, 8), angle).cos(), torch.full((2, 8), angle).sin()
        sin[:, :4] *= -1
        return ops.rope(heads.clone(), cos, sin, None, 1e-5)

    for angle in (0.1, 0.7):
        expected = torch.full((4,), angle).cos() - torch.full((4,), angle).sin()
        assert torch.allclose(turned(angle)[0, 0, :4].float(), expected, atol=1e-3)


def test_an_odd_dtype_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    ops: Any = FlashInferOps(torch.bfloat16)
    x, weight = torch.randn(3, 8), torch.rand(8)
    monkeypatch.setattr(ops, "_library", None)
    normed = ops.rms_norm(x, weight, 1e-5, torch.float32)
    assert torch.allclose(normed, functional.rms_norm(x, (8,), weight, 1e-5))
