"""The facade's promises one by one, driven as a scheduler and a runner would; the driver checks books and KV after each call."""

from __future__ import annotations

from typing import Literal

import pytest

from radixserve.cache.block_pool import BlockState
from radixserve.cache.namespace import Namespace
from radixserve.cache.prefix_cache import Lease, PrefixCache
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


# ---------------------------------------------------------------- pending


def test_requests_of_one_step_share_what_it_computes() -> None:
    driver = make()
    jobs = [driver.arrive(PUBLIC, [*A, *B, 9, index]) for index in range(3)]
    for job in jobs:
        driver.admit(job)
    driver.plan([(job, 99) for job in jobs])
    rows = driver.flights[0].plan.rows
    assert [row.start for row in rows] == [0, 8, 8], "a follower starts where its leader's whole blocks end"
    assert driver.flights[0].plan.copies == ()
    assert {row.table[:2] for row in rows} == {rows[0].table[:2]}
    driver.collect()
    assert driver.serve([*A, *B, 9, 1, 5]) == 10


def test_sixteen_cold_requests_compute_their_prefix_once() -> None:
    driver = make(blocks=400, size=16)
    prefix = [index % 7 for index in range(1000)]
    jobs = [driver.arrive(PUBLIC, [*prefix, *[10 + rank] * 64]) for rank in range(16)]
    for job in jobs:
        driver.admit(job)
    driver.plan([(job, 9999) for job in jobs])
    assert sum(len(row.tokens) - row.start for row in driver.flights[0].plan.rows) == 992 + 16 * 72
    driver.collect()


def test_two_equal_prompts_in_one_step_keep_their_tables_right() -> None:
    driver = make()
    cache = driver.cache
    one, two = (driver.arrive(PUBLIC, [*A, *B, 3, 3], 3) for _ in range(2))
    for job in (one, two):
        driver.admit(job)
    # Both compute everything: the second does not look again before it is planned.
    leases: list[Lease] = []
    for job in (one, two):
        cache.extend(job.held, 10)
        cache.publish(job.held, job.key, 10, 1)
        leases.append(job.held)
    first, second = leases
    assert second.node.end == 0 and cache.pool.num_private == 1 + 3
    duplicates = second.table[:2]
    cache.begin(1)
    cache.collect(1)
    cache.begin(2)
    cache.settle(second, two.key, 10)
    assert second.table[:2] == first.table[:2]
    assert cache.stats.deduplicated_blocks == 2
    assert [cache.pool.state(block) for block in duplicates] == [BlockState.RETIRED] * 2
    assert second.table[2] != first.table[2]
    cache.collect(2)
    assert [cache.pool.state(block) for block in duplicates] == [BlockState.FREE] * 2
    cache.check()


