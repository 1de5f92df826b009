"""What a list of prompts costs the radix tree: the real cache, one prompt after the other, nothing evicted.

Advice is judged by this: the prompts as they are and the prompts as they could be go through the same tree.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from radixserve.cache.namespace import Namespace
from radixserve.cache.prefix_cache import PrefixCache
from radixserve.cache.token_key import Key, encode_tokens, key_length
from radixserve.config import CacheConfig
from radixserve.planner.trace import CallTrace

_MODEL = "plan"
PUBLIC = b""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt with what came of it. ``computed_from``: the tokens from here on are computed whatever is cached."""

    tokens: tuple[int, ...]
    outputs: tuple[tuple[int, ...], ...] = ()
    salt: bytes = b"common"
    computed_from: int | None = None

    @property
    def limit(self) -> int:
        """How many tokens may come from the cache."""
        last = len(self.tokens) - 1
        return last if self.computed_from is None else min(last, self.computed_from)


def prompts_of(calls: Iterable[CallTrace]) -> list[Prompt]:
    """The prompts of calls, in the order of their arrival."""
    found = []
    for call in calls:
        first = None
        if call.sampling.prompt_logprobs is not None:
            first = max(0, max(1, call.sampling.logprob_start) - 1)
        found.append(Prompt(call.prompt, call.outputs, call.salt, first))
    return found


def tokens_to_compute(prompts: Sequence[Prompt], block_size: int) -> int:
    """Prompt tokens that are computed when ``prompts`` come one after the other."""
    return sum(computed_tokens(prompts, block_size))


def computed_tokens(prompts: Sequence[Prompt], block_size: int) -> list[int]:
    """`tokens_to_compute` of each prompt."""
    blocks = sum(
        (len(prompt.tokens) + sum(map(len, prompt.outputs))) // block_size + 2 * (1 + len(prompt.outputs))
        for prompt in prompts
    )
    cache = PrefixCache(CacheConfig(block_size=block_size, num_blocks=max(2, blocks), ghost_tokens=0))
    tree = _Tree(cache)
    return [tree.play(prompt) for prompt in prompts]


class _Tree:
    def __init__(self, cache: PrefixCache) -> None:
        self._cache = cache
        self._step = 0

    def play(self, prompt: Prompt) -> int:
        """Compute a prompt, and keep it and its outputs; how many of its tokens were computed."""
        namespace = Namespace(_MODEL, "", prompt.salt)
        key = encode_tokens(prompt.tokens)
        computed = self._insert(namespace, key, prompt.limit)
        for output in prompt.outputs:
            if len(output) > 1:
                # The last token was drawn and not computed.
                longer = key + encode_tokens(output[:-1])
                self._insert(namespace, longer, key_length(longer))
        return computed

    def _insert(self, namespace: Namespace, key: Key, limit: int) -> int:
        cache, length = self._cache, key_length(key)
        lease = cache.acquire(namespace, key, limit)
        missing = length - lease.leased_tokens
        self._step += 1
        cache.extend(lease, length)
        cache.take_copy(lease, self._step)
        cache.publish(lease, key, length, self._step)
        cache.begin(self._step)
        cache.collect(self._step)
        cache.release(lease, key, length)
        return missing
