"""A whole model's step as one list of operations, against the same model in plain torch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from radixserve.native.abi import Rows
from radixserve.native.kv_layout import cache_shape
from radixserve.native.library import NativeLibrary
from radixserve.native.operations import Operation, attention, embedding, linear, norm, rope_append, silu_mul, top_k
from radixserve.native.packing import PackedWeight, pack_dense
from radixserve.native.program import Program, StepBatch
from tests.native.steps import int32, same_bits
from tests.native.test_rope_append import rope_tables, rotated

VOCAB, WIDTH, HEADS, KV_HEADS, HEAD_DIM, FFN, LAYERS = 96, 64, 4, 2, 16, 128, 2
CAPACITY, BLOCKS = 64, 12


@dataclass
class Weights:
    """A random decoder: dense matrices [out, in] and norm weights."""

    dtype: torch.dtype

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(3)

        def matrix(out_features: int, in_features: int) -> torch.Tensor:
            values = torch.randn(out_features, in_features, generator=generator)
            return values.mul(float(in_features) ** -0.5).to(self.dtype)

        self.embedding = (torch.randn(VOCAB, WIDTH, generator=generator)).to(self.dtype)
        self.layers = [
            {
                "qkv": matrix((HEADS + 2 * KV_HEADS) * HEAD_DIM, WIDTH),
                "o": matrix(WIDTH, HEADS * HEAD_DIM),
                "gate_up": matrix(2 * FFN, WIDTH),
                "down": matrix(WIDTH, FFN),
            }
            for _ in range(LAYERS)
        ]
        self.norms = torch.rand(2 * LAYERS + 1, WIDTH, generator=generator) + 0.5


class Model:
    """The program of the decoder and the buffers that it works in."""

    def __init__(self, library: NativeLibrary, weights: Weights) -> None:
        dtype = weights.dtype
        packed = [{name: pack_dense(matrix) for name, matrix in layer.items()} for layer in weights.layers]
        head: PackedWeight = pack_dense(weights.embedding)  # tied: one matrix looks up and projects

        def buffer(width: int) -> torch.Tensor:
            return torch.empty(CAPACITY, width, dtype=dtype)

        residual, hidden, delta = buffer(WIDTH), buffer(WIDTH), buffer(WIDTH)
        qkv, q = buffer((HEADS + 2 * KV_HEADS) * HEAD_DIM), buffer(HEADS * HEAD_DIM)
        mixed, gate_up, act = buffer(HEADS * HEAD_DIM), buffer(2 * FFN), buffer(FFN)
        self.logits = torch.empty(CAPACITY, VOCAB)
        self.ids, values = torch.empty(CAPACITY, 1, dtype=torch.int32), torch.empty(CAPACITY, 1)
        cos, sin = rope_tables(256, HEAD_DIM)
        shape = (LAYERS, *cache_shape(BLOCKS, 16, KV_HEADS, HEAD_DIM))
        self.k, self.v = torch.full(shape, float("nan")).to(dtype), torch.full(shape, float("nan")).to(dtype)
        steps: list[Operation] = [embedding(head, residual)]
        for i, layer in enumerate(packed):
            k, v = self.k[i], self.v[i]
            if i == 0:
                steps.append(norm(residual, weights.norms[0], hidden, eps=1e-5))
            else:
                steps.append(norm(residual, weights.norms[2 * i], hidden, eps=1e-5, delta=delta, residual=residual))
            steps += [
                linear(layer["qkv"], hidden, qkv),
                rope_append(qkv, q, k, v, cos, sin, heads=HEADS, kv_heads=KV_HEADS, head_dim=HEAD_DIM),
                attention(
                    q,
                    k,
                    v,
                    mixed,
                    heads=HEADS,
                    kv_heads=KV_HEADS,
                    head_dim=HEAD_DIM,
                    block_size=16,
                    scale=HEAD_DIM**-0.5,
                ),
                linear(layer["o"], mixed, delta),
                norm(residual, weights.norms[2 * i + 1], hidden, eps=1e-5, delta=delta, residual=residual),
                linear(layer["gate_up"], hidden, gate_up),
                silu_mul(gate_up, act),
                linear(layer["down"], act, delta),
            ]
        steps += [
            norm(residual, weights.norms[-1], hidden, eps=1e-5, delta=delta, rows=Rows.WANTED),
            linear(head, hidden, self.logits, rows=Rows.WANTED),
            top_k(self.logits, self.ids, values),
        ]
        self.program = Program(library, steps)

    def step(self, rows: list[tuple[list[int], int, list[int]]]) -> torch.Tensor:
        """``rows``: (tokens to compute, first position, block table); returns the logits after each row's last token."""
        token_ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        starts, lengths = [0], []
        for tokens, first, table in rows:
            token_ids += tokens
            positions += range(first, first + len(tokens))
            slots += [table[p // 16] * 16 + p % 16 for p in range(first, first + len(tokens))]
            starts.append(len(token_ids))
            lengths.append(first + len(tokens))
        tables = np.full((len(rows), max(len(table) for _, _, table in rows)), -1, np.int32)
        for row, (_, _, table) in enumerate(rows):
            tables[row, : len(table)] = table
        self.program.run(
            StepBatch(
                token_ids=int32(token_ids),
                positions=int32(positions),
                slots=int32(slots),
                query_start=int32(starts),
                seq_lens=int32(lengths),
                tables=tables,
                wanted_rows=int32([end - 1 for end in starts[1:]]),
            )
        )
        return self.logits[: len(rows)].clone()


def reference(weights: Weights, tokens: list[int]) -> torch.Tensor:
    """Logits of every position, in fp64 on the same weights."""
    x = weights.embedding.double()[tokens]
    cos, sin = rope_tables(256, HEAD_DIM)
    count = len(tokens)
    mask = torch.ones(count, count, dtype=torch.bool).tril()

    def norm64(h: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return h / (h.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight

    for i, layer in enumerate(weights.layers):
        matrices = {name: matrix.double() for name, matrix in layer.items()}
        qkv = (norm64(x, weights.norms[2 * i]) @ matrices["qkv"].T).view(count, -1, HEAD_DIM)
        q, k, v = qkv.tensor_split([HEADS, HEADS + KV_HEADS], dim=1)
        q, k = rotated(q, cos[:count], sin[:count]), rotated(k, cos[:count], sin[:count])
        k, v = (part.repeat_interleave(HEADS // KV_HEADS, dim=1) for part in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) * HEAD_DIM**-0.5
        mixed = torch.einsum("hqk,khd->qhd", scores.masked_fill(~mask, float("-inf")).softmax(-1), v)
        x = x + mixed.reshape(count, -1) @ matrices["o"].T
        gate, up = (norm64(x, weights.norms[2 * i + 1]) @ matrices["gate_up"].T).chunk(2, dim=-1)
        x = x + (torch.nn.functional.silu(gate) * up) @ matrices["down"].T
    return norm64(x, weights.norms[-1]) @ weights.embedding.double().T


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_step_equals_the_model_in_torch(library: NativeLibrary, dtype: torch.dtype) -> None:
    weights = Weights(dtype)
    model = Model(library, weights)
    tokens = torch.randint(0, VOCAB, (40,), generator=torch.Generator().manual_seed(1)).tolist()
    expected = reference(weights, tokens)
    logits = model.step([(tokens, 0, [7, 2, 9])])
    tolerance = 0.15 if dtype == torch.bfloat16 else 1e-4
    torch.testing.assert_close(logits[0].double(), expected[-1], rtol=0, atol=tolerance)
    assert model.ids[0, 0] == logits[0].argmax()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_cold_equals_warm(library: NativeLibrary, dtype: torch.dtype) -> None:
    """A prompt alone and whole; the same over a shared prefix, in chunks, beside others, with another thread count."""
    weights = Weights(dtype)
    model = Model(library, weights)
    tokens = torch.randint(0, VOCAB, (50,), generator=torch.Generator().manual_seed(2)).tolist()
    other = [5, 9, 11]
    cold = model.step([(tokens, 0, [0, 1, 2, 3])])[0]

    library.set_threads(3)
    # The second request starts from the first one's blocks; the first one's are written in the same step.
    mixed = model.step([(other, 0, [4]), (tokens[:33], 0, [5, 6, 7]), (tokens[32:], 32, [5, 6, 8, 9])])
    assert same_bits(mixed[2], cold)
    library.set_threads(1)
    # The rest of the prompt one token at a time, over the prefix that is in place.
    for position in range(48, 50):
        warm = model.step([(tokens[position : position + 1], position, [5, 6, 8, 9]), (other[2:], 2, [4])])
    assert same_bits(warm[0], cold)


def test_one_list_gives_the_bits_of_its_operations_one_by_one(library: NativeLibrary) -> None:
    whole, single = Model(library, Weights(torch.bfloat16)), Model(library, Weights(torch.bfloat16))
    tokens = list(range(20))
    expected = whole.step([(tokens, 0, [3, 4])])
    operations = single.program.operations
    batch = StepBatch(
        token_ids=int32(tokens),
        positions=int32(tokens),
        slots=int32([3 * 16 + t for t in range(20)]),
        query_start=int32([0, 20]),
        seq_lens=int32([20]),
        tables=int32(np.array([[3, 4]])),
        wanted_rows=int32([19]),
    )
    for operation in operations:
        Program(library, [operation]).run(batch)
    assert same_bits(single.logits[:1], expected)


def test_an_empty_step_does_nothing(library: NativeLibrary) -> None:
    model = Model(library, Weights(torch.bfloat16))
    batch = StepBatch(
        token_ids=int32([]),
        positions=int32([]),
        slots=int32([]),
        query_start=int32([0]),
        seq_lens=int32([]),
        tables=np.zeros((0, 1), np.int32),
        wanted_rows=int32([]),
    )
    model.logits.fill_(2.0)
    model.program.run(batch)
    assert (model.logits == 2).all()
