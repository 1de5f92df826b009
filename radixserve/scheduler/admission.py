"""Which waiting requests may start: rows, token budget and blocks, with what they share counted once."""

from __future__ import annotations

from dataclasses import dataclass

from radixserve.cache.eviction import LeastRecentlyUsed
from radixserve.cache.node import Match
from radixserve.cache.prefix_cache import PrefixCache
from radixserve.cache.radix_tree import RadixTree
from radixserve.cache.token_key import TOKEN_BYTES
from radixserve.config import SchedulerConfig
from radixserve.scheduler.budget import CostModel, OutputEstimate
from radixserve.scheduler.plan_builder import PlanBuilder
from radixserve.scheduler.policy import WaitingQueue
from radixserve.scheduler.request import Request

_MAX_REFUSED = 8


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a request would find in place if all those accepted before it computed their tokens in this very step.

    ``match``: what the tree holds now. ``start``: tokens in place then.
    """

    match: Match
    start: int


class StepForecast:
    """Foresees sharing inside one step.

    Two requests share more than the tree holds only if their matches end at the same place; such requests are
    compared in a scratch tree that stands for that place.
    """

    def __init__(self, cache: PrefixCache) -> None:
        self._cache = cache
        self._scratch = RadixTree(cache.block_size, LeastRecentlyUsed())
        self.spans: list[tuple[int, int]] = []

    @property
    def longest_start(self) -> int:
        """Tokens that the request accepted with most of them has in place."""
        return max((start for start, _ in self.spans), default=0)

    def look(self, request: Request) -> Forecast:
        """The forecast for ``request``, which is not accepted yet."""
        lease = request.lease
        if lease is not None and not self._cache.may_rematch(lease, request.match_limit):
            return Forecast(Match(lease.node, lease.node.end), request.num_computed)
        start = lease.node if lease is not None else None
        match = self._cache.match(request.namespace, request.key, request.match_limit, start)
        in_place = max(match.total, request.num_computed)
        if self._cache.config.prefix_cache == "on":
            found = self._find(request, match, request.match_limit - match.length)
            in_place = max(in_place, match.length + found.length)
        return Forecast(match, in_place)

    def accept(self, request: Request, forecast: Forecast) -> None:
        """``request`` will compute its tokens (or those before it will) in this step."""
        self.spans.append((forecast.start, request.num_tokens))
        if self._cache.config.prefix_cache != "on":
            return
        size = self._cache.block_size
        match = forecast.match
        whole = (request.num_tokens - match.length) // size * size
        found = self._find(request, match, whole)
        if found.length < whole:
            node = found.node
            if found.length < node.end:
                node = self._scratch.split(node, found.length)
            first = match.length + found.length
            data = bytes(request.key[first * TOKEN_BYTES : (match.length + whole) * TOKEN_BYTES])
            self._scratch.insert(node, request.namespace.salt, data, [0] * ((whole - found.length) // size))

    def _find(self, request: Request, match: Match, limit: int) -> Match:
        root = self._scratch.root((str(id(match.node)), str(match.length)))
        return self._scratch.match(root, request.namespace.salt, request.key[match.length * TOKEN_BYTES :], limit)


class Admission:
    """Decides which of the ``waiting`` requests fit beside those that run: rows, tokens and blocks.

    ``adaptive`` reserves an estimate of the output, ``reserve_max`` all of ``max_tokens``. ``cost`` predicts what a step
    takes where its time is bounded.
    """

    def __init__(self, config: SchedulerConfig, cache: PrefixCache, waiting: WaitingQueue, cost: CostModel) -> None:
        self.estimate = OutputEstimate()
        self._config = config
        self._cache = cache
        self._waiting = waiting
        self._cost = cost

    def budget(self, builder: PlanBuilder, context: int) -> int:
        """Tokens left for requests that extend. Any of them, with up to ``context`` tokens in place, may get it all."""
        left = self._config.max_batch_tokens - builder.num_tokens
        target = self._config.itl_target_ms
        if target is None or not builder.requests:
            return left
        work = sum(request.num_computed for request in builder.requests)
        within = self._cost.tokens_within(target / 1000, builder.num_tokens, work, context, left)
        # One block at least, or a target below what the decodes alone take would starve every prompt.
        return max(within, min(left, self._cache.block_size))

    def admit(
        self, builder: PlanBuilder, running: list[Request], extends: list[Request], forecast: StepForecast
    ) -> list[Request]:
        """Take requests from the queue that fit the rows, the budget and the pool, in the queue's order.

        ``running`` and among them ``extends``: the requests that go on. A request that does not fit the pool may be
        passed by ones that do, as far as the queue allows.
        """
        rows = self._config.max_running - sum(request.rows for request in running)
        if rows <= 0 or not len(self._waiting) or (self._config.batching == "static" and running):
            return []
        chunk = self._cache.block_size if self._config.chunked_prefill else self._config.max_batch_tokens
        claimed = sum(min(request.remaining, chunk) for request in extends)
        context = forecast.longest_start
        budget = self.budget(builder, context)
        blocks = self.free_blocks(running)
        admitted: list[Request] = []
        refused: list[Request] = []
        while rows > 0 and claimed < budget and len(refused) < _MAX_REFUSED and self._may_be_passed(refused):
            request = self._waiting.pop()
            if request is None:
                break
            outlook = forecast.look(request)
            samples = request.rows
            needed = self.blocks_needed(request, outlook)
            alone = not running and not admitted
            claim = request.num_tokens - outlook.start
            if self._config.chunked_prefill:
                claim = min(claim, chunk)
            # The more a request has in place the longer each of its tokens takes.
            within = self.budget(builder, max(context, outlook.start))
            in_budget = not claimed or claimed + claim <= within
            if samples <= rows and in_budget and needed > blocks and not alone:
                # Holds give way before a request is refused, but not for one that waits for something else.
                before = self._cache.available_blocks
                taken = self._cache.locked_by(outlook.match)
                if self._cache.secure_beside(outlook.match, before - taken + needed - blocks):
                    blocks += self._cache.available_blocks - before
                    needed = self.blocks_needed(request, outlook)
            if samples > rows or (needed > blocks and not alone):
                refused.append(request)
                continue
            if not in_budget:
                refused.append(request)
                break
            context, budget = max(context, outlook.start), within
            claimed += claim
            rows -= samples
            blocks -= needed
            forecast.accept(request, outlook)
            admitted.append(request)
        for request in refused:
            self._waiting.add(request)
        return admitted

    def _may_be_passed(self, refused: list[Request]) -> bool:
        """Whether one more may be admitted before those that were popped and do not fit."""
        return all(slack is None or slack > 0 for slack in map(self._waiting.slack, refused))

    def free_blocks(self, running: list[Request]) -> int:
        """Blocks that nothing running is expected to need, above the watermark."""
        cache = self._cache
        reserved = 0
        for request in running:
            held = len(request.lease.table) if request.lease is not None else 0
            reserved += max(0, self._blocks_at_end(request) - held)
        return cache.available_blocks - reserved - int(self._config.watermark * cache.pool.total)

    def blocks_needed(self, request: Request, forecast: Forecast) -> int:
        """Blocks that would be taken or pinned if ``request`` started now."""
        shared = forecast.start // self._cache.block_size
        return self._blocks_at_end(request) - shared + self._cache.locked_by(forecast.match)

    def _blocks_at_end(self, request: Request) -> int:
        """Blocks of all samples when the request has drawn what it is expected to."""
        left = request.max_tokens - request.num_output
        more = left if self._config.admission == "reserve_max" else self.estimate.tokens(left)
        own = self._cache.blocks_for(request.num_tokens + more)
        return own + (request.rows - 1) * (own - request.num_tokens // self._cache.block_size)
