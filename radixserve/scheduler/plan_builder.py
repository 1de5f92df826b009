"""Turns the scheduler's decisions for one step into rows, copies and counts."""

from __future__ import annotations

import time

import numpy as np

from radixserve.cache.lease import Lease
from radixserve.cache.prefix_cache import PrefixCache
from radixserve.cache.token_key import TOKEN_BYTES, decode_token, decode_tokens
from radixserve.scheduler.budget import chunk_end
from radixserve.scheduler.plan import UNKNOWN, Int32Array, PlanRow, StepPlan
from radixserve.scheduler.request import Request

_ONE_UNKNOWN = np.array([UNKNOWN], np.int32)
_NO_COPIES = np.empty((0, 2), np.int32)


class PlanBuilder:
    """Rows and copies of the step that is being planned.

    ``requests`` is in the order of the rows; ``before`` holds each one's (cached tokens, frontier) from before this
    step, for a roll-back. Where a step is in flight, the next token of a row may be one that it draws.
    """

    def __init__(self, cache: PrefixCache, step: int) -> None:
        self.step = step
        self.requests: list[Request] = []
        self.before: list[tuple[int, int]] = []
        self.num_tokens = 0
        self._cache = cache
        self._has_chunk = False
        self._rows: list[PlanRow] = []
        self._copies: list[tuple[int, int]] = []

    def extend(self, request: Request, grant: int, *, cut: bool = False) -> int:
        """Give ``request`` a row of up to ``grant`` tokens; returns how many it got; with 0 it has none.

        Just before, it takes over what others have put into the tree, rows of this step included. ``cut``: whether
        the row may end before the sequence does; it then ends at a block boundary unless it is the first
        of its kind in the step and cannot reach one.
        """
        cache = self._cache
        before = (request.group.cached_tokens, request.frontier)
        end = self._place(request, grant, cut)
        lease, start = request.lease, request.num_computed
        if lease is None or end <= start:
            self._let_go(request)
            return 0
        cache.extend(lease, end)
        copy = cache.take_copy(lease, self.step)
        if copy is not None:
            self._copies.append(copy)
        # A block with a token that nobody knows yet stays private, and so does one that may turn out to lie beyond a stop string.
        cache.publish(lease, request.key, min(end, request.num_tokens - request.untold), self.step)
        request.count_cached(start)
        if end > request.frontier:
            request.frontier = end
        request.num_computed = end
        request.in_flight += 1
        if request.started_step is None:
            request.started_step, request.started_at = self.step, time.monotonic()
        self._has_chunk = self._has_chunk or cut
        self.requests.append(request)
        self.before.append(before)
        self.num_tokens += end - start
        row = self._row(request, lease, start, end)
        request.last_row = (self.step, len(self._rows))
        request.awaits += row.num_samples > 0
        self._rows.append(row)
        return end - start

    def build(self) -> StepPlan:
        """The finished plan."""
        copies = np.array(self._copies, np.int32).reshape(-1, 2) if self._copies else _NO_COPIES
        return StepPlan(self.step, tuple(self._rows), copies)

    def _place(self, request: Request, grant: int, cut: bool) -> int:
        """Lease what is held, or move an existing lease on to it, and return where the row ends.

        That is ``num_computed`` where there is no room for a row; a request that had no lease has none then.
        """
        cache, lease = self._cache, request.lease
        if lease is not None:
            if request.remaining > 1:
                request.num_computed = cache.rematch(lease, request.key, request.num_computed, request.match_limit)
            return self._end(request, lease, grant, cut)
        for copy in (True, False):
            # The source of a copy stays locked for this step; where that leaves too few blocks, do without.
            lease = cache.acquire(request.namespace, request.key, request.match_limit, copy=copy)
            request.lease, request.num_computed = lease, lease.leased_tokens
            end = self._end(request, lease, grant, cut)
            if end > request.num_computed:
                return end
            copied = lease.copy is not None
            cache.discard(lease)
            request.lease, request.num_computed = None, 0
            if not copied:
                break
        return 0

    def _let_go(self, request: Request) -> None:
        """A request without a row must not hold what only a step without it vouches for: if that fails, it leaves the tree."""
        lease = request.lease
        if lease is None:
            return
        if not request.in_flight and lease.node.pending:
            self._cache.discard(lease)
            request.lease, request.num_computed = None, 0
        elif lease.node.pending == self.step:
            # A step in flight reads and writes what the lease held before.
            request.num_computed = self._cache.retreat(lease, self.step)

    def _end(self, request: Request, lease: Lease, grant: int, cut: bool) -> int:
        """Where the row ends for want of budget or blocks."""
        start = request.num_computed
        if cut:
            return self._cut(request, lease, start, grant)
        end = min(start + grant, request.num_tokens + request.awaits)
        missing = self._cache.missing_blocks(lease, end)
        return end if not missing or missing <= self._cache.secure(missing) else start

    def _cut(self, request: Request, lease: Lease, start: int, grant: int) -> int:
        size = self._cache.block_size
        missing = self._cache.missing_blocks(lease, min(start + grant, request.num_tokens))
        room = (len(lease.table) + self._cache.secure(missing)) * size - start
        end = chunk_end(start, request.num_tokens, min(grant, room), size)
        if end == start and not self._has_chunk:
            # However little the decodes leave, one prompt goes on.
            end = min(start + grant, start + room, request.num_tokens)
        return end

    def _row(self, request: Request, lease: Lease, start: int, end: int) -> PlanRow:
        sampling = request.sampling
        known = start < request.num_tokens
        complete = end == request.num_tokens + request.awaits and request.draws
        num_samples = (1 if request.forked else sampling.n) if complete else 0
        if not known:
            tokens = _ONE_UNKNOWN.copy()
        elif end - start == 1:
            tokens = np.array([decode_token(request.key, start)], np.int32)
        else:
            tokens = decode_tokens(request.key[start * TOKEN_BYTES : end * TOKEN_BYTES])
        first, targets = _prompt_targets(request, start, end)
        forced_start, forced_targets = _forced_targets(request, end)
        return PlanRow(
            rid=request.rid,
            start=start,
            tokens=tokens,
            table=lease.snapshot(self._cache.blocks_for(end)),
            sampling=sampling,
            seed=request.seed,
            num_prompt=request.num_prompt + request.num_repeated,
            num_samples=num_samples,
            first_sample=request.sample_index,
            history=decode_tokens(request.key) if num_samples and sampling.needs_history else None,
            prompt_logprob_start=first,
            prompt_logprob_targets=targets,
            forced_start=forced_start,
            forced_targets=forced_targets,
            states_from=None if request.pool is None else request.pool.start_in(start, end),
            token_from=None if known else request.last_row,
        )


def _prompt_targets(request: Request, start: int, end: int) -> tuple[int, Int32Array | None]:
    """The prompt tokens whose logprobs a row can give, and the position before the first of them."""
    if not request.wants_prompt_logprobs:
        return 0, None
    # A step in flight may be about to bring those before its own end.
    first, last = max(request.logprob_next - 1, start), min(end, request.num_prompt - 1)
    if first >= last:
        return 0, None
    return first, decode_tokens(request.key[(first + 1) * TOKEN_BYTES : (last + 1) * TOKEN_BYTES])


def _forced_targets(request: Request, end: int) -> tuple[int, Int32Array | None]:
    """The forced tokens whose logprobs a row up to ``end`` can give, and the position before the first of them."""
    if request.sampling.logprobs is None:
        return 0, None
    if request.unscored:
        first = request.num_tokens - request.unscored
        last = min(end + 1, request.num_tokens)
        if first < last:
            return first - 1, decode_tokens(request.key[first * TOKEN_BYTES : last * TOKEN_BYTES])
    elif request.forced and end == request.num_tokens:
        return end - 1, np.array([request.forced[0]], np.int32)
    return 0, None
