"""The attention backend of NVIDIA GPUs, on FlashInfer's paged kernels (Ye et al. 2025).

A step is planned once and attended layer by layer. Steps of decodes alone take the decode wrapper, all others the prefill
wrapper; where rows share enough pages, layers without a window take a cascade instead. Plans live in two slots in turn: a
plan's pinned memory, FlashInfer's own included, is copied by the GPU when it comes to it, so while a step runs the next one is
planned in the other slot, and a slot is written again only when its copies have run.

Where bits may not depend on the batch (``deterministic``), every token is attended as if it were decoded alone: a row of its own
that sees its pages up to its own position, in the decode wrapper, its keys never split. All that decides its bits is then its own
context: no other tile of queries, no other number of splits, no cascade. It reads a prompt's keys once for every token instead of
once for every tile of them.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from radixserve.attention.flashinfer.cascade import (
    MOST_LEVELS,
    Cascade,
    CascadeCost,
    find_cascade,
    level_tables,
    token_order,
)
from radixserve.attention.flashinfer.graph_decode import GraphDecodeAttention
from radixserve.attention.flashinfer.pages import row_tables, token_rows, token_tables
from radixserve.attention.flashinfer.staging import Staged, Staging
from radixserve.attention.flashinfer.wrappers import (
    AttentionShape,
    CascadeAttention,
    DecodeAttention,
    DeviceTables,
    PrefillAttention,
    StepAttention,
    TokenPlaces,
    append,
    stored,
)
from radixserve.model.config import ModelConfig
from radixserve.model.flashinfer_library import missing

if TYPE_CHECKING:
    from radixserve.runtime.forward_batch import ForwardBatch
    from radixserve.runtime.kv_store import KVStore

FP8 = torch.float8_e4m3fn
# Partial results of split KV: two blocks an SM of at most 128 query rows of a head, in float32 (PrefillPlan in FlashInfer's
# scheduler.cuh). 35 MB for 132 SMs and heads of 256; the library itself asks for 128 MB.
WORKSPACE_BYTES = 128 << 20
HEAD_SIZES = (64, 128, 256)
SLOTS = 2
# What launching a decode's kernels one by one, not as a captured graph, takes in every layer, in bytes of reading: ten launches
# of 4 microseconds at 4 TB/s. An estimate until it is measured.
LAUNCH_BYTES = 160 << 20


class FlashInferAttention:
    """`radixserve.attention.base.AttentionBackend` for NVIDIA GPUs.

    ``kv_dtype``: None stores K and V in ``dtype``; float8_e4m3fn in half the memory, saturated at its largest number and
    without scales. The workspaces are allocated here, once; beside them a plan takes no more than its tables. ``cascades`` counts
    the steps that were planned as one. ``prefill_backend``: which of FlashInfer's kernels extend and read
    cascades (``auto``, ``fa2``, ``fa3``).
    """

    name = "flashinfer"
    prefill_backend: ClassVar[str] = "auto"

    def __init__(
        self,
        config: ModelConfig,
        *,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        kv_dtype: torch.dtype | None = None,
        deterministic: bool = False,
    ) -> None:
        self.device = device
        self.deterministic = deterministic
        self._windows = config.windows
        self.shape = attention_shape(config, block_size, dtype, kv_dtype or dtype, split=not deterministic)
        self.cost = CascadeCost.of(
            block_size=block_size,
            heads=config.num_heads,
            kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            size=dtype.itemsize,
            kv_size=self.shape.kv_dtype.itemsize,
        )
        # One after the other on one stream, so all wrappers share it. Zeroed once: some kernels keep counters there.
        self._workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self._slots = [
            _Slot(self._workspace, self.shape, config.windows, device, self.prefill_backend) for _ in range(SLOTS)
        ]
        self._next = 0
        self._planned: _Slot | None = None
        self._staged: ForwardBatch | None = None
        self._searched: tuple[ForwardBatch, Cascade | None] | None = None
        self.cascades = 0

    @staticmethod
    def supports(model: ModelConfig, device: str, dtype: torch.dtype, kv_dtype: torch.dtype | None = None) -> list[str]:
        """bf16 and float16, heads of 64, 128 or 256, where a GPU, the library and a compiler for its kernels are."""
        reasons = []
        if device != "cuda":
            reasons.append(f"flashinfer runs on NVIDIA GPUs, not on {device}")
        if dtype not in (torch.bfloat16, torch.float16):
            reasons.append(f"flashinfer computes in bfloat16 or float16, not in {dtype}")
        if kv_dtype not in (None, dtype, FP8):
            reasons.append(f"flashinfer stores KV in {dtype} or {FP8}, not in {kv_dtype}")
        if model.head_dim not in HEAD_SIZES:
            reasons.append(f"flashinfer has kernels for heads of 64, 128 and 256, not of {model.head_dim}")
        return reasons + (missing(device) if device == "cuda" else [])

    def stage(self, batch: ForwardBatch) -> ForwardBatch:
        """``batch``, whose tensors are on the host, on the device and planned: one copy brings its tensors and its tables.

        What it returns lives until the step after the next is staged.
        """
        self._staged = self._plan(batch, bring=True)
        return self._staged

    def plan(self, batch: ForwardBatch) -> None:
        """Stage the step's tables and have FlashInfer lay out its work, for every window that some layer has.

        Nothing is left to do for what `stage` returned last.
        """
        if batch is not self._staged:
            self._plan(batch, bring=False)

    def leaves_graph(self, batch: ForwardBatch) -> bool:
        """Whether a cascade saves more reading in a step of decodes than launching it as a graph is worth."""
        cascade = self._cascade(batch)
        return cascade is not None and cascade.saved > LAUNCH_BYTES

    def _plan(self, batch: ForwardBatch, *, bring: bool) -> ForwardBatch:
        slot = self._slots[self._next]
        self._next = (self._next + 1) % SLOTS
        cascade = self._cascade(batch)
        self._searched = self._staged = None
        with torch.inference_mode():
            planned = slot.plan(batch, cascade, bring=bring)
        self.cascades += cascade is not None
        self._planned = slot
        return planned

    def _cascade(self, batch: ForwardBatch) -> Cascade | None:
        if self.deterministic or None not in self._windows:
            return None
        if self._searched is None or self._searched[0] is not batch:
            self._searched = batch, find_cascade(batch, self.cost)
        return self._searched[1]

    def forward(
        self,
        layer: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        batch: ForwardBatch,
        kv: KVStore,
    ) -> torch.Tensor:
        """Append, then attend as planned; the result is a new tensor."""
        assert self._planned is not None and self._planned.batch is batch, "the step that was planned last is attended"
        cache = kv.keys(layer), kv.values(layer)
        slot = self._planned
        append(stored(k, self.shape), stored(v, self.shape), slot.tokens, slot.tables, cache)
        return slot.attention[self._windows[layer]].run(q, cache)

    def graph_decode(self, rows: int, most_pages: int) -> GraphDecodeAttention:
        """The same for captured steps of ``rows`` decodes over at most ``most_pages`` pages in all."""
        return GraphDecodeAttention(self._workspace, self.shape, self._windows, rows, most_pages, self.device)


class _Slot:
    """One planned step: its staged tables and its own wrappers, whose pinned memory is in use until the GPU has copied it."""

    def __init__(
        self,
        workspace: torch.Tensor,
        shape: AttentionShape,
        windows: tuple[int | None, ...],
        device: torch.device,
        prefill_backend: str,
    ) -> None:
        self._staging = Staging(device)
        kinds = tuple(dict.fromkeys(windows))
        self._apart = not shape.split
        self._decode = {window: DecodeAttention(workspace, shape, window) for window in kinds}
        self._prefill: dict[int | None, PrefillAttention] = {}
        self._cascade: list[CascadeAttention] = []
        if not self._apart:
            self._prefill = {window: PrefillAttention(workspace, shape, window, prefill_backend) for window in kinds}
            if None in kinds:
                self._cascade = [
                    CascadeAttention(workspace, shape, shared + 1, prefill_backend)
                    for shared in range(1, MOST_LEVELS + 1)
                ]
        self.attention: dict[int | None, StepAttention] = {}
        self.tables: DeviceTables
        self.tokens: TokenPlaces
        self.batch: ForwardBatch | None = None

    def plan(self, batch: ForwardBatch, cascade: Cascade | None, *, bring: bool) -> ForwardBatch:
        """Plan, and with ``bring`` have the batch's own tensors on the device as well. The batch that is to be attended."""
        self._staging.wait()
        self.batch = None
        try:
            batch = self._plan(batch, cascade, bring=bring)
        finally:
            # Also where FlashInfer refuses: copies may be under way.
            self._staging.mark()
        self.batch = batch
        return batch

    def _plan(self, batch: ForwardBatch, cascade: Cascade | None, *, bring: bool) -> ForwardBatch:
        order = None if cascade is None else token_order(batch, cascade)
        levels = [] if cascade is None else level_tables(batch, cascade)
        orders = [] if order is None else [order.astype(np.int32), np.argsort(order).astype(np.int32)]
        tables = token_tables(batch) if self._apart else row_tables(batch)
        rows, positions = token_rows(batch)
        if self._apart:
            rows = np.arange(batch.num_tokens, dtype=np.int32)
        arrays = [*tables.arrays, rows, positions, *orders, *(array for level in levels for array in level.arrays)]
        own = [each.numpy() for each in (batch.tokens, batch.positions, batch.slots)] if bring else []
        brought, staged = self._staging.load(own, arrays)
        if bring:
            tokens, positions_64, slots = (each.device for each in brought)
            batch = dataclasses.replace(batch, tokens=tokens, positions=positions_64, slots=slots)
        self.tables = DeviceTables.of(staged[:4])
        self.tokens = TokenPlaces(staged[4].device, staged[5].device)
        kinds = self._decode if self._apart or batch.num_tokens == batch.num_rows else self._prefill
        for window, attention in kinds.items():
            if window is None and cascade is not None:
                continue
            attention.plan(staged[:4])
            self.attention[window] = attention
        if cascade is not None:
            self.attention[None] = self._plan_cascade(staged[6:], len(levels), ordered=order is None)
        return batch

    def _plan_cascade(self, staged: list[Staged], levels: int, *, ordered: bool) -> CascadeAttention:
        order, inverse = (None, None) if ordered else (staged[0].device, staged[1].device)
        arrays = staged if ordered else staged[2:]
        attention = self._cascade[levels - 2]
        attention.plan([arrays[4 * level : 4 * level + 4] for level in range(levels)], order, inverse)
        return attention


def attention_shape(
    config: ModelConfig, block_size: int, dtype: torch.dtype, kv_dtype: torch.dtype, *, split: bool = True
) -> AttentionShape:
    """What a model's layers have in common."""
    return AttentionShape(
        heads=config.num_heads,
        kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        block_size=block_size,
        scale=1.0 / math.sqrt(config.head_dim),
        soft_cap=config.attention_soft_cap,
        dtype=dtype,
        kv_dtype=kv_dtype,
        split=split,
    )
