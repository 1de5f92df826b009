"""Batches, caches and a whole recorded step in the shapes of SmolLM2-135M, with random weights: what the kernel measurements run on."""

from __future__ import annotations

import numpy as np
import torch

from radixserve.bench.floors import ModelCost, StepWork, attended_pairs
from radixserve.model.config import ModelConfig
from radixserve.native.abi import Format, Rows
from radixserve.native.kv_layout import cache_shape
from radixserve.native.library import NativeLibrary
from radixserve.native.operations import (
    Operation,
    attention,
    embedding,
    gated_linear,
    linear,
    linear_top_k,
    norm,
    rope_append,
)
from radixserve.native.packing import (
    BLOCK_BYTES,
    BLOCK_ELEMENTS,
    PackedWeight,
    alternate_panels,
    pack_dense,
    pack_quantized,
)
from radixserve.native.program import Program, StepBatch

MODEL = ModelConfig(
    architecture="llama",
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_layers=30,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    context_length=8192,
    tied_head=True,
)
WIDTH, FFN, ATTENDED = MODEL.hidden_size, MODEL.intermediate_size, MODEL.num_heads * MODEL.head_dim
QKV = ATTENDED + 2 * MODEL.num_kv_heads * MODEL.head_dim
LINEARS = ((QKV, WIDTH), (WIDTH, ATTENDED), (2 * FFN, WIDTH), (WIDTH, FFN))
"""Output and input widths of the matrices of a layer."""
BLOCK_SIZE = 16
SHARED_BLOCKS = 128

