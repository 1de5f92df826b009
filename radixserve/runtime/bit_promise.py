"""A short self-test: can this machine keep "cold equals warm"?

The promise rests on two facts about kernels that others wrote: a GEMM row has the same bits at every batch size, and an
attention row the same bits however its context was computed. Both are tried here with the model's own packed weights
and shapes.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch

from radixserve.attention.base import AttentionBackend
from radixserve.messages import SamplingParams
from radixserve.model.decoder import Decoder
from radixserve.model.ops import Linear
from radixserve.model.summed_linear import own_part
from radixserve.runtime.forward_batch import ForwardBatch
from radixserve.runtime.kv_store import KVStore, create_kv_store
from radixserve.scheduler.plan import PlanRow, StepPlan

BATCH_SIZES = (1, 2, 3, 5, 16, 7, 33, 64, 4, 6, 9, 11, 15, 17, 31, 8, 48, 95)
CPU = torch.device("cpu")
ROWS = 128
LINEAR_SECONDS = 0.5
CONTEXT = 600
# The pieces in which the context is computed, beside whole: they end inside chunks, at their ends, in single tokens.
EXTENTS = (1, 2, 100, 153, 1, 255, 80, 3, 1, 1)


def broken_promises(
    decoder: Decoder, attention: AttentionBackend, block_size: int, kv_dtype: torch.dtype, device: torch.device = CPU
) -> list[str]:
    """Reasons why a request's bits may depend on its batch or on the cache here; empty if none was found.

    Takes about a second at most: the first sizes are always tried, the rest while time is left.
    """
    with torch.inference_mode():
        return _linears(decoder, device) + _attention(decoder, attention, block_size, kv_dtype, device)


def _linears(decoder: Decoder, device: torch.device) -> list[str]:
    """Every kind of linear of the first layer, and the LM head where there is one: each row alone and among others.

    Of a rank's decoder its own part, without the sum over ranks.
    """
    config, layer, dtype = decoder.config, decoder.layers[0], decoder.dtype
    generator = torch.Generator().manual_seed(1)
    residual = torch.randn(ROWS, config.hidden_size, generator=generator).to(device)
    hidden = residual.to(dtype)
    inner = torch.randn(ROWS, config.intermediate_size, generator=generator).to(device, dtype)
    heads = torch.randn(ROWS, config.num_heads * config.head_dim, generator=generator).to(device, dtype)

    def added(linear: Linear, x: torch.Tensor) -> torch.Tensor:
        return own_part(linear).add(x, residual[: len(x)])

    kinds: list[tuple[str, Callable[[int], torch.Tensor]]] = [
        ("qkv", lambda rows: layer.qkv(hidden[:rows])),
        ("o", lambda rows: added(layer.o, heads[:rows])),
        ("gate and up", lambda rows: layer.gated(hidden[:rows])),
        ("down", lambda rows: added(layer.down, inner[:rows])),
    ]
    if decoder.head is not None:
        kinds.append(("LM head", lambda rows: decoder.logits(residual[:rows])))
    reasons = []
    for name, run in kinds:
        deadline = time.perf_counter() + LINEAR_SECONDS / len(kinds)
        whole = run(ROWS)
        for tried, rows in enumerate(BATCH_SIZES):
            if tried >= 3 and time.perf_counter() > deadline:
                break
            if not torch.equal(run(rows), whole[:rows]):
                reasons.append(f"the {name} linear gives a row other bits among {rows} rows than among {ROWS}")
                break
    return reasons


def _attention(
    decoder: Decoder, attention: AttentionBackend, block_size: int, kv_dtype: torch.dtype, device: torch.device
) -> list[str]:
    """One layer's attention over a random context: computed whole, and in pieces beside another request."""
    config = decoder.config
    generator = torch.Generator().manual_seed(2)
    q = torch.randn(CONTEXT, config.num_heads, config.head_dim, generator=generator).to(device, decoder.dtype)
    k, v = (
        torch.randn(CONTEXT, config.num_kv_heads, config.head_dim, generator=generator).to(device, decoder.dtype)
        for _ in range(2)
    )
    blocks = -(-CONTEXT // block_size)

    def run(kv: KVStore, pieces: list[tuple[int, int, int]]) -> torch.Tensor:
        """Attend stretches (first position, end, first block of the table) of the context, in one batch."""
        rows = tuple(
            PlanRow(
                rid=str(table),
                start=first,
                tokens=np.zeros(end - first, np.int32),
                table=np.arange(table, table + -(-end // block_size), dtype=np.int32),
                sampling=SamplingParams(),
                seed=0,
                num_prompt=end,
            )
            for first, end, table in pieces
        )
        batch = ForwardBatch.from_plan(StepPlan(0, rows), block_size, device)
        attention.plan(batch)
        return attention.forward(0, q[batch.positions], k[batch.positions], v[batch.positions], batch, kv)

    def store() -> KVStore:
        kv = create_kv_store(
            config,
            num_blocks=2 * blocks,
            block_size=block_size,
            dtype=decoder.dtype,
            kv_dtype=kv_dtype,
            device=device,
            num_layers=1,
        )
        kv.poison(np.arange(2 * blocks))
        return kv

    whole = run(store(), [(0, CONTEXT, 0)])
    kv, start, pieces = store(), 0, []
    for extent in EXTENTS:
        pieces.append(run(kv, [(start, start + extent, 0), (start, start + extent, blocks)])[:extent])
        start += extent
    if torch.equal(torch.cat(pieces), whole[:start]):
        return []
    return [f"{attention.name} attention gives a token other bits when its context is computed in pieces"]
