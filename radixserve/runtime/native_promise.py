"""A short self-test of the native kernels: can they keep "cold equals warm" here?

The kernels are written so that a row's bits depend on the tokens before it alone, and their tests hold them to it. This
looks once more, with the model's own first layer and head, at the machine and the instruction set that really run.
"""

from __future__ import annotations

import numpy as np
import torch

from radixserve.messages import SamplingParams
from radixserve.model.config import ModelConfig
from radixserve.native.library import NativeLibrary
from radixserve.runtime.block_store import BlockStore
from radixserve.runtime.forward_batch import ForwardBatch
from radixserve.runtime.native_decoder import NativeDecoder
from radixserve.runtime.native_weights import NativeWeights
from radixserve.runtime.top_logits import TopLogits
from radixserve.scheduler.plan import PlanRow, StepPlan

# The pieces in which the context is computed, beside whole: they end inside attention's chunks, at their ends, in single tokens.
EXTENTS = (1, 2, 100, 7, 1, 145, 20, 1, 13, 3, 5, 1, 1)
CONTEXT = sum(EXTENTS)
HEAD_ROWS = 24


def broken_promises(
    library: NativeLibrary, config: ModelConfig, weights: NativeWeights, block_size: int, kv_dtype: torch.dtype
) -> list[str]:
    """Reasons why a request's bits may depend on its batch or on the cache here; empty if none was found.

    Takes a small part of a second: one layer over `CONTEXT` tokens twice, and the head over `HEAD_ROWS` tokens a few times.
    """
    blocks = -(-CONTEXT // block_size)
    tokens = np.random.default_rng(1).integers(0, config.vocab_size, CONTEXT).astype(np.int32)

    def decoder() -> NativeDecoder:
        kv = BlockStore(
            config,
            num_blocks=2 * blocks,
            block_size=block_size,
            dtype=kv_dtype,
            device=torch.device("cpu"),
            num_layers=1,
        )
        kv.poison(np.arange(2 * blocks))
        return NativeDecoder(library, config, weights, kv, tokens=CONTEXT, logits_rows=HEAD_ROWS)

    def run(subject: NativeDecoder, pieces: list[tuple[int, int, int]]) -> tuple[torch.Tensor, torch.Tensor, TopLogits]:
        """Hidden states of stretches (first position, end, first block of the table), logits of the last tokens, and the largest."""
        rows = tuple(
            PlanRow(
                rid=str(table),
                start=first,
                tokens=tokens[first:end],
                table=np.arange(table, table + -(-end // block_size), dtype=np.int32),
                sampling=SamplingParams(),
                seed=0,
                num_prompt=end,
            )
            for first, end, table in pieces
        )
        hidden = subject.forward(ForwardBatch.from_plan(StepPlan(0, rows), block_size))
        length = pieces[0][1] - pieces[0][0]
        last = np.arange(max(0, length - HEAD_ROWS), length)
        return subject.states(0, length), hidden.logits(last).clone(), hidden.top(last, 1)

    reasons = []
    with torch.inference_mode():
        states, logits, _ = run(decoder(), [(0, CONTEXT, 0)])
        pieces, start = decoder(), 0
        for extent in EXTENTS:
            end = start + extent
            piece_states, piece_logits, best = run(pieces, [(start, end, 0), (start, end, blocks)])
            if not torch.equal(piece_states, states[start:end]):
                reasons.append(f"the native layers give a token other bits in a piece of {extent} than of {CONTEXT}")
                break
            first = max(start, CONTEXT - HEAD_ROWS)
            if first < end and not torch.equal(piece_logits[first - end :], logits[first - CONTEXT :][: end - first]):
                reasons.append(f"the native LM head gives a row other bits among {extent} rows than among {HEAD_ROWS}")
                break
            if not _is_largest(best, piece_logits):
                reasons.append(f"the native LM head finds another largest logit than among all of {extent} rows")
                break
            start = end
    return reasons


def _is_largest(best: TopLogits, logits: torch.Tensor) -> bool:
    """Whether ``best`` [n, 1] holds id and bits of the largest logit of each row, the first of equal ones."""
    values = logits.numpy()
    ids = values.argmax(axis=1)
    largest = values[np.arange(len(ids)), ids]
    return np.array_equal(best.ids[:, 0], ids) and best.values[:, 0].tobytes() == largest.tobytes()
