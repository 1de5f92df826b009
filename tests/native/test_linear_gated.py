"""The gated unit in one pass against its two halves by themselves."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from radixserve.native.abi import Format
from radixserve.native.library import NativeLibrary
from radixserve.native.operations import gated_linear, linear, silu_mul
from radixserve.native.packing import (
    BLOCK_ELEMENTS,
    DENSE_PANEL,
    PackedWeight,
    alternate_panels,
    pack_dense,
    pack_quantized,
)
from tests.native.steps import ALL_ISAS, run, same_bits
from tests.native.test_linear_quant import FORMATS, random_blocks

DENSE = {Format.DENSE_F32: torch.float32, Format.DENSE_BF16: torch.bfloat16}


def weight_of(form: Format, width: int, in_features: int) -> PackedWeight:
    """Random weights of a gate of ``width`` outputs and of as many that it gates."""
    if form in DENSE:
        values = torch.randn(2 * width, in_features, generator=torch.Generator().manual_seed(width))
        return pack_dense(values.to(DENSE[form]))
    return pack_quantized(form, random_blocks(form, 2 * width, in_features, seed=width), in_features)


def input_of(form: Format, rows: int, in_features: int) -> torch.Tensor:
    x = torch.randn(rows, in_features, generator=torch.Generator().manual_seed(rows))
    return x.to(DENSE.get(form, torch.float32))


@settings(deadline=None, max_examples=60)
@given(
    isa=st.sampled_from(ALL_ISAS),
    form=st.sampled_from([*DENSE, *FORMATS]),
    rows=st.integers(1, 30),
    panels=st.integers(1, 4),
    blocks=st.integers(1, 3),
    biased=st.booleans(),
    out_dtype=st.sampled_from([torch.bfloat16, torch.float32]),
)
def test_is_what_the_two_halves_give(
    isa: str, form: Format, rows: int, panels: int, blocks: int, biased: bool, out_dtype: torch.dtype
) -> None:
    """To the bit: the same tiles, the same activation; only nothing is rounded or stored in between."""
    library = NativeLibrary.load()
    library.set_isa(isa)
    width, in_features = panels * DENSE_PANEL, blocks * BLOCK_ELEMENTS.get(form, 32)
    weight, x = weight_of(form, width, in_features), input_of(form, rows, in_features)
    bias = torch.randn(2 * width, generator=torch.Generator().manual_seed(7)) if biased else None
    halves, expected = torch.empty(rows, 2 * width), torch.empty(rows, width, dtype=out_dtype)
    run(library, linear(weight, x, halves, bias=bias), rows)
    run(library, silu_mul(halves, expected), rows)
    alternate_panels(weight)
    out = torch.full((rows + 1, width + 1), 7.0, dtype=out_dtype)
    run(library, gated_linear(weight, x, out[:rows, :width], bias=bias), rows)
    assert same_bits(out[:rows, :width], expected)
    assert (out[rows:] == 7).all() and (out[:, width:] == 7).all(), "wrote outside its part"


@pytest.mark.parametrize("form", [*DENSE, *FORMATS])
def test_a_row_has_the_same_bits_in_every_batch_and_with_every_thread_count(
    library: NativeLibrary, form: Format
) -> None:
    weight, x = weight_of(form, 96, 512), input_of(form, 110, 512)
    alternate_panels(weight)
    alone = torch.empty(110, 96)
    for row in range(110):
        run(library, gated_linear(weight, x[row : row + 1], alone[row : row + 1]), 1)
    for threads in (1, 2):
        library.set_threads(threads)
        for count in (2, 7, 12, 13, 17, 110):
            out = torch.empty(count, 96)
            run(library, gated_linear(weight, x[110 - count :], out), count)
            assert same_bits(out, alone[110 - count :]), (threads, count)


def test_a_width_that_does_not_fill_panels_is_refused() -> None:
    weight, x = weight_of(Format.DENSE_F32, 48, 32), input_of(Format.DENSE_F32, 2, 32)
    with pytest.raises(AssertionError):
        gated_linear(weight, x, torch.empty(2, 48))
