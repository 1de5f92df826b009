"""The attention of captured steps of decodes, whose tables lie where the graph reads them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import torch

from radixserve.attention.flashinfer.pages import Int32Array, padded, row_tables
from radixserve.attention.flashinfer.staging import Staging
from radixserve.attention.flashinfer.wrappers import (
    AttentionShape,
    DecodeAttention,
    DeviceTables,
    TokenPlaces,
    append,
    stored,
)

if TYPE_CHECKING:
    from radixserve.model.config import ModelConfig
    from radixserve.runtime.forward_batch import ForwardBatch
    from radixserve.runtime.kv_store import KVStore


class GraphDecodeAttention:
    """The backend of a captured graph: always ``rows`` decodes over at most ``most_pages`` pages in all.

    The calls of `forward` are captured once and replayed; `stage` runs outside the graph before *each* replay, since the kernels
    read what it writes. It brings tokens, positions and tables in one copy to where the graph reads them. A batch of fewer
    rows is filled up with the shortest decodes there are (`padded`). Allocates nothing after its first plan, and holds that against
    FlashInfer as well: after `freeze` a plan that is laid out otherwise is a failed assertion, not a wrong token.
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
        self.most_pages = most_pages
        self._windows = windows
        self._shape = shape
        # One, not a slot for each step in flight: the graph reads the wrappers' plan, so there is only one set of them,
        # with one piece of pinned memory. Three wide arrays of the rows' own, bounds of queries and pages, three more of the
        # rows, and the pages, whose number differs, at the end.
        self._staging = Staging(device, capacity=3 * 2 * rows + 2 * (rows + 1) + 3 * rows + most_pages)
        self._decode = {
            window: DecodeAttention(workspace, shape, window, DeviceTables.allocate(rows, most_pages, device))
            for window in dict.fromkeys(windows)
        }
        self._tables: DeviceTables
        self._tokens: TokenPlaces
        self._layout: list[tuple[object, ...]] | None = None

    @staticmethod
    def supports(model: ModelConfig, device: str, dtype: torch.dtype, kv_dtype: torch.dtype | None = None) -> list[str]:
        """Nothing of its own to say: it is made by a backend that supports the model."""
        return []

    def stage(self, batch: ForwardBatch, spare: int) -> ForwardBatch:
        """Bring a batch of decodes, at most ``rows``, whose tensors are on the host. The filled up batch on the device.

        ``spare``: a block that belongs to nobody. What is returned lives until the next call.
        """
        full = padded(batch, self.rows, spare)
        tables = row_tables(full)
        assert len(tables.pages) <= self.most_pages, "the graph was made for as many pages"
        token_row, position = np.arange(self.rows, dtype=np.int32), (full.seq_lens - 1).astype(np.int32)
        with torch.inference_mode():
            self._staging.wait()
            try:
                full = self._load(
                    full, [tables.query_start, tables.page_start, tables.last_page, token_row, position], tables.pages
                )
            finally:
                self._staging.mark()
        assert self._layout is None or self._layout == self.layout(), "a plan that the captured graph does not fit"
        return full

    def freeze(self) -> None:
        """The graph is captured: from here on every plan must be laid out as the last one was."""
        self._layout = self.layout()

    def layout(self) -> list[tuple[object, ...]]:
        """What a graph takes for fixed: where its inputs lie, and how each wrapper laid out its work."""
        places = (self._tables.page_bounds, self._tables.last_page, self._tables.pages, self._tokens.positions)
        return [tuple(each.data_ptr() for each in places), *(each.layout() for each in self._decode.values())]

    def plan(self, batch: ForwardBatch) -> None:
        """`stage` has planned: this is called where the graph is captured, and nothing of a plan may be in it."""

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

    def _load(self, full: ForwardBatch, fixed: list[Int32Array], pages: Int32Array) -> ForwardBatch:
        own = [each.numpy() for each in (full.tokens, full.positions, full.slots)]
        brought, staged = self._staging.load(own, [*fixed, pages])
        queries, page_bounds, last_page, token_row, position, held = staged
        self._tables = DeviceTables(page_bounds.device, held.device, last_page.device)
        self._tokens = TokenPlaces(token_row.device, position.device)
        for attention in self._decode.values():
            attention.plan((queries, page_bounds, held, last_page))
        tokens, positions, slots = (each.device for each in brought)
        return dataclasses.replace(full, tokens=tokens, positions=positions, slots=slots)
