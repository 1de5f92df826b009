"""The largest outputs of a linear, against the linear itself: same bits, same order, whoever computes them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from radixserve.native.abi import Format
from radixserve.native.library import NativeLibrary
from radixserve.native.operations import linear, linear_top_k
from radixserve.native.packing import BLOCK_ELEMENTS, PackedWeight, pack_dense, pack_quantized
from tests.native.steps import ALL_ISAS, run, same_bits
from tests.native.test_linear_quant import random_blocks

FORMATS = sorted(Format)


def packed(form: Format, out_features: int, in_features: int, seed: int, *, few: bool = False) -> PackedWeight:
    """A random matrix; ``few``: only two different rows, so that outputs tie."""
    count = 2 if few else out_features
    picks = np.random.default_rng(seed).integers(0, count, out_features) if few else np.arange(out_features)
    if form in BLOCK_ELEMENTS:
        return pack_quantized(form, random_blocks(form, count, in_features, seed)[picks], in_features)
    dtype = torch.bfloat16 if form is Format.DENSE_BF16 else torch.float32
    weight = torch.randn(count, in_features, generator=torch.Generator().manual_seed(seed))
    return pack_dense(weight[torch.from_numpy(picks)].to(dtype))


def inputs(weight: PackedWeight, rows: int, seed: int) -> torch.Tensor:
    dtype = torch.float32 if weight.format is Format.DENSE_F32 else torch.bfloat16
    return torch.randn(rows, weight.in_features, generator=torch.Generator().manual_seed(seed)).to(dtype)


def pick(
    library: NativeLibrary, weight: PackedWeight, x: torch.Tensor, k: int, bias: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    ids, values = torch.full((len(x), k), -9, dtype=torch.int32), torch.full((len(x), k), 9.0)
    run(library, linear_top_k(weight, x, ids, values, bias=bias), len(x))
    return ids, values


def outputs(
    library: NativeLibrary, weight: PackedWeight, x: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    out = torch.empty(len(x), weight.out_features)
    run(library, linear(weight, x, out, bias=bias), len(x))
    return out


@settings(deadline=None, max_examples=120)
@given(
    isa=st.sampled_from(ALL_ISAS),
    form=st.sampled_from(FORMATS),
    threads=st.sampled_from([1, 2, 3]),
    rows=st.integers(1, 30),
    out_features=st.integers(1, 300),
    k=st.integers(1, 40),
    few=st.booleans(),
    biased=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_equals_sorting_the_outputs_of_the_linear(
    isa: str, form: Format, threads: int, rows: int, out_features: int, k: int, few: bool, biased: bool, seed: int
) -> None:
    library = NativeLibrary.load()
    library.set_isa(isa)
    library.set_threads(threads)
    k = min(k, out_features)
    weight = packed(form, out_features, 256, seed, few=few)
    x = inputs(weight, rows, seed)
    bias = torch.arange(out_features).remainder(3).float() if biased else None
    ids, values = pick(library, weight, x, k, bias)
    expected, order = outputs(library, weight, x, bias).sort(dim=1, descending=True, stable=True)
    assert same_bits(values, expected[:, :k])
    assert torch.equal(ids.long(), order[:, :k])


@pytest.mark.parametrize("form", FORMATS)
def test_only_the_wanted_number_of_rows_is_written(library: NativeLibrary, form: Format) -> None:
    weight = packed(form, 50, 256, 1)
    ids, values = torch.full((4, 2), -9, dtype=torch.int32), torch.full((4, 2), 9.0)
    run(library, linear_top_k(weight, inputs(weight, 4, 1), ids, values), 3)
    assert (ids[:3] >= 0).all() and (ids[3] == -9).all() and (values[3] == 9).all()


@pytest.mark.parametrize("form", FORMATS)
def test_a_nan_says_so_and_harms_no_other_row(library: NativeLibrary, form: Format) -> None:
    weight = packed(form, 70, 256, 2)
    x = inputs(weight, 5, 2)
    clean = pick(library, weight, x, 3)
    x[2, 17] = float("nan")
    ids, values = pick(library, weight, x, 3)
    assert (ids[2] == -1).all() and values[2].isnan().all()
    others = [0, 1, 3, 4]
    assert torch.equal(ids[others], clean[0][others]) and same_bits(values[others], clean[1][others])


@pytest.mark.parametrize("place", [0, 37, 69])
def test_infinities_are_values_like_others_and_one_nan_is_found_among_them(library: NativeLibrary, place: int) -> None:
    weight = packed(Format.DENSE_F32, 70, 256, 3)
    x = inputs(weight, 2, 3)
    bias = torch.zeros(70)
    bias[place] = float("inf")
    ids, values = pick(library, weight, x, 2, bias)
    assert ids[:, 0].tolist() == [place] * 2 and (values[:, 0] == float("inf")).all() and values[:, 1].isfinite().all()
    bias[:] = float("-inf")
    ids, values = pick(library, weight, x, 2, bias)
    assert ids.tolist() == [[0, 1]] * 2 and (values == float("-inf")).all()
    bias[place] = float("nan")
    ids, values = pick(library, weight, x, 2, bias)
    assert (ids == -1).all() and values.isnan().all()
