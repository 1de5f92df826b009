"""Token-exact re-use, tails, blocks and eviction; the driver checks books and KV after each call."""

from __future__ import annotations

from typing import Literal

import pytest

from radixserve.cache.block_pool import BlockState
from radixserve.cache.namespace import Namespace
from radixserve.cache.prefix_cache import PrefixCache
from radixserve.cache.token_key import encode_tokens
from radixserve.config import CacheConfig
from radixserve.errors import OutOfBlocks
from tests.cache.driver import PUBLIC, Driver

A, B, C = [1, 1, 1, 1], [2, 2, 2, 2], [3, 3, 3, 3]
TENANT, OTHER = Namespace("m", "", b"x"), Namespace("m", "", b"y")


def make(blocks: int = 40, size: int = 4, eviction: Literal["lru", "lfu"] = "lru") -> Driver:
    return Driver(CacheConfig(block_size=size, num_blocks=blocks, eviction=eviction), alphabet=10)


def shape(cache: PrefixCache) -> list[tuple[int, int]]:
    """(start, end) of every node."""
    return sorted((node.start, node.end) for node in cache.tree.nodes())


# ---------------------------------------------------------------- token-exact re-use


def test_a_long_shared_prefix_is_hit_to_the_last_token() -> None:
    driver = make(blocks=200, size=16)
    prefix = [index % 7 for index in range(2010)]
    driver.serve([*prefix, 8, *[index % 5 for index in range(199)]])
    assert driver.serve([*prefix, 9, *[index % 3 for index in range(199)]]) == 2010


