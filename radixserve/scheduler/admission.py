"""Which waiting requests may start: rows, token budget and blocks, with what they share counted once."""

from __future__ import annotations

from dataclasses import dataclass

from radixserve.cache.eviction import LeastRecentlyUsed
from radixserve.cache.prefix_cache import PrefixCache
from radixserve.cache.radix_tree import Match, RadixTree
from radixserve.cache.token_key import TOKEN_BYTES
from radixserve.config import SchedulerConfig
from radixserve.scheduler.budget import OutputEstimate
from radixserve.scheduler.request import Request


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

    def look(self, request: Request) -> Forecast:
        """The forecast for ``request``, which is not accepted yet."""
        start = request.lease.node if request.lease is not None else None
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
    """Decides, block by block, whether a request fits beside those that run.

    ``adaptive`` reserves an estimate of the output, ``reserve_max`` all of ``max_tokens``.
    """

    def __init__(self, config: SchedulerConfig, cache: PrefixCache) -> None:
        self.estimate = OutputEstimate()
        self._config = config
        self._cache = cache

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
        samples = 1 if request.forked else request.sampling.n
        own = self._cache.blocks_for(request.num_tokens + more)
        return own + (samples - 1) * (own - request.num_tokens // self._cache.block_size)
