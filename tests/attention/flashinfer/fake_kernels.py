"""The installed FlashInfer on a machine without a GPU: its Python layer is real, what it compiles is replaced.

Each kernel is a reference in float64 with the arguments that the library hands to its compiled module, so what is tested
is everything up to there: our arguments, the library's validation and its arithmetic on bounds, pages and lengths.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

CAUSAL, NOT_CAUSAL = 1, 0
GRAPH, FIXED_SPLIT, NO_SPLIT = 8, 13, 14
ANY_PLAN = -1


class Kernels:
    """What was planned and run.

    ``modules``: the arguments that modules were asked for with. ``plans``: the arguments of each plan; `GRAPH`, `FIXED_SPLIT` and
    `NO_SPLIT` are places in them. While ``deferred``,
    nothing that a GPU would do happens before `flush`, as in a stream that lags behind the host.
    """

    def __init__(self) -> None:
        self.modules: list[tuple[Any, ...]] = []
        self.plans: list[tuple[Any, ...]] = []
        self.deferred = False
        self.queue: list[Callable[[], None]] = []
        self.merges = 0

    def enqueue(self, work: Callable[[], None]) -> None:
        """Run ``work`` in the stream's order."""
        self.queue.append(work)
        if not self.deferred:
            self.flush()

    def flush(self, upto: int | None = None) -> None:
        """Run what is enqueued, or the first ``upto`` of it."""
        count = len(self.queue) if upto is None else upto
        ready, self.queue = self.queue[:count], self.queue[count:]
        for work in ready:
            work()

    def prefill_module(self, *key: Any) -> SimpleNamespace:
        """What ``get_batch_prefill_module`` returns."""
        self.modules.append(key)
        return SimpleNamespace(plan=self.plan, paged_run=self.paged_run)

    def plan(self, float_workspace: Any, int_workspace: Any, pinned: torch.Tensor, *arguments: Any) -> list[int]:
        """Leave this plan's number where the real one leaves its schedule: in pinned memory, copied later.

        A captured graph is laid out once for all plans of one shape, so what it is handed says nothing of the plan.
        """
        self.plans.append(arguments)
        number = len(self.plans)
        pinned.view(torch.int64)[0] = number
        self.enqueue(lambda: int_workspace.view(torch.int64)[:1].copy_(pinned.view(torch.int64)[:1]))
        return [ANY_PLAN, *(int(each) for each in arguments[3:9])] if arguments[GRAPH] else [number]

    def paged_run(
        self,
        float_workspace: Any,
        int_workspace: torch.Tensor,
        plan_info: list[int],
        q: torch.Tensor,
        paged_k_cache: torch.Tensor,
        paged_v_cache: torch.Tensor,
        qo_indptr: torch.Tensor,
        paged_kv_indptr: torch.Tensor,
        paged_kv_indices: torch.Tensor,
        paged_kv_last_page_len: torch.Tensor,
        o: torch.Tensor,
        maybe_lse: torch.Tensor | None,
        mask_mode: int,
        layout: int,
        window_left: int,
        enable_pdl: bool,
        maybe_custom_mask: Any,
        maybe_mask_indptr: Any,
        maybe_alibi_slopes: Any,
        maybe_prefix_len_ptr: Any,
        maybe_token_pos_in_items_ptr: Any,
        maybe_max_item_len_ptr: Any,
        logits_soft_cap: float,
        sm_scale: float,
        *rest: Any,
    ) -> None:
        """Paged attention by definition. Rows without keys get zeros and a log-sum-exp of minus infinity."""
        assert layout == 0, "NHD"
        assert maybe_custom_mask is None
        tables = [each.clone() for each in (qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len)]
        for table in tables:
            assert table.dtype == torch.int32
        assert len(q) == int(tables[0][-1])

        def work() -> None:
            held = int(int_workspace.view(torch.int64)[0])
            assert plan_info[0] in (ANY_PLAN, held), f"plan {plan_info[0]} runs with the schedule of plan {held}"
            for row in range(len(tables[3])):
                _attend(row, q, paged_k_cache, paged_v_cache, tables, o, maybe_lse, mask_mode, window_left,
                        logits_soft_cap, sm_scale)  # fmt: skip

        self.enqueue(work)

    def append(
        self,
        k: torch.Tensor,
        v: torch.Tensor,
        rows: torch.Tensor,
        positions: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        pages: torch.Tensor,
        page_bounds: torch.Tensor,
        last_page: torch.Tensor,
        layout: int,
    ) -> None:
        """Write each token to its page."""
        assert layout == 0, "NHD"
        assert k.dtype == k_cache.dtype and v.dtype == v_cache.dtype
        page = pages[page_bounds[rows].long() + positions.long() // k_cache.shape[1]].long()
        offset = positions.long() % k_cache.shape[1]

        def work() -> None:
            for index in range(len(rows)):
                k_cache[page[index], offset[index]] = k[index]
                v_cache[page[index], offset[index]] = v[index]

        self.enqueue(work)

    def merge_in_place(
        self, v: torch.Tensor, s: torch.Tensor, v_other: torch.Tensor, s_other: torch.Tensor, mask: Any = None
    ) -> None:
        """Merge two partial results whose log-sum-exps are to base 2."""
        assert mask is None
        self.merges += 1

        def work() -> None:
            largest = torch.maximum(s, s_other)
            a, b = torch.exp2(s - largest), torch.exp2(s_other - largest)
            v.copy_((v * a[..., None] + v_other * b[..., None]) / (a + b)[..., None])
            s.copy_(torch.log2(a + b) + largest)

        self.enqueue(work)


def _attend(
    row: int,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    tables: list[torch.Tensor],
    o: torch.Tensor,
    lse: torch.Tensor | None,
    mask_mode: int,
    window_left: int,
    soft_cap: float,
    scale: float,
) -> None:
    query_bounds, page_bounds, pages, last_page = tables
    tokens = slice(int(query_bounds[row]), int(query_bounds[row + 1]))
    held = pages[int(page_bounds[row]) : int(page_bounds[row + 1])].long()
    length = max(0, len(held) - 1) * k_cache.shape[1] + int(last_page[row])
    if length == 0:
        o[tokens] = 0
        if lse is not None:
            lse[tokens] = -math.inf
        return
    group = q.shape[1] // k_cache.shape[2]
    k, v = (half[held].flatten(0, 1)[:length].double().repeat_interleave(group, 1) for half in (k_cache, v_cache))
    scores = torch.einsum("qhd,khd->hqk", q[tokens].double(), k) * scale
    if soft_cap > 0:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    count = tokens.stop - tokens.start
    # Queries are the last ones of the keys.
    position, key = length - count + torch.arange(count)[:, None], torch.arange(length)[None, :]
    hidden = torch.zeros(count, length, dtype=torch.bool)
    if mask_mode == CAUSAL:
        hidden |= key > position
    else:
        assert mask_mode == NOT_CAUSAL
    if window_left >= 0:
        hidden |= key < position - window_left
    scores = scores.masked_fill(hidden, -math.inf)
    o[tokens] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).to(o.dtype)
    if lse is not None:
        lse[tokens] = (scores.logsumexp(-1).T / math.log(2)).float()


def replaced_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernels]:
    """Put `Kernels` in the place of everything that FlashInfer would compile for attention."""
    import flashinfer.cascade
    import flashinfer.decode
    import flashinfer.page
    import flashinfer.prefill

    kernels = Kernels()
    empty = torch.empty

    def unpinned(*arguments: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        return empty(*arguments, **options)

    monkeypatch.setattr(torch, "empty", unpinned)
    for module in (flashinfer.prefill, flashinfer.decode):
        monkeypatch.setattr(module, "get_batch_prefill_module", kernels.prefill_module)
        monkeypatch.setattr(module, "determine_attention_backend", lambda *arguments, **options: "fa2")
    monkeypatch.setattr(
        flashinfer.page, "get_page_module", lambda: SimpleNamespace(append_paged_kv_cache=kernels.append)
    )
    monkeypatch.setattr(
        flashinfer.cascade, "get_cascade_module", lambda: SimpleNamespace(merge_state_in_place=kernels.merge_in_place)
    )
    yield kernels
