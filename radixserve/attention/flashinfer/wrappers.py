"""Every call that is made of FlashInfer's attention wrappers: what they are given, spelled out once.

Their defaults are not ours: prefill is not causal, queries are taken for float16, a window includes its leftmost
key, bounds of KV count pages, and the decode wrapper's public ``plan`` hides its real arguments. So nothing is left to a
default that matters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from radixserve.attention.flashinfer.staging import Staged
from radixserve.model.flashinfer_library import flashinfer

LAYOUT = "NHD"  # [pages, tokens of a page, kv heads, head size]: how KVStore lies in memory
KVPair = tuple[torch.Tensor, torch.Tensor]
# Bounds of queries, bounds of pages, page ids, tokens of the last page: PageTables.arrays on host and device.
StagedTables = Sequence[Staged]


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What all layers of a model have in common.

    ``soft_cap``: scores become ``soft_cap * tanh(score / soft_cap)``; None is off. ``dtype``: of queries and outputs;
    ``kv_dtype``: of the store. ``split``: whether the keys of a query may be shared out to several blocks of the GPU, as many as suit
    the batch.
    """

    heads: int
    kv_heads: int
    head_dim: int
    block_size: int
    scale: float
    soft_cap: float | None
    dtype: torch.dtype
    kv_dtype: torch.dtype
    split: bool = True


class StepAttention(Protocol):
    """One way to attend, planned for a step."""

    def run(self, q: torch.Tensor, cache: KVPair) -> torch.Tensor:
        """Attention of ``q`` [T, heads, head_dim] over the paged K and V of a layer, as a new tensor of its shape."""


class PrefillAttention:
    """Rows of any extent, causal; ``window``: a query sees its own position and window - 1 before.

    ``backend``: which of the library's kernels, ``auto``, ``fa2`` or ``fa3``.
    """

    def __init__(
        self, workspace: torch.Tensor, shape: AttentionShape, window: int | None, backend: str = "auto"
    ) -> None:
        self._wrapper: Any = flashinfer().BatchPrefillWithPagedKVCacheWrapper(workspace, LAYOUT, backend=backend)
        self._shape = shape
        self._window = window

    def plan(self, tables: StagedTables) -> None:
        """Prepare for groups of queries that each end with their pages' last token."""
        shape = self._shape
        queries, page_bounds, pages, last_page = tables
        self._wrapper.plan(
            queries.host,
            page_bounds.host,
            pages.device,
            last_page.host,
            shape.heads,
            shape.kv_heads,
            shape.head_dim,
            shape.block_size,
            causal=True,
            pos_encoding_mode="NONE",
            sm_scale=shape.scale,
            window_left=window_left(self._window),
            logits_soft_cap=shape.soft_cap,
            q_data_type=shape.dtype,
            kv_data_type=shape.kv_dtype,
            o_data_type=shape.dtype,
            non_blocking=True,
        )

    def run(self, q: torch.Tensor, cache: KVPair) -> torch.Tensor:
        """See `StepAttention`."""
        return _filled(self._wrapper.run(q, cache, out=torch.empty_like(q, memory_format=torch.contiguous_format)))


@dataclass(frozen=True, slots=True, eq=False)
class DeviceTables:
    """The pages of ``rows`` rows as kernels read them: int32 ``page_bounds`` [rows + 1], ``pages``, ``last_page`` [rows]."""

    page_bounds: torch.Tensor
    pages: torch.Tensor
    last_page: torch.Tensor

    @classmethod
    def of(cls, tables: StagedTables) -> DeviceTables:
        """The device's side of staged tables."""
        _, page_bounds, pages, last_page = tables
        return cls(page_bounds.device, pages.device, last_page.device)

    @classmethod
    def allocate(cls, rows: int, most_pages: int, device: torch.device) -> DeviceTables:
        """Buffers for a captured graph, which are written again and again but never replaced."""
        return cls(*(torch.zeros(size, dtype=torch.int32, device=device) for size in (rows + 1, most_pages, rows)))


