"""Quantized linears against the gguf package's dequantization and an exact reference of the int8 arithmetic."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from radixserve.native.abi import Format
from radixserve.native.library import NativeLibrary
from radixserve.native.operations import linear
from radixserve.native.packing import BLOCK_BYTES, BLOCK_ELEMENTS, Bytes, PackedWeight, pack_quantized
from tests.native.steps import ALL_ISAS, run, same_bits

FORMATS = sorted(BLOCK_BYTES)
# Where a block keeps its half-precision scales.
HALVES = {
    Format.Q8_0: (0,),
    Format.Q4_0: (0,),
    Format.Q4_1: (0, 2),
    Format.Q4_K: (0, 2),
    Format.Q6_K: (208,),
}


def random_blocks(form: Format, out_features: int, in_features: int, seed: int) -> Bytes:
    """Blocks of any bits but for the scales, which are ordinary numbers."""
    rng = np.random.default_rng(seed)
    per_row = in_features // BLOCK_ELEMENTS[form]
    blocks = rng.integers(0, 256, (out_features, per_row, BLOCK_BYTES[form]), dtype=np.uint8)
    for place in HALVES[form]:
        scale = (rng.standard_normal((out_features, per_row, 1)) * 0.01).astype(np.float16)
        blocks[:, :, place : place + 2] = scale.view(np.uint8)
    return blocks.reshape(out_features, -1)


def dequantized(form: Format, blocks: Bytes) -> torch.Tensor:
    return torch.from_numpy(gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[form.name]).astype(np.float64))


def rounded(x: torch.Tensor) -> torch.Tensor:
    """``x`` after rounding to int8: one scale for each row and 16 elements, the row's unit times a whole number up to 2^14 of six bits."""
    groups = x.float().reshape(len(x), -1, 16)
    most = 2.0**14
    largest = groups.abs().amax((1, 2), keepdim=True).clamp(min=1e-30)
    unit = largest / 127 / most
    mantissa, exponent = torch.frexp(groups.abs().amax(-1, keepdim=True) * (most / largest))
    times = torch.ldexp((mantissa * 64).ceil() / 64, exponent).ceil().clamp(1, most)
    quants = (groups * (1 / (unit * times))).round().clamp(-127, 127)
    return (quants.double() * unit.double() * times.double()).reshape(len(x), -1)


def case(
    form: Format, rows: int, out_features: int, in_features: int
) -> tuple[PackedWeight, torch.Tensor, torch.Tensor]:
    blocks = random_blocks(form, out_features, in_features, seed=rows)
    x = torch.randn(rows, in_features, generator=torch.Generator().manual_seed(rows))
    return pack_quantized(form, blocks, in_features), x, dequantized(form, blocks)


@settings(deadline=None, max_examples=60)
@given(
    isa=st.sampled_from(ALL_ISAS),
    form=st.sampled_from(FORMATS),
    rows=st.integers(1, 30),
    out_features=st.integers(1, 70),
    blocks=st.integers(1, 4),
    x_dtype=st.sampled_from([torch.bfloat16, torch.float32]),
)
def test_equals_the_reference_at_every_shape(
    isa: str, form: Format, rows: int, out_features: int, blocks: int, x_dtype: torch.dtype
) -> None:
    library = NativeLibrary.load()
    library.set_isa(isa)
    packed, x, weight = case(form, rows, out_features, blocks * BLOCK_ELEMENTS[form])
    x = x.to(x_dtype)
    out = torch.full((rows + 1, out_features + 1), 7.0)
    run(library, linear(packed, x, out[:rows, :out_features]), rows)
    expected = rounded(x) @ weight.T
    scale = (rounded(x).abs() @ weight.T.abs()).clamp(min=1e-30)
    assert ((out[:rows, :out_features] - expected).abs() / scale).max() < 2e-6
    assert (out[rows:] == 7).all() and (out[:, out_features:] == 7).all(), "wrote outside its part"


