"""Rows that are taken through several operations at once, against the same operations one by one."""

from __future__ import annotations

import pytest
import torch

from radixserve.native.abi import Format
from radixserve.native.kv_layout import cache_shape
from radixserve.native.library import NativeLibrary
from radixserve.native.operations import Operation, embedding, gated_linear, linear, norm, rope_append, silu_mul
from radixserve.native.packing import PackedWeight, alternate_panels, pack_dense, pack_quantized
from radixserve.native.program import Program, StepBatch
from tests.native.steps import batch_of, same_bits
from tests.native.test_linear_gated import DENSE, weight_of
from tests.native.test_linear_quant import random_blocks
from tests.native.test_rope_append import rope_tables

WIDTH, FFN, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 256, 512, 8, 2, 32, 64
QKV = (HEADS + 2 * KV_HEADS) * HEAD_DIM
MOST_ROWS = 200
FORMS = [Format.DENSE_BF16, Format.DENSE_F32, Format.Q4_1, Format.Q8_0, Format.Q6_K]
# Around where rows begin to be taken by themselves, with one, two and three threads, and around parts of 24 rows.
ROW_COUNTS = [
    1,
    2,
    5,
    6,
    7,
    8,
    9,
    10,
    12,
    15,
    16,
    17,
    23,
    24,
    25,
    31,
    32,
    33,
    47,
    48,
    49,
    63,
    64,
    65,
    95,
    96,
    97,
    MOST_ROWS,
]


def matrix(form: Format, out_features: int, in_features: int) -> PackedWeight:
    if form in DENSE:
        values = torch.randn(out_features, in_features, generator=torch.Generator().manual_seed(out_features))
        return pack_dense(values.mul(in_features**-0.5).to(DENSE[form]))
    return pack_quantized(form, random_blocks(form, out_features, in_features, seed=out_features), in_features)


class Layer:
    """A layer without its attention, every kind of operation that may be taken by rows, and what it leaves behind."""

    def __init__(self, form: Format) -> None:
        dtype = DENSE.get(form, torch.float32)

        def buffer(width: int, kind: torch.dtype = dtype) -> torch.Tensor:
            return torch.full((MOST_ROWS, width), float("nan"), dtype=kind)

        self.residual, self.delta = buffer(WIDTH, torch.float32), buffer(WIDTH, torch.float32)
        self.q, self.halves, self.narrow = buffer(HEADS * HEAD_DIM, torch.bfloat16), buffer(2 * FFN), buffer(FFN)
        hidden, inner, qkv = buffer(WIDTH), buffer(FFN), buffer(QKV)
        shape = cache_shape(-(-MOST_ROWS // 16), 16, KV_HEADS, HEAD_DIM)
        self.k, self.v = (torch.full(shape, float("nan"), dtype=torch.bfloat16) for _ in range(2))
        cos, sin = rope_tables(MOST_ROWS, HEAD_DIM)
        table = pack_dense(torch.randn(VOCAB, WIDTH, generator=torch.Generator().manual_seed(1)))
        weight = torch.rand(WIDTH, generator=torch.Generator().manual_seed(2)) + 0.5
        bias = torch.randn(WIDTH, generator=torch.Generator().manual_seed(3))
        gate_up = alternating(weight_of(form, FFN, WIDTH))
        self.operations: list[Operation] = [
            embedding(table, self.residual),
            norm(self.residual, weight, hidden, eps=1e-5),
            gated_linear(gate_up, hidden, inner),
            linear(matrix(form, WIDTH, FFN), inner, self.delta, bias=bias),
            norm(self.residual, weight, hidden, eps=1e-5, delta=self.delta, residual=self.residual),
            linear(matrix(form, 2 * FFN, WIDTH), hidden, self.halves),
            silu_mul(self.halves, self.narrow),
            linear(matrix(form, QKV, WIDTH), hidden, qkv),
            rope_append(qkv, self.q, self.k, self.v, cos, sin, heads=HEADS, kv_heads=KV_HEADS, head_dim=HEAD_DIM),
        ]

    def results(self, rows: int) -> dict[str, torch.Tensor]:
        row_wise = {name: getattr(self, name)[:rows].clone() for name in ("residual", "delta", "q", "halves", "narrow")}
        return {**row_wise, "k": self.k.clone(), "v": self.v.clone()}


def alternating(weight: PackedWeight) -> PackedWeight:
    alternate_panels(weight)
    return weight


def step_of(rows: int) -> StepBatch:
    return batch_of([row % VOCAB for row in range(rows)])


@pytest.mark.parametrize("form", FORMS)
def test_gives_the_bits_of_the_operations_one_by_one(library: NativeLibrary, form: Format) -> None:
    for threads in (1, 2, 3):
        library.set_threads(threads)
        for rows in ROW_COUNTS:
            single, whole = Layer(form), Layer(form)
            for operation in single.operations:
                Program(library, [operation]).run(step_of(rows))
            Program(library, whole.operations).run(step_of(rows))
            expected, found = single.results(rows), whole.results(rows)
            for name, tensor in expected.items():
                assert same_bits(found[name], tensor), (threads, rows, name)
            assert not expected["delta"].isnan().any(), "nothing was computed"


@pytest.mark.parametrize(
    ("form", "least"), [(Format.Q4_1, 3), (Format.Q8_0, 16), (Format.DENSE_BF16, 16), (Format.DENSE_F32, 16)]
)
def test_rows_go_by_themselves_where_each_thread_has_enough(library: NativeLibrary, form: Format, least: int) -> None:
    layer = Layer(form)
    program = Program(library, layer.operations)
    for threads in (1, 2, 3):
        library.set_threads(threads)
        for rows in (threads * least - 1, threads * least):
            library.reset_counters()
            program.run(step_of(rows))
            alone = threads > 1 and rows >= threads * least
            assert library.operations_by_rows() == (len(layer.operations) if alone else 0), (threads, rows)


def test_many_weights_want_more_rows(library: NativeLibrary) -> None:
    """Of four bits, which a thread then unpacks for itself alone."""
    width, out_features = 2048, 4096
    weight = pack_quantized(Format.Q4_0, random_blocks(Format.Q4_0, out_features, width, seed=1), width)
    x, out, half = (torch.zeros(16, columns) for columns in (width, out_features, out_features // 2))
    library.set_threads(2)
    for count, least in ((1, 3), (2, 8)):
        # Those after the first alone would be few.
        linears = [operation for _ in range(count) for operation in (linear(weight, x, out), silu_mul(out, half))]
        program = Program(library, linears)
        for rows in (2 * least - 1, 2 * least):
            library.reset_counters()
            program.run(step_of(rows))
            assert bool(library.operations_by_rows()) == (rows == 2 * least), (count, rows)


def test_rows_beyond_the_step_are_left_alone(library: NativeLibrary) -> None:
    layer = Layer(Format.Q4_1)
    Program(library, layer.operations).run(step_of(50))
    for name in ("residual", "delta", "q", "halves"):
        tensor = getattr(layer, name)
        assert tensor[50:].isnan().all() and not tensor[:50].isnan().any(), name
