"""The attention backend of NVIDIA GPUs, on FlashInfer's paged kernels (Ye et al. 2025).

A step is planned once and attended layer by layer. Steps of decodes alone take the decode wrapper, all others the prefill
wrapper; where rows share enough pages, layers without a window take a cascade instead. Plans live in two slots in turn: a
plan's pinned memory, FlashInfer's own included, is copied by the GPU when it comes to it, so while a step runs the next one is
planned in the other slot, and a slot is written again only when its copies have run.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

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
from radixserve.attention.flashinfer.pages import padding_rows, row_tables, token_rows
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


class FlashInferAttention:
    """`radixserve.attention.base.AttentionBackend` for NVIDIA GPUs.

    ``kv_dtype``: None stores K and V in ``dtype``; float8_e4m3fn in half the memory, saturated at its largest number and
    without scales. The workspaces are allocated here, once; beside them a plan takes no more than its tables. ``cascades`` counts
    the steps that were planned as one.
    """

    name = "flashinfer"

    def __init__(
        self,
        config: ModelConfig,
        *,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        kv_dtype: torch.dtype | None = None,
    ) -> None:
        self._device = device
        self._windows = config.windows
        self.shape = attention_shape(config, block_size, dtype, kv_dtype or dtype)
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
        self._slots = [_Slot(self._workspace, self.shape, config.windows, device) for _ in range(SLOTS)]
        self._next = 0
        self._planned: _Slot | None = None
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

    def plan(self, batch: ForwardBatch) -> None:
        """Stage the step's tables and have FlashInfer lay out its work, for every window that some layer has."""
        slot = self._slots[self._next]
        self._next = (self._next + 1) % SLOTS
        cascade = find_cascade(batch, self.cost) if None in self._windows else None
        with torch.inference_mode():
            slot.plan(batch, cascade)
        self.cascades += cascade is not None
        self._planned = slot

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
        return GraphDecodeAttention(self._workspace, self.shape, self._windows, rows, most_pages, self._device)


class _Slot:
    """One planned step: its staged tables and its own wrappers, whose pinned memory is in use until the GPU has copied it."""

    def __init__(
        self, workspace: torch.Tensor, shape: AttentionShape, windows: tuple[int | None, ...], device: torch.device
    ) -> None:
        self._staging = Staging(device)
        kinds = tuple(dict.fromkeys(windows))
        self._prefill = {window: PrefillAttention(workspace, shape, window) for window in kinds}
        self._decode = {window: DecodeAttention(workspace, shape, window) for window in kinds}
        self._cascade: list[CascadeAttention] = []
        if None in kinds:
            self._cascade = [CascadeAttention(workspace, shape, shared + 1) for shared in range(1, MOST_LEVELS + 1)]
        self.attention: dict[int | None, StepAttention] = {}
        self.tables: DeviceTables
        self.tokens: TokenPlaces
        self.batch: ForwardBatch | None = None

    def plan(self, batch: ForwardBatch, cascade: Cascade | None) -> None:
        self._staging.wait()
        self.batch = None
        try:
            self._plan(batch, cascade)
        finally:
            # Also where FlashInfer refuses: copies may be under way.
            self._staging.mark()
        self.batch = batch

    def _plan(self, batch: ForwardBatch, cascade: Cascade | None) -> None:
        order = None if cascade is None else token_order(batch, cascade)
        levels = [] if cascade is None else level_tables(batch, cascade)
        orders = [] if order is None else [order.astype(np.int32), np.argsort(order).astype(np.int32)]
        tables = row_tables(batch)
        arrays = [*tables.arrays, *token_rows(batch), *orders, *(array for level in levels for array in level.arrays)]
        staged = self._staging.load(arrays)
        self.tables = DeviceTables.of(staged[:4])
        self.tokens = TokenPlaces(staged[4].device, staged[5].device)
        kinds = self._decode if batch.num_tokens == batch.num_rows else self._prefill
        for window, attention in kinds.items():
            if window is None and cascade is not None:
                continue
            attention.plan(staged[:4])
            self.attention[window] = attention
        if cascade is not None:
            self.attention[None] = self._plan_cascade(staged[6:], len(levels), ordered=order is None)

    def _plan_cascade(self, staged: list[Staged], levels: int, *, ordered: bool) -> CascadeAttention:
        order, inverse = (None, None) if ordered else (staged[0].device, staged[1].device)
        arrays = staged if ordered else staged[2:]
        attention = self._cascade[levels - 2]
        attention.plan([arrays[4 * level : 4 * level + 4] for level in range(levels)], order, inverse)
        return attention


