"""Requests to hold a prompt: the prompt is computed like any other, and then held in the cache under the request's name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from radixserve.cache.prefix_cache import PrefixCache
from radixserve.engine.generation import Generation
from radixserve.engine.intake import check_hold
from radixserve.errors import InvalidRequest
from radixserve.messages import FinishReason, HeldPrefix, SamplingParams


class PromptHolds:
    """The holds of one engine's cache by the time of ``clock``, which never goes back."""

    def __init__(self, cache: PrefixCache, clock: Callable[[], float]) -> None:
        self._cache = cache
        self._clock = clock

    @property
    def possible(self) -> bool:
        """Whether this engine holds anything at all."""
        config = self._cache.config
        return config.prefix_cache == "on" and self._cache.holds.max_blocks > 0 and config.hold_max_s > 0

    def check(self, rid: str, hold_s: object, sampling: SamplingParams) -> float:
        """The seconds for which ``rid`` is to hold its prompt; raises `InvalidRequest`."""
        seconds = check_hold(hold_s, sampling)
        if rid in self._cache.holds:
            raise InvalidRequest("rid", f"{rid!r} names a hold")
        return seconds

    def take_at_once(self, generation: Generation) -> bool:
        """Hold the prompt of a request for which nothing has to be computed, or that can hold nothing; False for any other one."""
        request = generation.request
        if generation.hold_s is None or request.pool is not None or request.wants_prompt_logprobs:
            return False
        cached = self._cache.match(request.namespace, request.key, request.num_prompt).total
        if cached == request.num_prompt:
            request.count_cached(cached)
        elif self.possible:
            return False
        self._take(generation, computed=0)
        return True

    def take_at_end(self, generation: Generation) -> None:
        """The request has ended, and its prompt is held if it was to be; nothing is held of one that did not come to its end."""
        request = generation.request
        if generation.hold_s is None or generation.hold is not None or request.finish_reason is not FinishReason.LENGTH:
            return
        self._take(generation, computed=request.num_prompt - request.group.cached_tokens)

    def _take(self, generation: Generation, *, computed: int) -> None:
        assert generation.hold_s is not None, "asked of requests to hold a prompt"
        request = generation.request
        seconds = min(generation.hold_s, self._cache.config.hold_max_s)
        tokens = 0
        if self.possible:
            tokens = self._cache.hold(generation.rid, request.namespace, request.key, self._clock() + seconds)
        generation.hold = HeldPrefix(tokens=tokens, expires_in_s=seconds if tokens else 0.0, computed_tokens=computed)

    def release(self, rids: Sequence[str]) -> int:
        """End holds; unknown ones are left alone. Returns how many there were."""
        return self._cache.holds.release(rids)

    def expire(self) -> None:
        """End the holds whose time is over."""
        self._cache.holds.expire(self._clock())

    def seconds_to_expiry(self) -> float | None:
        """For so long no hold ends by itself; None without any."""
        expiry = self._cache.holds.next_expiry
        return None if expiry is None else max(0.0, expiry - self._clock())