def test_identical_decodes_in_lock_step_end_with_one_set_of_blocks() -> None:
    driver = make()
    jobs = [driver.arrive(PUBLIC, [1, 2, 3], 14) for _ in range(3)]
    for job in jobs:
        driver.admit(job)
    while driver.jobs:
        driver.plan([(job, 99) for job in jobs if job in driver.jobs])
        driver.collect()
    assert [job.tokens for job in jobs] == [jobs[0].tokens] * 3
    assert driver.cache.pool.num_tree == -(-17 // 4)
    assert driver.cache.stats.deduplicated_blocks > 0


def test_a_lock_step_twin_keeps_its_later_blocks_when_the_first_is_swapped() -> None:
    driver = make()
    cache = driver.cache
    key = encode_tokens([*A, *B, *C, 5])
    driver.serve(A)
    recompute = cache.acquire(PUBLIC, key, 0)
    assert recompute.leased_tokens == 0
    cache.extend(recompute, 13)
    cache.publish(recompute, key, 13, 1)
    assert recompute.node.end == 0, "the tree has the first block from somebody else"
    own = list(recompute.table)
    cache.begin(1)
    cache.collect(1)
    cache.settle(recompute, key, 13)
    assert recompute.node.end == 12
    assert recompute.table[0] != own[0] and recompute.table[1:] == own[1:]
    assert cache.pool.state(own[0]) is BlockState.FREE
    cache.check()


def test_settle_waits_for_a_twin_that_is_still_in_flight() -> None:
    cache = make().cache
    key = encode_tokens([*A, 5])
    first = cache.acquire(PUBLIC, key, 4)
    second = cache.acquire(PUBLIC, key, 4)
    cache.extend(second, 4)
    cache.begin(1)
    cache.extend(first, 4)
    cache.publish(first, key, 4, 2)
    cache.begin(2)
    cache.collect(1)
    cache.settle(second, key, 4)
    assert second.node.end == 0
    cache.collect(2)
    cache.settle(second, key, 4)
    assert second.table == first.table
    cache.check()


def test_a_rematch_gives_up_nothing_that_reaches_further() -> None:
    driver = make()
    job = driver.arrive(PUBLIC, [*A, *B, *C])
    driver.admit(job)
    driver.plan([(job, 6)])
    driver.collect()
    table = list(job.held.table)
    driver.serve([*A, 2, 9])
    assert driver.cache.rematch(job.held, job.key, 6, 11) == 6
    assert job.held.table == table
    driver.serve([*A, *B, 3, 9])
    assert driver.cache.rematch(job.held, job.key, 6, 11) == 9
    job.computed, job.in_place = 9, 0
    driver.check()
    assert driver.cache.pool.state(table[1]) is BlockState.FREE
    driver.plan([(job, 9)])
    driver.collect()


def test_the_chunks_of_a_prompt_become_one_node() -> None:
    driver = make()
    job = driver.arrive(PUBLIC, [*A, *B, *C], 20)
    driver.admit(job)
    for _ in range(12):
        driver.plan([(job, 3)])
        driver.collect()
    assert shape(driver.cache) == [(0, job.held.node.end)]
    assert job.held.node.end >= 16


# ---------------------------------------------------------------- failure


def test_a_failed_step_leaves_nothing_of_itself() -> None:
    driver = make()
    driver.serve(A)
    leader, follower = driver.arrive(PUBLIC, [*A, *B, *C, 5]), driver.arrive(PUBLIC, [*A, *B, 6])
    for job in (leader, follower):
        driver.admit(job)
    driver.plan([(leader, 99), (follower, 99)])
    assert driver.cache.tree.num_nodes > 1
    driver.fail()
    assert shape(driver.cache) == [(0, 4)]
    assert driver.cache.pool.num_tree == 1 and driver.cache.pool.num_free == 39
    for job, cached in ((leader, 4), (follower, 8)):
        driver.admit(job)
        assert job.computed == cached
        driver.plan([(job, 99)])
        driver.collect()
    driver.finish()


def test_a_step_planned_on_a_failed_one_is_undone_with_it() -> None:
    driver = make()
    job = driver.arrive(PUBLIC, [*A, *B, *C])
    other = driver.arrive(PUBLIC, [*A, *B, 7])
    driver.admit(job)
    driver.plan([(job, 8)])
    driver.admit(other)
    assert other.computed == 8, "the next step may lease what this one computes"
    driver.plan([(job, 4), (other, 9)])
    driver.fail()
    assert driver.cache.tree.num_nodes == 0 and driver.cache.pool.num_free == 40


def test_what_a_row_with_nonsense_computed_leaves_the_tree() -> None:
    driver = make()
    driver.serve(A)
    driver.serve([*A, *B, 3, 3])
    job = driver.arrive(PUBLIC, [*A, *C, 4, 4, 4])
    driver.admit(job)
    driver.plan([(job, 6)])
    driver.collect()
    driver.disown(job)
    assert driver.cache.match(PUBLIC, encode_tokens(A + C), 8).total == 4
    assert driver.cache.match(PUBLIC, encode_tokens([*A, *B, 3, 3]), 10).total == 10


def test_disowned_nodes_stay_while_another_holds_them() -> None:
    driver = make()
    one, two = driver.arrive(PUBLIC, [*A, *B, 5, 5, 5, 5]), driver.arrive(PUBLIC, [*A, *B, 6, 6, 6, 6])
    for job in (one, two):
        driver.admit(job)
    driver.plan([(one, 9), (two, 1)])
    driver.collect()
    driver.disown(one)
    assert driver.cache.tree.num_blocks == 2
    driver.disown(two)
    assert driver.cache.tree.num_blocks == 0


@pytest.mark.parametrize("chunks", range(5))
@pytest.mark.parametrize("keep_tail", [True, False])
def test_what_an_aborted_prefill_left_is_exactly_what_it_computed(chunks: int, keep_tail: bool) -> None:
    driver = make()
    prompt = [*A, *B, *C, 4, 4]
    job = driver.arrive(PUBLIC, prompt)
    driver.admit(job)
    for _ in range(chunks):
        driver.plan([(job, 3)])
        driver.collect()
    driver.leave(job, keep_tail=keep_tail)
    held = 3 * chunks if keep_tail else 3 * chunks // 4 * 4
    assert driver.serve(prompt) == held
    driver.finish()


def test_an_abort_in_flight_waits_for_its_step() -> None:
    driver = make()
    job = driver.arrive(PUBLIC, [*A, 5, 5])
    driver.admit(job)
    driver.plan([(job, 99)])
    driver.leave(job, keep_tail=True)
    assert driver.cache.evict(40) == 0
    driver.collect()
    assert not driver.cache.leases
    assert driver.serve([*A, 5, 5, 9]) == 6
    driver.finish()


def test_a_lease_ends_once() -> None:
    driver = make()
    lease = driver.cache.acquire(PUBLIC, encode_tokens(A), 3)
    driver.cache.discard(lease)
    with pytest.raises(KeyError):
        driver.cache.discard(lease)
    driver.check()


# ---------------------------------------------------------------- steps in flight


def test_blocks_dropped_while_steps_are_in_flight_wait_for_the_last_of_them() -> None:
    cache = make(blocks=6).cache
    key = encode_tokens([5] * 20)
    lease = cache.acquire(PUBLIC, key, 19)
    cache.extend(lease, 3)
    cache.begin(1)
    cache.begin(2)
    block = lease.table[0]
    cache.discard(lease)
    assert cache.pool.state(block) is BlockState.RETIRED
    assert cache.available_blocks == 5
    other = cache.acquire(PUBLIC, key, 19)
    with pytest.raises(OutOfBlocks):
        cache.extend(other, 24)
    cache.collect(1)
    assert cache.pool.state(block) is BlockState.RETIRED
    with pytest.raises(OutOfBlocks):
        cache.extend(other, 24)
    cache.collect(2)
    cache.extend(other, 24)
    assert cache.pool.num_private == 6
    cache.check()


def test_a_block_dropped_between_steps_is_free_at_once() -> None:
    cache = make().cache
    lease = cache.acquire(PUBLIC, encode_tokens(A), 3)
    cache.extend(lease, 4)
    cache.discard(lease)
    assert cache.pool.num_free == 40


def test_two_steps_may_be_in_flight_one_leasing_what_the_other_computes() -> None:
    driver = make()
    leader = driver.arrive(PUBLIC, [*A, *B, 5])
    driver.admit(leader)
    driver.plan([(leader, 8)])
    follower = driver.arrive(PUBLIC, [*A, *B, 6])
    driver.admit(follower)
    assert (follower.computed, follower.held.copy) == (8, None)
    driver.plan([(leader, 1), (follower, 1)])
    driver.collect()
    driver.collect()
    assert not driver.jobs
    driver.finish()


# ---------------------------------------------------------------- forks


@pytest.mark.parametrize("length", range(1, 10))
def test_forks_share_the_path_and_copy_only_the_tail(length: int) -> None:
    driver = make()
    prompt = [index % 3 for index in range(length)]
    job = driver.arrive(PUBLIC, prompt, 6, samples=3)
    driver.admit(job)
    driver.plan([(job, 99)])
    driver.collect()
    forks = list(driver.jobs)
    assert [fork.computed for fork in forks] == [length] * 3
    assert driver.cache.pool.num_tree == -(-length // 4)
    assert driver.cache.pool.num_private == 0
    while driver.jobs:
        driver.plan([(fork, 1) for fork in driver.jobs])
        driver.collect()
    assert len({tuple(fork.tokens) for fork in forks}) == 3
    assert driver.cache.stats.copied_tokens == 3 * (length % 4)
    driver.finish()


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
