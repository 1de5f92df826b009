"""What the prefix cache costs: ``pytest bench/test_bench_cache.py --benchmark-only``.

Every figure is of one call of the function under test on a cache that was prepared outside the timing. Block size 16.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from radixserve.cache.namespace import Namespace
from radixserve.cache.prefix_cache import PrefixCache
from radixserve.cache.token_key import encode_tokens
from radixserve.config import CacheConfig

BLOCK = 16
LONG = 100_000
PUBLIC = Namespace("m")


def make(num_blocks: int) -> PrefixCache:
    return PrefixCache(CacheConfig(block_size=BLOCK, num_blocks=num_blocks))


def prompt(seed: int, length: int) -> bytes:
    return encode_tokens(np.random.default_rng(seed).integers(0, 49_152, length))


def serve(cache: PrefixCache, key: bytes, length: int, step: int) -> None:
    """One request that is computed in one step."""
    lease = cache.acquire(PUBLIC, key, length - 1)
    cache.extend(lease, length)
    cache.take_copy(lease, step)
    cache.publish(lease, key, length, step)
    cache.begin(step)
    cache.collect(step)
    cache.settle(lease, key, length)
    cache.release(lease, key, length)


def forest(num_nodes: int, *, spare_blocks: int = 0) -> PrefixCache:
    """A tree of about so many nodes: prompts of one to four blocks that branch off one another."""
    rng = random.Random(num_nodes)
    cache = make(4 * num_nodes + spare_blocks + 8)
    keys: list[bytes] = [b""]
    step = 0
    while cache.tree.num_nodes < num_nodes:
        step += 1
        base = keys[rng.randrange(max(0, len(keys) - 500), len(keys))]
        base = base[: rng.randint(0, len(base) // (4 * BLOCK)) * 4 * BLOCK]
        key = base + prompt(step, BLOCK * rng.randint(1, 2))
        keys.append(key[: 16 * 4 * BLOCK])
        serve(cache, keys[-1], len(keys[-1]) // 4, step)
    return cache


def test_match_and_insert_of_a_cold_100k_token_prompt(benchmark: BenchmarkFixture) -> None:
    key = prompt(1, LONG)

    def setup() -> tuple[tuple[PrefixCache], dict[str, object]]:
        return (make(LONG // BLOCK + 8),), {}

    def insert(cache: PrefixCache) -> None:
        lease = cache.acquire(PUBLIC, key, LONG - 1)
        cache.extend(lease, LONG)
        cache.publish(lease, key, LONG, 1)
        cache.begin(1)
        cache.collect(1)
        cache.settle(lease, key, LONG)

    benchmark.pedantic(insert, setup=setup, rounds=50, warmup_rounds=3)  # type: ignore[no-untyped-call]


def test_a_100k_token_prompt_that_parts_from_a_cached_one_in_its_middle(benchmark: BenchmarkFixture) -> None:
    first = prompt(1, LONG)
    second = first[: LONG * 2] + prompt(2, LONG // 2)

    def setup() -> tuple[tuple[PrefixCache], dict[str, object]]:
        cache = make(2 * (LONG // BLOCK) + 8)
        serve(cache, first, LONG, 1)
        return (cache,), {}

    benchmark.pedantic(lambda cache: serve(cache, second, LONG, 2), setup=setup, rounds=20, warmup_rounds=2)  # type: ignore[no-untyped-call]


def test_match_of_a_cached_100k_token_prompt(benchmark: BenchmarkFixture) -> None:
    cache = make(LONG // BLOCK + 8)
    key = prompt(1, LONG)
    serve(cache, key, LONG, 1)
    match = benchmark(cache.match, PUBLIC, key, LONG - 1)
    assert match.total == LONG - 1


def test_acquire_and_discard_of_a_cached_100k_token_prompt(benchmark: BenchmarkFixture) -> None:
    cache = make(LONG // BLOCK + 8)
    key = prompt(1, LONG)
    serve(cache, key, LONG, 1)
    benchmark(lambda: cache.discard(cache.acquire(PUBLIC, key, LONG - 1)))


@pytest.mark.parametrize("num_nodes", [1_000, 10_000, 100_000])
def test_evict_100_blocks(benchmark: BenchmarkFixture, num_nodes: int) -> None:
    """Divide by 100 for the cost per block; it must not depend on the tree's size."""
    cache = forest(num_nodes)
    rounds = min(20, cache.tree.evictable_blocks // 200)
    benchmark.pedantic(cache.evict, (100,), rounds=rounds, warmup_rounds=1)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("num_nodes", [1_000, 10_000, 100_000])
def test_one_request_of_128_new_tokens_that_must_evict(benchmark: BenchmarkFixture, num_nodes: int) -> None:
    """The whole life of a request in a full pool."""
    cache = forest(num_nodes)
    filler = cache.acquire(PUBLIC, b"", 0)
    cache.extend(filler, cache.pool.num_free * BLOCK)
    keys = iter([prompt(10**6 + index, 128) for index in range(300)])
    steps = iter(range(10**7, 10**7 + 300))
    benchmark.pedantic(lambda: serve(cache, next(keys), 128, next(steps)), rounds=200, warmup_rounds=10)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("shared", [0, 1_024])
def test_acquire_and_discard_on_a_tree_of_10k_prompts(benchmark: BenchmarkFixture, shared: int) -> None:
    """Prompts of 64 own tokens behind none or 1,024 shared ones."""
    cache = make(10_000 * 5 + shared // BLOCK + 8)
    prefix = prompt(0, shared)
    keys = [prefix + prompt(seed, 64) for seed in range(1, 10_001)]
    for step, key in enumerate(keys, start=1):
        serve(cache, key, shared + 64, step)
    order = random.Random(1)
    benchmark(_round_trip(cache, lambda: order.choice(keys), shared + 63))


def _round_trip(cache: PrefixCache, pick: Callable[[], bytes], limit: int) -> Callable[[], None]:
    def once() -> None:
        cache.discard(cache.acquire(PUBLIC, pick(), limit))

    return once


def test_a_decode_step_that_fills_no_block(benchmark: BenchmarkFixture) -> None:
    """One row of a step deep in a 10,000-token context: rematch, extend, publish, collect, settle."""
    cache = make(700)
    key = prompt(1, 10_010)
    lease = cache.acquire(PUBLIC, key, 10_009)
    cache.extend(lease, 10_008)
    cache.publish(lease, key, 10_008, 1)
    cache.begin(1)
    cache.collect(1)
    cache.settle(lease, key, 10_008)
    steps = iter(range(2, 10**9))

    def decode() -> None:
        step = next(steps)
        cache.rematch(lease, key, 10_008, 10_008)
        cache.extend(lease, 10_009)
        cache.publish(lease, key, 10_009, step)
        cache.begin(step)
        cache.collect(step)
        cache.settle(lease, key, 10_009)

    benchmark(decode)
