"""``prefix_cache`` off and force_miss, the baselines: no hit ever, the same books, the same KV."""

from __future__ import annotations

from typing import Literal

import pytest

from radixserve.cache.block_pool import BlockState
from radixserve.cache.namespace import Namespace
from radixserve.cache.token_key import encode_tokens
from radixserve.config import CacheConfig
from tests.cache.driver import PUBLIC, Driver

PROMPT = [1, 1, 1, 1, 2, 2, 2, 2, 3, 3]
Mode = Literal["off", "force_miss"]


def make(mode: Mode) -> Driver:
    return Driver(CacheConfig(block_size=4, num_blocks=40, prefix_cache=mode), alphabet=10)


@pytest.mark.parametrize("mode", ["off", "force_miss"])
def test_nothing_is_ever_hit(mode: Mode) -> None:
    driver = make(mode)
    for _ in range(3):
        assert driver.serve(PROMPT, outputs=5) == 0
    assert driver.cache.stats.hit_tokens == 0
    assert driver.cache.explain(PUBLIC, encode_tokens(PROMPT)).reason == "disabled"


@pytest.mark.parametrize("mode", ["off", "force_miss"])
def test_requests_of_one_step_do_not_share(mode: Mode) -> None:
    driver = make(mode)
    jobs = [driver.arrive(PUBLIC, PROMPT) for _ in range(3)]
    for job in jobs:
        driver.admit(job)
    driver.plan([(job, 99) for job in jobs])
    assert [row.start for row in driver.flights[0].plan.rows] == [0, 0, 0]
    driver.collect()
    driver.finish()


def test_off_gives_every_request_a_namespace_and_keeps_nothing_of_it() -> None:
    driver = make("off")
    one, two = driver.cache.namespace_of(PUBLIC, "a"), driver.cache.namespace_of(PUBLIC, "b")
    assert one != two and one.tree == two.tree == PUBLIC.tree
    driver.serve(PROMPT, outputs=9)
    assert driver.cache.pool.num_free == 40
    assert driver.cache.tree.num_nodes == 0
    assert len(driver.cache.ghosts) == 0


@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 10])
def test_off_still_forks_from_one_prompt(length: int) -> None:
    driver = make("off")
    job = driver.arrive(PUBLIC, PROMPT[:length], 5, samples=3)
    driver.admit(job)
    driver.plan([(job, 99)])
    driver.collect()
    assert [fork.computed for fork in driver.jobs] == [length] * 3
    while driver.jobs:
        driver.plan([(fork, 1) for fork in driver.jobs])
        driver.collect()
    assert driver.cache.pool.num_free == 40
    assert driver.cache.tree.num_nodes == 0


def test_off_forgets_a_copy_source_only_after_the_last_copy() -> None:
    driver = make("off")
    job = driver.arrive(PUBLIC, PROMPT, 5, samples=2)
    driver.admit(job)
    driver.plan([(job, 99)])
    driver.collect()
    first, second = list(driver.jobs)
    assert first.held.copy is not None
    source = first.held.copy.block
    driver.plan([(first, 1)])
    driver.collect()
    assert driver.cache.pool.state(source) is BlockState.TREE
    driver.plan([(second, 1)])
    assert driver.cache.pool.state(source) is BlockState.TREE
    driver.collect()
    assert driver.cache.pool.state(source) is BlockState.FREE
    driver.finish()


def test_off_keeps_a_copy_source_that_a_rematch_takes_over_again() -> None:
    cache = make("off").cache
    namespace = cache.namespace_of(PUBLIC, "r")
    key = encode_tokens([1, 1, 1, 1, 2, 2, 2, 9, 9])
    parent = cache.acquire(namespace, key, 8)
    cache.extend(parent, 7)
    (fork,) = cache.fork(parent, key, 6, 1)
    cache.discard(parent)
    assert fork.copy is not None and fork.copy.length == 2
    short = cache.acquire(namespace, key, 5)
    cache.discard(fork)
    assert cache.rematch(short, key, 5, 8) == 6
    assert short.copy is not None and short.copy.length == 2
    assert short.copy.node.alive
    assert cache.pool.state(short.copy.block) is BlockState.TREE
    cache.check()
    cache.discard(short)
    assert cache.pool.num_free == 40


def test_off_forgets_a_preempted_request_too() -> None:
    driver = make("off")
    job = driver.arrive(PUBLIC, PROMPT)
    driver.admit(job)
    driver.plan([(job, 9)])
    driver.collect()
    driver.preempt(job, keep_tail=False)
    assert driver.cache.pool.num_free == 40
    driver.admit(job)
    assert job.computed == 0


def test_off_rolls_a_failed_step_back() -> None:
    driver = make("off")
    job = driver.arrive(PUBLIC, PROMPT)
    driver.admit(job)
    driver.plan([(job, 9)])
    driver.fail()
    assert driver.cache.pool.num_free == 40


def test_force_miss_fills_the_tree_as_ever() -> None:
    driver = make("force_miss")
    reference = Driver(CacheConfig(block_size=4, num_blocks=40), alphabet=10)
    for each in (driver, reference):
        each.serve(PROMPT, outputs=5)
        each.serve([*PROMPT[:6], 9, 9])
    shapes = [sorted((n.start, n.data) for n in each.cache.tree.nodes()) for each in (driver, reference)]
    assert shapes[0] == shapes[1]
    assert driver.cache.pool.num_tree == reference.cache.pool.num_tree


def test_on_leaves_the_namespace_as_it_is() -> None:
    cache = Driver(CacheConfig(num_blocks=4)).cache
    tenant = Namespace("m", "adapter", b"x")
    assert cache.namespace_of(tenant, "r") is tenant
