"""Rotation, head norm and the paged layout, against plain torch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from radixserve.native.kv_layout import cache_shape, plain_k, plain_scales, plain_v
from radixserve.native.library import NativeLibrary
from radixserve.native.operations import rope_append
from radixserve.runtime.kv_quantization import dequantize, quantize
from tests.native.steps import ALL_ISAS, batch_of, run, same_bits


def rope_tables(positions: int, head_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    frequency = 10000.0 ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angle = torch.arange(positions, dtype=torch.float64)[:, None] * frequency
    return angle.cos().float(), angle.sin().float()


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """``x`` [T, heads, head_dim], ``cos`` and ``sin`` [T, head_dim / 2]."""
    low, high = x.double().chunk(2, dim=-1)
    c, s = cos.double()[:, None], sin.double()[:, None]
    return torch.cat([low * c - high * s, high * c + low * s], dim=-1)


@settings(deadline=None, max_examples=50)
@given(
    isa=st.sampled_from(ALL_ISAS),
    head_dim=st.sampled_from([16, 64, 80, 96, 128, 256]),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 4),
    block_size=st.sampled_from([16, 32, 64]),
    tokens=st.integers(1, 12),
    head_norm=st.booleans(),
    qkv_dtype=st.sampled_from([torch.bfloat16, torch.float32]),
    q_dtype=st.sampled_from([torch.bfloat16, torch.float32]),
    int8=st.booleans(),
    seed=st.integers(0, 100),
)
def test_against_torch(
    isa: str,
    head_dim: int,
    kv_heads: int,
    group: int,
    block_size: int,
    tokens: int,
    head_norm: bool,
    qkv_dtype: torch.dtype,
    q_dtype: torch.dtype,
    int8: bool,
    seed: int,
) -> None:
    library = NativeLibrary.load()
    library.set_isa(isa)
    generator = torch.Generator().manual_seed(seed)
    heads, num_blocks = kv_heads * group, 5
    qkv = torch.randn(tokens, (heads + 2 * kv_heads) * head_dim, generator=generator).to(qkv_dtype)
    weights = [torch.randn(head_dim, generator=generator) if head_norm else None for _ in range(2)]
    kv_dtype = torch.int8 if int8 else q_dtype
    shape = cache_shape(num_blocks, block_size, kv_heads, head_dim, kv_dtype)
    k_cache, v_cache = torch.full(shape, 3.0).to(kv_dtype), torch.full(shape, 5.0).to(kv_dtype)
    slots = torch.randperm(num_blocks * block_size, generator=generator)[:tokens]
    positions = torch.randint(0, 500, (tokens,), generator=generator)
    cos, sin = rope_tables(500, head_dim)
    q_out = torch.empty(tokens, heads * head_dim, dtype=q_dtype)
    sizes = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
    operation = rope_append(
        qkv, q_out, k_cache, v_cache, cos, sin, **sizes, q_norm=weights[0], k_norm=weights[1], eps=1e-6
    )
    run(library, operation, batch_of([0] * tokens, positions=positions.tolist(), slots=slots.tolist()))

    q, k, v = qkv.view(tokens, -1, head_dim).tensor_split([heads, heads + kv_heads], dim=1)
    expected = []
    for part, weight in ((q, weights[0]), (k, weights[1])):
        plain = part.double()
        if weight is not None:
            plain = plain / (plain.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight
        expected.append(rotated(plain, cos[positions], sin[positions]))
    tolerance = 0.01 if q_dtype == torch.bfloat16 else 1e-5
    actual_k, actual_v = plain_k(k_cache, kv_heads, head_dim), plain_v(v_cache, kv_heads, head_dim)
    torch.testing.assert_close(q_out.view_as(q).double(), expected[0], rtol=tolerance, atol=tolerance)
    others = [slot for slot in range(num_blocks * block_size) if slot not in slots.tolist()]
    if int8:
        scales = [plain_scales(cache, kv_heads, head_dim) for cache in (k_cache, v_cache)]
        integers, scale = quantize(v)
        assert torch.equal(actual_v[slots], integers) and torch.equal(scales[1][slots], scale)
        # An integer is the nearest one to a number that float32 knows to its last bits.
        error = dequantize(actual_k[slots], scales[0][slots], torch.float64) - expected[1]
        assert (error.abs() <= scales[0][slots].double().unsqueeze(-1) * 0.5 + 1e-5).all()
        torch.testing.assert_close(scales[0][slots].double(), quantize(expected[1])[1].double(), rtol=0.01, atol=0)
        for scale_of, byte in zip(scales, (3, 5), strict=True):
            assert (scale_of[others].view(torch.int16) == byte * 0x0101).all(), "wrote other scales"
    else:
        torch.testing.assert_close(actual_k[slots].double(), expected[1], rtol=tolerance, atol=tolerance)
        assert same_bits(actual_v[slots], v.to(kv_dtype))
    assert (actual_k[others] == 3).all() and (actual_v[others] == 5).all(), "wrote into other slots"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_head_that_is_not_finite_has_no_scale_and_harms_no_other(library: NativeLibrary, value: float) -> None:
    heads = kv_heads = tokens = 2
    qkv = torch.randn(tokens, 3 * heads * 16, generator=torch.Generator().manual_seed(1))
    qkv[1, 2 * 16 + 5] = value  # K of the first head
    qkv[1, 5 * 16 + 7] = value  # V of the second
    shape = cache_shape(1, 16, kv_heads, 16, torch.int8)
    k_cache, v_cache = torch.zeros(shape, dtype=torch.int8), torch.zeros(shape, dtype=torch.int8)
    cos, sin = rope_tables(2, 16)
    operation = rope_append(
        qkv, torch.empty(2, 32), k_cache, v_cache, cos, sin, heads=heads, kv_heads=kv_heads, head_dim=16
    )
    run(library, operation, batch_of([0, 0], slots=[3, 9]))
    k_scales, v_scales = (plain_scales(cache, kv_heads, 16) for cache in (k_cache, v_cache))
    assert k_scales[9].isnan().tolist() == [True, False] and v_scales[9].isnan().tolist() == [False, True]
    assert k_scales[3].isfinite().all() and v_scales[3].isfinite().all()
