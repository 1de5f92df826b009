"""Packed bf16 and fp32 linears against torch, and their promise of bits."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from radixserve.native.abi import Rows
from radixserve.native.library import NativeLibrary
from radixserve.native.operations import linear
from radixserve.native.packing import pack_dense
from tests.native.steps import ALL_ISAS, batch_of, run, same_bits

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def random(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@settings(deadline=None, max_examples=40)
@given(
    isa=st.sampled_from(ALL_ISAS),
    kind=st.sampled_from(sorted(DTYPES)),
    rows=st.integers(1, 40),
    out_features=st.integers(1, 140),
    in_groups=st.integers(1, 12),
    bias=st.booleans(),
    out_dtype=st.sampled_from([torch.bfloat16, torch.float32]),
)
def test_equals_torch_at_every_shape(
    isa: str, kind: str, rows: int, out_features: int, in_groups: int, bias: bool, out_dtype: torch.dtype
) -> None:
    library = NativeLibrary.load()
    library.set_isa(isa)
    width = 16 * in_groups
    x, weight = random((rows, width), DTYPES[kind], 1), random((out_features, width), DTYPES[kind], 2)
    offset = random((out_features,), torch.float32, 3) if bias else None
    out = torch.full((rows + 1, out_features + 3), 7.0).to(out_dtype)
    run(library, linear(pack_dense(weight), x, out[:rows, :out_features], bias=offset), rows)
    expected = torch.nn.functional.linear(x.double(), weight.double(), None if offset is None else offset.double())
    tolerance = 1e-5 if out_dtype == torch.float32 else 0.01
    torch.testing.assert_close(out[:rows, :out_features].double(), expected, rtol=tolerance, atol=tolerance * 4)
    assert (out[rows:] == 7).all() and (out[:, out_features:] == 7).all(), "wrote outside its part"


@pytest.mark.parametrize("kind", sorted(DTYPES))
def test_a_row_has_the_same_bits_in_every_batch_and_with_every_thread_count(library: NativeLibrary, kind: str) -> None:
    width, out_features, most = 192, 200, 50 if library.isa == "generic" else 300
    x, weight = random((most, width), DTYPES[kind], 4), random((out_features, width), DTYPES[kind], 5)
    packed = pack_dense(weight)
    alone = torch.empty(most, out_features)
    for row in range(most):
        run(library, linear(packed, x[row : row + 1], alone[row : row + 1]), 1)
    for threads in (1, 2, 3):
        library.set_threads(threads)
        for count in (2, 3, 5, 7, 12, 13, 16, 25, most):
            out = torch.empty(count, out_features)
            run(library, linear(packed, x[most - count :], out), count)
            assert same_bits(out, alone[most - count :]), (threads, count)


def test_wanted_rows_decides_how_many_rows_there_are(library: NativeLibrary) -> None:
    x, weight = random((6, 32), torch.float32, 6), random((8, 32), torch.float32, 7)
    out = torch.zeros(6, 8)
    run(library, linear(pack_dense(weight), x, out, rows=Rows.WANTED), batch_of([0] * 6, wanted=[4, 5]))
    torch.testing.assert_close(out[:2], x[:2] @ weight.T, rtol=1e-5, atol=1e-5)
    assert (out[2:] == 0).all()


def test_a_row_that_is_not_finite_stays_alone(library: NativeLibrary) -> None:
    x, weight = random((5, 64), torch.bfloat16, 8), random((40, 64), torch.bfloat16, 9)
    packed, clean, dirty = pack_dense(weight), torch.empty(5, 40), torch.empty(5, 40)
    run(library, linear(packed, x, clean), 5)
    x[2, 3] = float("nan")
    run(library, linear(packed, x, dirty), 5)
    assert dirty[2].isnan().all()
    others = [0, 1, 3, 4]
    assert same_bits(dirty[others], clean[others])
