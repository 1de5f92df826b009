"""Norm, activation, embedding, top-k: each against plain torch."""

from __future__ import annotations

import gguf
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from radixserve.native.abi import Format, Rows
from radixserve.native.library import NativeLibrary
from radixserve.native.operations import embedding, norm, silu_mul, top_k
from radixserve.native.packing import pack_dense, pack_quantized
from tests.native.steps import ALL_ISAS, batch_of, run, same_bits
from tests.native.test_linear_quant import FORMATS, random_blocks

DTYPES = st.sampled_from([torch.bfloat16, torch.float32])
TOLERANCE = {torch.bfloat16: 0.01, torch.float32: 2e-6}


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def rms_norm(h: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    h = h.double()
    return h / (h.square().mean(-1, keepdim=True) + eps).sqrt() * weight


@settings(deadline=None, max_examples=40)
@given(
    isa=st.sampled_from(ALL_ISAS),
    rows=st.integers(1, 70),
    width=st.integers(1, 40).map(lambda n: 16 * n),
    x_dtype=DTYPES,
    out_dtype=DTYPES,
    with_delta=st.booleans(),
    keep=st.booleans(),
)
def test_norm(
    isa: str, rows: int, width: int, x_dtype: torch.dtype, out_dtype: torch.dtype, with_delta: bool, keep: bool
) -> None:
    library = NativeLibrary.load()
    library.set_isa(isa)
    x, weight = random(rows, width).to(x_dtype), random(width, seed=1)
    delta = random(rows, width, seed=2).to(x_dtype) if with_delta else None
    h = x if delta is None else x + delta
    residual = x.clone() if keep and with_delta else None
    out = torch.empty(rows, width, dtype=out_dtype)
    run(library, norm(x if residual is None else residual, weight, out, eps=1e-5, delta=delta, residual=residual), rows)
    expected = rms_norm(h, weight, 1e-5)
    torch.testing.assert_close(out.double(), expected, rtol=TOLERANCE[out_dtype], atol=TOLERANCE[out_dtype])
    assert residual is None or same_bits(residual, h)


def test_norm_of_wanted_rows(library: NativeLibrary) -> None:
    x, delta, weight = random(9, 64), random(9, 64, seed=1), random(64, seed=2)
    out = torch.zeros(4, 64)
    run(library, norm(x, weight, out, eps=1e-6, delta=delta, rows=Rows.WANTED), batch_of([0] * 9, wanted=[8, 0, 5]))
    expected = rms_norm((x + delta)[[8, 0, 5]], weight, 1e-6)
    torch.testing.assert_close(out[:3].double(), expected, rtol=1e-5, atol=1e-5)
    assert (out[3] == 0).all()


@settings(deadline=None, max_examples=30)
@given(
    isa=st.sampled_from(ALL_ISAS),
    rows=st.integers(1, 20),
    width=st.integers(1, 30).map(lambda n: 16 * n),
    x_dtype=DTYPES,
    out_dtype=DTYPES,
)
def test_silu_mul(isa: str, rows: int, width: int, x_dtype: torch.dtype, out_dtype: torch.dtype) -> None:
    library = NativeLibrary.load()
    library.set_isa(isa)
    x = (random(rows, 2 * width) * 8).to(x_dtype)
    out = torch.empty(rows, width, dtype=out_dtype)
    run(library, silu_mul(x, out), rows)
    expected = torch.nn.functional.silu(x[:, :width].double()) * x[:, width:].double()
    torch.testing.assert_close(out.double(), expected, rtol=TOLERANCE[out_dtype], atol=1e-6)


@settings(deadline=None, max_examples=20)
@given(isa=st.sampled_from(ALL_ISAS), rows=st.integers(1, 40), width=st.sampled_from([16, 48, 512]), dtype=DTYPES)
def test_silu_mul_over_its_own_gate(isa: str, rows: int, width: int, dtype: torch.dtype) -> None:
    library = NativeLibrary.load()
    library.set_isa(isa)
    x = (random(rows, 2 * width) * 8).to(dtype)
    aside, up = torch.empty(rows, width, dtype=dtype), x[:, width:].clone()
    run(library, silu_mul(x, aside), rows)
    run(library, silu_mul(x, x[:, :width]), rows)
    assert same_bits(x[:, :width], aside) and same_bits(x[:, width:], up)


def test_silu_mul_far_out(library: NativeLibrary) -> None:
    gate = torch.tensor([-3e38, -200.0, -88.0, -0.0, 0.0, 88.0, 200.0, 3e38] * 2)
    out = torch.empty(1, 16)
    run(library, silu_mul(torch.cat([gate, torch.ones(16)])[None], out), 1)
    torch.testing.assert_close(out[0], torch.nn.functional.silu(gate), rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_embedding_of_a_dense_table(library: NativeLibrary, dtype: torch.dtype) -> None:
    table = random(50, 48).to(dtype)
    out = torch.empty(4, 48, dtype=dtype)
    run(library, embedding(pack_dense(table), out), batch_of([0, 49, 31, 32]))
    assert same_bits(out, table[[0, 49, 31, 32]])


@pytest.mark.parametrize("form", FORMATS)
def test_embedding_of_a_quantized_table(library: NativeLibrary, form: Format) -> None:
    blocks = random_blocks(form, 40, 512, seed=3)
    out = torch.empty(4, 512)
    run(library, embedding(pack_quantized(form, blocks, 512), out), batch_of([0, 39, 15, 16]))
    expected = torch.from_numpy(gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[form.name]))
    torch.testing.assert_close(out, expected[[0, 39, 15, 16]], rtol=1e-6, atol=1e-7)


@settings(deadline=None, max_examples=60)
@given(
    isa=st.sampled_from(ALL_ISAS),
    rows=st.integers(1, 5),
    vocab=st.integers(1, 200),
    k=st.integers(1, 20),
    few=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_top_k_breaks_ties_by_the_lowest_id(isa: str, rows: int, vocab: int, k: int, few: bool, seed: int) -> None:
    library = NativeLibrary.load()
    library.set_isa(isa)
    k = min(k, vocab)
    logits = random(rows, vocab, seed=seed)
    if few:  # many ties, masked tokens among them
        logits = logits.round()
        logits[logits < 0] = float("-inf")
    ids, values = torch.empty(rows, k, dtype=torch.int32), torch.empty(rows, k)
    run(library, top_k(logits, ids, values), rows)
    order = logits.sort(dim=-1, descending=True, stable=True)
    assert torch.equal(ids.long(), order.indices[:, :k])
    assert torch.equal(values, order.values[:, :k])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_top_k_of_a_row_that_is_not_finite(library: NativeLibrary, bad: float) -> None:
    logits = random(3, 100)
    logits[1, 77] = bad
    ids, values = torch.empty(3, 2, dtype=torch.int32), torch.empty(3, 2)
    run(library, top_k(logits, ids, values), 3)
    assert ids[1].tolist() == [-1, -1]
    assert values[1].isnan().all()
    assert ids[0, 0] == logits[0].argmax()
    assert ids[2, 0] == logits[2].argmax()
