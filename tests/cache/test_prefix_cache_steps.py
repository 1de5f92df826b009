"""What a step in flight, failed or planned on another means; the driver checks books and KV after each call."""

from __future__ import annotations

from typing import Literal

import pytest

from radixserve.cache.block_pool import BlockState
from radixserve.cache.lease import Lease
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
