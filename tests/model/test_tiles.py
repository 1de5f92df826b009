"""Products in calls of one shape. Needs neither FlashInfer nor a GPU."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from radixserve.model.flashinfer_ops import TILE_ROWS, DenseLinear, WideHead, in_tiles

SIZES = (1, 2, 7, TILE_ROWS - 1, TILE_ROWS, TILE_ROWS + 1, 3 * TILE_ROWS + 5)


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("rows", SIZES)
def test_every_call_is_of_one_shape_and_no_row_is_lost(rows: int) -> None:
    shapes = []

    def run(x: torch.Tensor) -> torch.Tensor:
        assert x.is_contiguous()
        shapes.append(tuple(x.shape))
        return 2 * x[:, :3]

    x = numbers(rows, 5)
    assert torch.equal(in_tiles(run, x), 2 * x[:, :3])
    assert shapes == [(TILE_ROWS, 5)] * -(-rows // TILE_ROWS)


def test_a_row_has_the_same_bits_in_every_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a product that is as bad as can be: its bits depend on the number of rows. (That they do not on a row's place is for
    the self-test to see.)
    """
    product = functional.linear

    def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return product(x, weight, bias) + 1e-3 * len(x)

    x, weight, bias = numbers(400, 48), numbers(20, 48), numbers(20)
    plain = DenseLinear(weight, bias)(x)
    monkeypatch.setattr("radixserve.model.flashinfer_ops.functional.linear", linear)
    tiled, untiled = DenseLinear(weight, bias, tiled=True), DenseLinear(weight, bias)
    whole = tiled(x)
    assert (whole - plain).abs().max() < 0.2
    for rows in SIZES:
        assert torch.equal(tiled(x[:rows]), whole[:rows])
    assert not torch.equal(untiled(x[:7]), untiled(x)[:7]), "the fault shows where nothing is done about it"


def test_the_head_is_tiled_likewise() -> None:
    x, weight = numbers(200, 48), numbers(60, 48).to(torch.bfloat16)
    whole = WideHead(weight, tiled=True)(x)
    assert whole.dtype == torch.float32 and whole.shape == (200, 60)
    assert torch.allclose(whole, WideHead(weight)(x), atol=1e-4)
