"""Rounding of K and V to int8."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from radixserve.runtime.kv_quantization import dequantize, quantize


def heads(seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(50, 3, 64, generator=torch.Generator().manual_seed(seed)).to(dtype)


@given(seed=st.integers(0, 1000), power=st.integers(-100, 100), dtype=st.sampled_from([torch.float32, torch.bfloat16]))
def test_the_error_is_at_most_half_a_step(seed: int, power: int, dtype: torch.dtype) -> None:
    x = heads(seed, dtype) * 2.0**power
    q, scale = quantize(x)
    assert q.shape == x.shape and scale.shape == x.shape[:-1]
    error = (dequantize(q, scale, torch.float64) - x.double()).abs()
    assert (error <= 0.5000001 * scale.double().unsqueeze(-1)).all()
    assert q.abs().amax() == 127


def test_scales_are_the_next_number_of_bf16() -> None:
    x = heads()
    _, scale = quantize(x)
    exact = x.abs().amax(-1) / 127.0
    below = (scale.view(torch.int16) - 1).view(torch.bfloat16)
    assert (scale.float() >= exact).all() and (below.float() < exact).all()


def test_a_token_is_rounded_alone() -> None:
    x = heads()
    q, scale = quantize(x)
    alone = [quantize(x[index : index + 1]) for index in range(len(x))]
    assert torch.equal(torch.cat([part for part, _ in alone]), q)
    assert torch.equal(torch.cat([part for _, part in alone]), scale)


@pytest.mark.parametrize("value", [0.0, 1e-38, 1e-45])
def test_what_is_too_small_for_a_scale_is_zero(value: float) -> None:
    q, scale = quantize(torch.full((1, 2, 16), value))
    assert (dequantize(q, scale, torch.float32) == 0).all()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_head_that_is_not_finite_is_nan_and_harms_no_other(value: float) -> None:
    x = heads()
    x[7, 1, 9] = value
    numbers = dequantize(*quantize(x), dtype=torch.float32)
    assert numbers[7, 1].isnan().all()
    numbers[7, 1] = 0.0
    assert numbers.isfinite().all()