@pytest.mark.parametrize("form", FORMATS)
def test_is_near_the_dequantized_matrix(library: NativeLibrary, form: Format) -> None:
    packed, x, weight = case(form, 8, 64, 512)
    out = torch.empty(8, 64)
    run(library, linear(packed, x, out), 8)
    expected = x.double() @ weight.T
    assert ((out - expected).norm() / expected.norm()) < 0.01


@pytest.mark.parametrize("form", FORMATS)
def test_a_row_has_the_same_bits_in_every_batch_and_with_every_thread_count(
    library: NativeLibrary, form: Format
) -> None:
    packed, x, _ = case(form, 110, 72, 512)
    alone = torch.empty(110, 72)
    for row in range(110):
        run(library, linear(packed, x[row : row + 1], alone[row : row + 1]), 1)
    for threads in (1, 2):
        library.set_threads(threads)
        for count in (2, 3, 7, 12, 13, 16, 17, 110):
            out = torch.empty(count, 72)
            run(library, linear(packed, x[110 - count :], out), count)
            assert same_bits(out, alone[110 - count :]), (threads, count)


def test_all_instruction_sets_agree_on_the_integers() -> None:
    """With powers of two as scales nothing is rounded but the sum of groups: one group gives equal bits everywhere."""
    library = NativeLibrary.load()
    blocks = random_blocks(Format.Q4_0, 16, 32, seed=1)
    blocks.reshape(16, 1, 18)[:, :, :2] = np.full((16, 1, 1), 0.25, np.float16).view(np.uint8)
    x = torch.randint(-127, 128, (3, 32), generator=torch.Generator().manual_seed(2)).float()
    x[:, ::16] = 127
    results = []
    for isa in ALL_ISAS:
        library.set_isa(isa)
        out = torch.empty(3, 16)
        run(library, linear(pack_quantized(Format.Q4_0, blocks, 32), x, out), 3)
        results.append(out)
    expected = x.double() @ dequantized(Format.Q4_0, blocks).T
    for out in results:
        assert torch.equal(out.double(), expected)


@pytest.mark.parametrize("isa", ALL_ISAS)
@pytest.mark.parametrize("form", FORMATS)
def test_outliers_cost_only_the_sixteen_beside_them(isa: str, form: Format) -> None:
    """One number a thousand times the others, and one whose neighbours are less than the least scale can say."""
    library = NativeLibrary.load()
    library.set_isa(isa)
    packed, x, weight = case(form, 4, 48, 512)
    x[1, 70], x[2, 300] = 3e3, -3e9
    out = torch.empty(4, 48)
    run(library, linear(packed, x, out), 4)
    scale = (rounded(x).abs() @ weight.T.abs()).clamp(min=1e-30)
    assert ((out - rounded(x) @ weight.T).abs() / scale).max() < 2e-6
    beside = torch.ones(512, dtype=torch.bool)
    beside[64:80] = False
    assert (rounded(x)[1, beside] - x[1, beside]).abs().max() < 0.02


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("form", FORMATS)
def test_a_row_that_is_not_finite_says_so(library: NativeLibrary, form: Format, value: float) -> None:
    packed, x, _ = case(form, 4, 20, 256)
    clean, dirty = torch.empty(4, 20), torch.empty(4, 20)
    run(library, linear(packed, x, clean), 4)
    x[1, 40] = value
    run(library, linear(packed, x, dirty), 4)
    assert dirty[1].isnan().all()
    assert same_bits(dirty[[0, 2, 3]], clean[[0, 2, 3]])


def test_a_row_of_zeros_gives_zeros(library: NativeLibrary) -> None:
    packed, _, _ = case(Format.Q4_1, 2, 20, 64)
    out = torch.full((1, 20), 5.0)
    run(library, linear(packed, torch.zeros(1, 64), out), 1)
    assert (out == 0).all()