@pytest.mark.parametrize("size", [1, 3, 4, 16])
@pytest.mark.parametrize("offset", [-1, 0, 1])
@pytest.mark.parametrize("whole", [0, 1, 2])
def test_lengths_around_multiples_of_the_block_size(size: int, offset: int, whole: int) -> None:
    length = whole * size + offset
    if length < 1:
        length = 1
    driver = make(size=size)
    prompt = [index % 3 for index in range(length)]
    driver.serve(prompt)
    assert driver.cache.tree.num_blocks == -(-length // size)
    assert driver.serve([*prompt, 7]) == length
    assert driver.serve([*prompt, 8, 8]) == length


@pytest.mark.parametrize("length", range(1, 10))
def test_a_prompt_that_is_cached_whole_leaves_one_token_to_compute(length: int) -> None:
    driver = make()
    prompt = [index % 3 for index in range(length)]
    assert driver.serve(prompt) == 0
    assert driver.serve(prompt) == length - 1


def test_every_turn_of_a_chat_hits_all_that_was_committed_before() -> None:
    driver = make()
    text = [1, 2, 3, 4, 5, 6]
    committed = 0
    for _ in range(4):
        job = driver.arrive(PUBLIC, text, 5)
        driver.admit(job)
        assert job.computed == committed
        while job in driver.jobs:
            driver.plan([(job, 99)])
            driver.collect()
        committed = len(job.tokens)
        text = [*job.tokens, 9, 8, 7]


def test_a_copy_starts_where_the_whole_blocks_end_and_spares_its_source() -> None:
    driver = make()
    driver.serve(A + B)
    job = driver.arrive(PUBLIC, [*A, 2, 2, 5, 5])
    driver.admit(job)
    lease = job.held
    assert lease.copy is not None and lease.copy.length == 2
    assert (lease.leased_tokens, lease.node.end, len(lease.table)) == (6, 4, 1)
    driver.plan([(job, 9)])
    ((source, target),) = driver.flights[0].plan.copies
    assert driver.cache.pool.state(source) is BlockState.TREE
    assert source != target == lease.table[1]
    assert driver.cache.evict(40) == 0, "the source stays locked while the copy is in flight"
    driver.collect()
    assert driver.serve([*A, 2, 2, 2, 2, 9]) == 8
    assert driver.cache.stats.copied_tokens == 2


def test_a_copy_can_be_declined() -> None:
    driver = make()
    driver.serve([*A, 2, 2])
    lease = driver.cache.acquire(PUBLIC, encode_tokens([*A, 2, 2, 9]), 6, copy=False)
    assert (lease.leased_tokens, lease.copy) == (4, None)
    driver.cache.discard(lease)
    driver.check()


def test_the_callers_buffer_may_change_after_every_call() -> None:
    driver = make()
    cache = driver.cache
    buffer = bytearray(encode_tokens([*A, *B, 3, 3]))
    lease = cache.acquire(PUBLIC, buffer, 9)
    cache.extend(lease, 10)
    cache.publish(lease, buffer, 10, 1)
    cache.begin(1)
    buffer[:] = b"\x01" * len(buffer)
    cache.collect(1)
    buffer[:] = encode_tokens([*A, *B, 3, 3])
    cache.release(lease, buffer, 10)
    buffer[:] = b"\x02" * len(buffer)
    cache.check()
    assert cache.match(PUBLIC, encode_tokens([*A, *B, 3, 3]), 10).total == 10


def test_the_counters_count_tokens_and_blocks() -> None:
    driver = make()
    driver.serve([*A, 2, 2])
    driver.serve([*A, 2, 3])
    stats = driver.cache.stats
    assert (stats.queries, stats.queried_tokens, stats.hit_tokens, stats.copied_tokens) == (2, 10, 5, 1)
    driver.evict(1)
    assert (stats.evicted_blocks, stats.evictions) == (1, 1)


# ---------------------------------------------------------------- tails


def test_a_longer_tail_replaces_a_shorter_and_a_shorter_one_changes_nothing() -> None:
    driver = make()
    driver.serve([*A, 2])
    driver.serve([*A, 2, 2, 2])
    assert shape(driver.cache) == [(0, 4), (4, 7)]
    driver.serve([*A, 2, 2])
    assert shape(driver.cache) == [(0, 4), (4, 7)]
    assert driver.cache.pool.num_tree == 2
    assert driver.cache.pool.num_free == 38


def test_a_full_block_replaces_the_tail_it_continues() -> None:
    driver = make()
    driver.serve([*A, 2, 2])
    driver.serve([*A, *B])
    assert driver.cache.pool.num_tree == 2
    assert sum(node.length for node in driver.cache.tree.nodes()) == 8


def test_a_replaced_tail_that_is_still_a_copy_source_keeps_its_block() -> None:
    driver = make()
    driver.serve([*A, 2, 2])
    waiting = driver.arrive(PUBLIC, [*A, 2, 2, 7, 7])
    driver.admit(waiting)
    source = waiting.held.copy
    assert source is not None
    driver.serve([*A, 2, 2, 8])
    assert not source.node.alive
    assert driver.cache.pool.state(source.block) is BlockState.TREE
    assert driver.cache.evict(40) == 1, "only the longer tail: what the copy needs is locked"
    assert driver.cache.pool.state(source.block) is BlockState.TREE
    driver.must.clear()
    driver.plan([(waiting, 9)])
    driver.collect()
    assert driver.cache.pool.num_private == driver.cache.pool.num_retired == 0
    driver.finish()


@pytest.mark.parametrize("how", ["discard", "rematch", "take"])
def test_the_last_hold_on_a_replaced_tail_gives_its_block_back(how: str) -> None:
    driver = make()
    cache = driver.cache
    driver.serve([*A, 2, 2])
    waiting = driver.arrive(PUBLIC, [*A, 2, 2, 7, 7, 7])
    driver.admit(waiting)
    assert waiting.held.copy is not None
    block = waiting.held.copy.block
    driver.serve([*A, 2, 2, 7, 8])
    if how == "discard":
        driver.leave(waiting, keep_tail=False, forget=True)
    elif how == "rematch":
        assert cache.rematch(waiting.held, waiting.key, 6, 8) == 7
        waiting.computed = 7
        driver.check()
    else:
        lease = waiting.held
        cache.extend(lease, 8)
        assert cache.take_copy(lease, 50) == (block, lease.table[1])
        assert cache.take_copy(lease, 50) is None
        cache.begin(50)
        assert cache.pool.state(block) is BlockState.TREE
        cache.roll_back(50)
    assert cache.pool.state(block) is BlockState.FREE


def test_a_lease_with_its_copy_still_to_be_made_stores_no_tail() -> None:
    driver = make()
    driver.serve([*A, 2, 2, 2])
    job = driver.arrive(PUBLIC, [*A, 2, 2, 5])
    driver.admit(job)
    driver.cache.release(job.held, job.key, 6)
    driver.jobs.remove(job)
    assert shape(driver.cache) == [(0, 4), (4, 7)]
    driver.check()


def test_a_lease_may_end_without_its_tail() -> None:
    driver = make()
    job = driver.arrive(PUBLIC, [*A, 2, 2, 2])
    driver.admit(job)
    driver.plan([(job, 6)])
    driver.collect()
    driver.leave(job, keep_tail=False)
    assert shape(driver.cache) == [(0, 4)]


# ---------------------------------------------------------------- namespaces


def test_namespaces_part_models_adapters_and_salts() -> None:
    driver = make()
    prompt = [*A, *B, 3]
    assert driver.serve(prompt, TENANT) == 0
    for namespace in (OTHER, PUBLIC, Namespace("m", "adapter", b"x"), Namespace("other", "", b"x")):
        assert driver.serve(prompt, namespace) == 0, namespace
        assert driver.serve(prompt, namespace) == 8
    assert TENANT.tree == ("m", "")


def test_a_tenants_nodes_hang_below_public_ones_and_are_its_own() -> None:
    driver = make()
    driver.serve([*A, *B])
    assert driver.serve([*A, *B, *C, 5], TENANT) == 8
    assert driver.serve([*A, *B, *C, 5, 6], TENANT) == 13
    assert driver.serve([*A, *B, *C, 5, 6], OTHER) == 8
    assert driver.serve([*A, *B, *C, 5, 6]) == 8
    public = [node for node in driver.cache.tree.nodes() if node.salt == b"" and node.start == 0]
    assert len(public) == 1


def test_a_tail_of_another_tenant_is_never_a_copy_source() -> None:
    driver = make()
    driver.serve([1, 1], TENANT)
    assert driver.serve([1, 1, 5], OTHER) == 0
    assert driver.serve([1, 1, 6], PUBLIC) == 0
    assert driver.serve([1, 1, 7], TENANT) == 2


# ---------------------------------------------------------------- blocks and eviction


def test_extend_evicts_exactly_what_is_missing_and_refuses_without_a_trace() -> None:
    driver = make(blocks=6)
    driver.serve(A + B + C)
    cache = driver.cache
    key = encode_tokens([7] * 40)
    lease = cache.acquire(PUBLIC, key, 39)
    cache.extend(lease, 16)
    assert (cache.pool.num_free, cache.stats.evicted_blocks) == (0, 1)
    assert cache.match(PUBLIC, encode_tokens(A + B + C), 12).total == 8
    with pytest.raises(OutOfBlocks) as refused:
        cache.extend(lease, 28)
    assert (refused.value.needed, refused.value.available) == (3, 2)
    assert (len(lease.table), cache.stats.evicted_blocks) == (4, 1)
    cache.extend(lease, 16)
    cache.extend(lease, 24)
    assert (len(lease.table), cache.tree.num_blocks) == (6, 0)
    cache.check()


def test_blocks_are_counted_up() -> None:
    cache = make().cache
    assert [cache.blocks_for(length) for length in (0, 1, 4, 5, 8, 9)] == [0, 1, 1, 2, 2, 3]
    lease = cache.acquire(PUBLIC, encode_tokens(A + B), 7)
    assert [cache.missing_blocks(lease, length) for length in (0, 1, 4, 5)] == [0, 1, 1, 2]
    cache.extend(lease, 5)
    assert [cache.missing_blocks(lease, length) for length in (1, 8, 9)] == [0, 0, 1]


@pytest.mark.parametrize(
    ("prompt", "locked"),
    [([*A, *B, *C, 9], 3), ([*A, *B, 9, 9, 9], 2), ([*A, *B, 3, 3, 9], 3), ([*A, 2, 9], 3), ([1, 9], 3), ([9, 9], 0)],
)
def test_the_blocks_that_a_match_would_lock_are_foretold(prompt: list[int], locked: int) -> None:
    driver = make()
    driver.serve(A + B + C)
    match = driver.cache.match(PUBLIC, encode_tokens(prompt), len(prompt) - 1)
    assert driver.cache.locked_by(match) == locked
    first, second = driver.arrive(PUBLIC, prompt), driver.arrive(PUBLIC, prompt)
    driver.admit(first)
    assert driver.cache.locked_by(driver.cache.match(PUBLIC, encode_tokens(prompt), len(prompt) - 1)) == 0
    driver.admit(second)


def test_the_least_recently_used_prompt_goes_first() -> None:
    driver = make()
    for prompt in (A, B, C):
        driver.serve(prompt)
    driver.serve([*A, 9])
    driver.evict(1)
    assert [driver.cache.match(PUBLIC, encode_tokens(p), 4).total for p in (A, B, C)] == [4, 0, 4]


def test_lfu_keeps_the_prompt_that_is_leased_most() -> None:
    driver = make(eviction="lfu")
    for prompt in (A, A, A, A, B, C, C):
        driver.serve(prompt)
    driver.evict(1)
    assert [driver.cache.match(PUBLIC, encode_tokens(p), 4).total for p in (A, B, C)] == [4, 0, 4]


def test_flush_keeps_what_is_leased_and_forgets_the_rest() -> None:
    driver = make()
    driver.serve(A + B)
    driver.serve(C)
    job = driver.arrive(PUBLIC, [*A, 9])
    driver.admit(job)
    driver.evict(1)
    assert len(driver.cache.ghosts) == 1
    driver.flush()
    assert shape(driver.cache) == [(0, 4)]
    driver.finish()


def test_ghosts_are_bounded_by_their_option() -> None:
    driver = Driver(CacheConfig(block_size=4, num_blocks=8, ghost_tokens=40), alphabet=10)
    for index in range(60):
        driver.serve([index % 9, index % 7, index % 5, index % 3, 1, 2, 3, index])
        assert driver.cache.ghosts.num_tokens <= 40
    assert len(driver.cache.ghosts) == 5