class GraphDecodeAttention:
    """The backend of a captured graph: always ``rows`` decodes, tables in buffers that the graph reads.

    The same calls of `forward` are captured once and replayed; `plan` runs outside the graph before *each* replay, since the
    kernels read what it writes. A batch of fewer rows is filled up by `padding_rows`: whoever fills the graph's inputs must
    repeat tokens and positions in the same way. Allocates nothing after it is made.
    """

    name = "flashinfer"

    def __init__(
        self,
        workspace: torch.Tensor,
        shape: AttentionShape,
        windows: tuple[int | None, ...],
        rows: int,
        most_pages: int,
        device: torch.device,
    ) -> None:
        self.rows = rows
        self._windows = windows
        self._shape = shape
        # One, not a slot for each step in flight: the graph reads the wrappers' plan, so there is only one set of them,
        # with one piece of pinned memory.
        self._staging = Staging(device)
        self._tables = DeviceTables.allocate(rows, most_pages, device)
        self._tokens = TokenPlaces(*(torch.zeros(rows, dtype=torch.int32, device=device) for _ in range(2)))
        self._decode = {
            window: DecodeAttention(workspace, shape, window, DeviceTables.allocate(rows, most_pages, device))
            for window in dict.fromkeys(windows)
        }

    def plan(self, batch: ForwardBatch) -> None:
        """Write the tables of a batch of decodes, at most ``rows``, into the graph's buffers."""
        assert batch.num_tokens == batch.num_rows, "graphs hold decodes alone"
        places = padding_rows(batch, self.rows)
        tables = row_tables(batch, places)
        assert len(tables.pages) <= len(self._tables.pages), "the graph was made for as many pages"
        token_row, position = np.arange(self.rows, dtype=np.int32), (batch.seq_lens[places] - 1).astype(np.int32)
        with torch.inference_mode():
            self._staging.wait()
            staged = self._staging.load([*tables.arrays, token_row, position])
            try:
                self._tables.write(staged[:4])
                self._tokens.rows.copy_(staged[4].device)
                self._tokens.positions.copy_(staged[5].device)
                for attention in self._decode.values():
                    attention.plan(staged[:4])
            finally:
                self._staging.mark()

    def forward(
        self,
        layer: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        batch: ForwardBatch,
        kv: KVStore,
    ) -> torch.Tensor:
        """Append, then attend, from the graph's buffers alone: ``q``, ``k``, ``v`` of ``rows`` tokens; ``batch`` is not read."""
        cache = kv.keys(layer), kv.values(layer)
        append(stored(k, self._shape), stored(v, self._shape), self._tokens, self._tables, cache)
        return self._decode[self._windows[layer]].run(q, cache)


def attention_shape(config: ModelConfig, block_size: int, dtype: torch.dtype, kv_dtype: torch.dtype) -> AttentionShape:
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
    )


def stored(values: torch.Tensor, shape: AttentionShape) -> torch.Tensor:
    """K or V as the store holds it. Beyond the largest number of float8 a cast gives NaN, so it is clamped."""
    if values.dtype == shape.kv_dtype:
        return values
    largest = torch.finfo(shape.kv_dtype).max
    return values.clamp(-largest, largest).to(shape.kv_dtype)