class DecodeAttention:
    """One query a row, on tensor cores: a group of query heads that shares a KV head fills their tiles.

    ``graph``: buffers for a captured graph, which fix the number of rows.
    """

    def __init__(
        self,
        workspace: torch.Tensor,
        shape: AttentionShape,
        window: int | None,
        graph: DeviceTables | None = None,
    ) -> None:
        # "auto" may change its mind between two plans, which a captured graph cannot; for what is asked here it is fa2.
        buffers: dict[str, Any] = {}
        if graph is not None:
            buffers = {
                "use_cuda_graph": True,
                "paged_kv_indptr_buffer": graph.page_bounds,
                "paged_kv_indices_buffer": graph.pages,
                "paged_kv_last_page_len_buffer": graph.last_page,
            }
        self._wrapper: Any = flashinfer().BatchDecodeWithPagedKVCacheWrapper(
            workspace, LAYOUT, use_tensor_cores=True, backend="fa2", **buffers
        )
        self._shape = shape
        self._window = window

    def plan(self, tables: StagedTables) -> None:
        """Prepare for rows whose one query is their pages' last token."""
        shape = self._shape
        _, page_bounds, pages, last_page = tables
        self._wrapper.plan(
            page_bounds.host,
            pages.device,
            last_page.host,
            shape.heads,
            shape.kv_heads,
            shape.head_dim,
            shape.block_size,
            pos_encoding_mode="NONE",
            window_left=window_left(self._window),
            logits_soft_cap=shape.soft_cap,
            q_data_type=shape.dtype,
            kv_data_type=shape.kv_dtype,
            o_data_type=shape.dtype,
            sm_scale=shape.scale,
            non_blocking=True,
            disable_split_kv=not shape.split,
        )

    def layout(self) -> tuple[object, ...]:
        """All that a captured graph took over from the last plan as fixed: where things lie, and how the work is laid out.

        The parts of the work itself, which differ from plan to plan, lie in memory that the graph reads.
        """
        wrapper = self._wrapper
        buffers = (
            wrapper._float_workspace_buffer,
            wrapper._int_workspace_buffer,
            wrapper._qo_indptr_buf,
            wrapper._paged_kv_indptr_buf,
            wrapper._paged_kv_indices_buf,
            wrapper._paged_kv_last_page_len_buf,
        )
        return (*wrapper._plan_info, *(each.data_ptr() for each in buffers), *(each.nbytes for each in buffers[:2]))

    def run(self, q: torch.Tensor, cache: KVPair) -> torch.Tensor:
        """See `StepAttention`."""
        return _filled(self._wrapper.run(q, cache, out=torch.empty_like(q, memory_format=torch.contiguous_format)))


class CascadeAttention:
    """Shared prefixes read once: one pass for each level, merged by their log-sum-exp. ``backend`` as of `PrefillAttention`."""

    def __init__(self, workspace: torch.Tensor, shape: AttentionShape, levels: int, backend: str = "auto") -> None:
        library = flashinfer()
        self._wrapper: Any = library.MultiLevelCascadeAttentionWrapper(levels, workspace, LAYOUT)
        if backend != "auto":
            # It has no argument for that, and makes its passes' wrappers itself.
            self._wrapper._batch_prefill_wrappers = [
                library.BatchPrefillWithPagedKVCacheWrapper(workspace, LAYOUT, backend=backend) for _ in range(levels)
            ]
        self._shape = shape
        self._order: torch.Tensor | None = None
        self._inverse: torch.Tensor | None = None

    def plan(self, levels: Sequence[StagedTables], order: torch.Tensor | None, inverse: torch.Tensor | None) -> None:
        """Prepare for the tables of each level, the rows' own last.

        ``order`` int32 [T]: which token of the batch the levels count at each place, ``inverse`` the way back; None where
        the batch is in order already. Both live until the next plan.
        """
        shape = self._shape
        queries, page_bounds, pages, last_page = zip(*levels, strict=True)
        self._wrapper.plan(
            [each.host for each in queries],
            [each.host for each in page_bounds],
            [each.device for each in pages],
            [each.host for each in last_page],
            shape.heads,
            shape.kv_heads,
            shape.head_dim,
            shape.block_size,
            causal=True,
            pos_encoding_mode="NONE",
            sm_scale=shape.scale,
            window_left=-1,
            logits_soft_cap=shape.soft_cap,
            q_data_type=shape.dtype,
            kv_data_type=shape.kv_dtype,
        )
        self._order, self._inverse = order, inverse

    def run(self, q: torch.Tensor, cache: KVPair) -> torch.Tensor:
        """See `StepAttention`."""
        if self._order is None or self._inverse is None:
            return _filled(self._wrapper.run(q, cache))
        return _filled(self._wrapper.run(q.index_select(0, self._order), cache)).index_select(0, self._inverse)


@dataclass(frozen=True, slots=True, eq=False)
class TokenPlaces:
    """Where a step's tokens belong: int32 ``rows`` [T] of the tables, absolute ``positions`` [T]."""

    rows: torch.Tensor
    positions: torch.Tensor


def append(k: torch.Tensor, v: torch.Tensor, tokens: TokenPlaces, tables: DeviceTables, cache: KVPair) -> None:
    """Write ``k``, ``v`` [T, kv_heads, head_dim], of the cache's dtype, to the places of their tokens."""
    flashinfer().append_paged_kv_cache(
        k,
        v,
        tokens.rows,
        tokens.positions,
        cache,
        tables.pages,
        tables.page_bounds,
        tables.last_page,
        kv_layout=LAYOUT,
    )


def stored(values: torch.Tensor, shape: AttentionShape) -> torch.Tensor:
    """K or V as the store holds it. Beyond the largest number of float8 a cast gives NaN, so it is clamped."""
    if values.dtype == shape.kv_dtype:
        return values
    largest = torch.finfo(shape.kv_dtype).max
    return values.clamp(-largest, largest).to(shape.kv_dtype)


def window_left(window: int | None) -> int:
    """FlashInfer counts the keys left of the query's own position; -1 is no window."""
    return -1 if window is None else window - 1


def _filled(result: Any) -> torch.Tensor:
    assert isinstance(result, torch.Tensor)
    return result