# (length, tokens computed, tokens of a prefix that all share) of each request.
CaseRows = list[tuple[int, int, int]]
CASES: dict[str, CaseRows] = {
    "1 decode at 1500": [(1500, 1, 0)],
    "4 decodes at 1000": [(1000, 1, 0)] * 4,
    "16 decodes at 1000": [(1000, 1, 0)] * 16,
    "16 decodes at 1000, 992 shared": [(1000, 1, 992)] * 16,
    "64 decodes at 1000": [(1000, 1, 0)] * 64,
    "64 decodes at 1000, 992 shared": [(1000, 1, 992)] * 64,
    "512 of a prompt over 1000": [(1512, 512, 0)],
    "16 decodes at 1000 + 256 of a prompt over 1000": [(1256, 256, 0)] + [(1000, 1, 0)] * 16,
}
MOST_TOKENS = max(sum(count for _, count, _ in rows) for rows in CASES.values())
MOST_ROWS = max(map(len, CASES.values()))
NUM_BLOCKS = SHARED_BLOCKS + max(sum(-(-length // BLOCK_SIZE) for length, _, _ in rows) for rows in CASES.values())


def step_batch(rows: CaseRows, seed: int = 0) -> StepBatch:
    """The batch of a case; blocks are scattered over the cache."""
    free = np.random.default_rng(seed).permutation(NUM_BLOCKS).tolist()
    shared = [free.pop() for _ in range(SHARED_BLOCKS)]
    tables = np.zeros((len(rows), max(-(-length // BLOCK_SIZE) for length, _, _ in rows)), np.int32)
    positions: list[int] = []
    slots: list[int] = []
    starts = [0]
    for row, (length, count, prefix) in enumerate(rows):
        own = -(-length // BLOCK_SIZE) - prefix // BLOCK_SIZE
        table = shared[: prefix // BLOCK_SIZE] + [free.pop() for _ in range(own)]
        tables[row, : len(table)] = table
        positions += range(length - count, length)
        slots += [table[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE for p in range(length - count, length)]
        starts.append(len(positions))
    return StepBatch(
        token_ids=np.zeros(len(positions), np.int32),
        positions=np.array(positions, np.int32),
        slots=np.array(slots, np.int32),
        query_start=np.array(starts, np.int32),
        seq_lens=np.array([length for length, _, _ in rows], np.int32),
        tables=tables,
        wanted_rows=np.array(starts[1:], np.int32) - 1,
    )


def case_work(rows: CaseRows) -> StepWork:
    """The work of a case; prefixes are whole blocks of one text."""
    shared = max(prefix for _, _, prefix in rows) // BLOCK_SIZE * BLOCK_SIZE
    return StepWork(
        tokens=sum(count for _, count, _ in rows),
        sampled=len(rows),
        pairs=sum(attended_pairs(length - count, count) for length, count, _ in rows),
        kv_tokens=shared + sum(length - prefix // BLOCK_SIZE * BLOCK_SIZE for length, _, prefix in rows),
    )


def random_caches() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """K and V of all layers, filled."""
    shape = cache_shape(NUM_BLOCKS, BLOCK_SIZE, MODEL.num_kv_heads, MODEL.head_dim)
    k, v = ([torch.randn(shape).bfloat16() for _ in range(MODEL.num_layers)] for _ in range(2))
    return k, v


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor) -> Operation:
    """Attention of one layer."""
    return attention(
        q,
        k,
        v,
        out,
        heads=MODEL.num_heads,
        kv_heads=MODEL.num_kv_heads,
        head_dim=MODEL.head_dim,
        block_size=BLOCK_SIZE,
        scale=MODEL.head_dim**-0.5,
    )


def random_quantized(form: Format, out_features: int, in_features: int) -> PackedWeight:
    """A matrix of a quantized format, of random bytes."""
    size = in_features // BLOCK_ELEMENTS[form] * BLOCK_BYTES[form]
    blocks = np.random.default_rng(0).integers(0, 60, (out_features, size), dtype=np.uint8)
    return pack_quantized(form, blocks, in_features)


class RecordedStep:
    """The model's step with greedy choice as one program: bf16, or Q4_1 with a Q8_0 head and int8 activations."""

    def __init__(self, library: NativeLibrary, *, quantized: bool) -> None:
        self._quantized = quantized
        # What quantized linears read is rounded once: to their own int8, not to bf16 before.
        dtype = torch.float32 if quantized else torch.bfloat16

        def buffer(width: int, kind: torch.dtype = dtype) -> torch.Tensor:
            return torch.zeros(MOST_TOKENS, width, dtype=kind)

        residual, delta = buffer(WIDTH, torch.float32), buffer(WIDTH, torch.float32)
        hidden, qkv, q, mixed = (
            buffer(WIDTH),
            buffer(QKV),
            buffer(ATTENDED, torch.bfloat16),
            buffer(ATTENDED, torch.bfloat16),
        )
        inner = buffer(FFN)
        ids, values = torch.empty(MOST_ROWS, 1, dtype=torch.int32), torch.empty(MOST_ROWS, 1)
        scale, table = torch.ones(WIDTH), torch.ones(2048, MODEL.head_dim // 2)
        head = self._weight(MODEL.vocab_size, WIDTH, Format.Q8_0)
        self.layer_bytes, self.head_bytes = 0, head.nbytes
        steps = [embedding(head, residual)]
        for layer, (k, v) in enumerate(zip(*random_caches(), strict=True)):
            weights = [self._weight(*shape) for shape in LINEARS]
            alternate_panels(weights[2])
            self.layer_bytes += sum(weight.nbytes for weight in weights)
            steps += [
                norm(
                    residual,
                    scale,
                    hidden,
                    eps=1e-5,
                    delta=delta if layer else None,
                    residual=residual if layer else None,
                ),
                linear(weights[0], hidden, qkv),
                rope_append(
                    qkv,
                    q,
                    k,
                    v,
                    table,
                    table,
                    heads=MODEL.num_heads,
                    kv_heads=MODEL.num_kv_heads,
                    head_dim=MODEL.head_dim,
                ),
                attend(q, k, v, mixed),
                linear(weights[1], mixed, delta),
                norm(residual, scale, hidden, eps=1e-5, delta=delta, residual=residual),
                gated_linear(weights[2], hidden, inner),
                linear(weights[3], inner, delta),
            ]
        steps += [
            norm(residual, scale, hidden, eps=1e-5, delta=delta, rows=Rows.WANTED),
            linear_top_k(head, hidden, ids, values),
        ]
        self.program = Program(library, steps)

    @property
    def cost(self) -> ModelCost:
        """What its steps cost."""
        if not self._quantized:
            return ModelCost.dense(MODEL)
        return ModelCost.stored(MODEL, layer_bytes=self.layer_bytes, head_bytes=self.head_bytes)

    def _weight(self, out_features: int, in_features: int, form: Format = Format.Q4_1) -> PackedWeight:
        if self._quantized:
            return random_quantized(form, out_features, in_features)
        return pack_dense((torch.randn(out_features, in_features) * 0.02).bfloat16())
