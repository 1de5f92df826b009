"""Linears and element-wise operations: right, and the same bits for a row in every batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from radixserve.model import torch_ops
from radixserve.model.ops import Linear
from radixserve.model.torch_ops import OneDNNLinear, PlainLinear, TorchOps

DTYPES = (torch.float32, torch.bfloat16)
ROWS = 2048
SIZES = (*range(1, 34), 47, 63, 64, 65, 100, 127, 128, 129, 255, 256, 257, 511, 512, 1000, 1025, 2047)
# SmolLM2's own, and odd ones.
SHAPES = ((960, 576), (576, 576), (576, 1536), (33, 17), (24, 40), (1, 16))


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.fixture(params=["onednn", "plain"])
def make(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[torch.dtype], TorchOps]:
    if request.param == "plain":
        monkeypatch.setattr(torch_ops, "onednn_linears", lambda dtype: False)
    return TorchOps


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def differing(run: Callable[[slice], torch.Tensor], sizes: tuple[int, ...] = SIZES) -> list[int]:
    """Batch sizes at which some row has other bits than among all rows."""
    whole = run(slice(0, ROWS))
    return [size for size in sizes if not torch.equal(run(slice(ROWS - size, ROWS)), whole[-size:])]


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_linear_rows_do_not_depend_on_the_batch(shape: tuple[int, int], dtype: torch.dtype) -> None:
    out_features, in_features = shape
    linear = TorchOps(dtype).linear((random(*shape) / in_features**0.5).to(dtype), random(out_features, seed=3))
    x, residual = random(ROWS, in_features, seed=1).to(dtype), random(ROWS, out_features, seed=2)
    assert differing(lambda rows: linear(x[rows])) == []
    assert differing(lambda rows: linear.add(x[rows], residual[rows])) == []


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1536, 576), (72, 40), (33, 17)])
def test_gated_rows_do_not_depend_on_the_batch(shape: tuple[int, int], dtype: torch.dtype) -> None:
    gated = TorchOps(dtype).gated(*((random(*shape, seed=seed) / shape[1] ** 0.5).to(dtype) for seed in (0, 1)))
    x = random(ROWS, shape[1], seed=2).to(dtype)
    assert differing(lambda rows: gated(x[rows])) == []


@pytest.mark.usefixtures("threads")
def test_head_rows_do_not_depend_on_the_batch() -> None:
    head = TorchOps(torch.bfloat16).head((random(4096, 576) / 24).bfloat16())
    x = random(ROWS, 576, seed=1)
    assert head(x[:1]).dtype == torch.float32
    assert differing(lambda rows: head(x[rows]), (1, 2, 3, 5, 8, 16, 17, 64, 500)) == []


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [16, 24, 64])
def test_norm_and_rope_rows_do_not_depend_on_the_batch(head_dim: int, dtype: torch.dtype) -> None:
    ops = TorchOps(dtype)
    x, heads = random(ROWS, 577), random(ROWS, 5, head_dim, seed=1).to(dtype)
    weight, norm = random(577, seed=2), random(5, head_dim, seed=3)
    cos, sin = random(ROWS, head_dim, seed=4), random(ROWS, head_dim, seed=5)
    assert differing(lambda rows: ops.rms_norm(x[rows], weight, 1e-5, dtype)) == []
    assert differing(lambda rows: ops.rope(heads[rows], cos[rows], sin[rows], norm, 1e-5)) == []


@pytest.mark.parametrize("dtype", DTYPES)
def test_results(make: Callable[[torch.dtype], TorchOps], dtype: torch.dtype) -> None:
    ops = make(dtype)
    weight, up = ((random(48, 40, seed=seed) / 40**0.5).to(dtype) for seed in (0, 1))
    bias, up_bias = random(48, seed=2), random(48, seed=3)
    x, residual = random(9, 40, seed=4).to(dtype), random(9, 48, seed=5)
    exact = x.double() @ weight.double().T + bias.to(dtype).double()
    exact_up = x.double() @ up.double().T + up_bias.to(dtype).double()
    rtol, atol = (1e-5, 1e-5) if dtype == torch.float32 else (2e-2, 3e-2)

    def check(result: torch.Tensor, expected: torch.Tensor) -> None:
        assert result.dtype == dtype
        torch.testing.assert_close(result.double(), expected, rtol=rtol, atol=atol)

    linear = ops.linear(weight, bias)
    before = residual.clone()
    check(linear(x), exact)
    added = linear.add(x, residual)
    assert added.dtype == torch.float32
    torch.testing.assert_close(added.double(), exact + residual, rtol=rtol, atol=atol)
    assert torch.equal(residual, before)
    check(ops.gated(weight, up, bias, up_bias)(x), torch.nn.functional.silu(exact) * exact_up)
    check(
        ops.gated(weight, up)(x[:1]),
        torch.nn.functional.silu(x[:1].double() @ weight.double().T) * (x[:1].double() @ up.double().T),
    )
    logits = ops.head(weight)(x.float())
    torch.testing.assert_close(logits.double(), x.double() @ weight.double().T, rtol=1e-5, atol=1e-5)


def test_a_size_whose_bits_differ_is_padded_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's plain float32 linear gives one to three rows other bits than many: the floor finds and avoids them."""
    x, weight = random(64, 576, seed=1), random(576, 576) / 24
    raw = PlainLinear(weight, None, 1)
    floor = torch_ops.row_floor(False, 576, 576, torch.float32, torch.get_num_threads())
    padded = PlainLinear(weight, None, floor)
    assert floor == 1 or any(not torch.equal(raw(x[:rows]), raw(x)[:rows]) for rows in range(1, floor))
    assert all(torch.equal(padded(x[:rows]), padded(x)[:rows]) for rows in range(1, 64))


@pytest.mark.parametrize("kind", [OneDNNLinear, PlainLinear])
def test_padding_leaves_values_alone(kind: type[OneDNNLinear] | type[PlainLinear]) -> None:
    weight, x, residual = random(24, 40), random(3, 40, seed=1), random(3, 24, seed=2)
    padded: Linear = kind(weight, None, 16)
    plain: Linear = kind(weight, None, 1)
    torch.testing.assert_close(padded(x), plain(x))
    torch.testing.assert_close(padded.add(x, residual), plain.add(x, residual))
    assert padded(x).shape == (3, 24)
