"""`check()` must find every kind of corruption; each test plants one and names the fact that must be told."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from radixserve.cache.block_pool import BlockState
from radixserve.cache.lease import Lease
from radixserve.cache.node import Node
from radixserve.cache.prefix_cache import PrefixCache
from radixserve.config import CacheConfig
from radixserve.errors import CacheInconsistent
from tests.cache.driver import PUBLIC, Driver

A, B, C = [1, 1, 1, 1], [2, 2, 2, 2], [3, 3, 3, 3]


class Scene:
    """A small cache with one of everything.

    ``trunk`` (one block) has two children: ``leaf`` (two blocks) and ``tail`` (2 tokens). ``lease`` holds ``trunk`` with a
    copy from ``leaf``. ``busy`` has a private block. One block is retired.
    """

    def __init__(self) -> None:
        self.driver = Driver(CacheConfig(block_size=4, num_blocks=20), alphabet=5)
        driver = self.driver
        driver.serve([*A, *B, *C])
        driver.serve([*A, 3, 3])
        waiting = driver.arrive(PUBLIC, [*A, 2, 2, 9, 9])
        driver.admit(waiting)
        busy = driver.arrive(PUBLIC, [4, 4, 4, 4, 4, 4])
        driver.admit(busy)
        driver.plan([(busy, 9)])
        self.cache: PrefixCache = driver.cache
        self.lease: Lease = waiting.held
        self.busy: Lease = busy.held
        self.trunk = self._node(0, 4, 1)
        self.leaf = self._node(4, 12, 2)
        self.tail = self._node(4, 6, 3)
        self.cache.pool.retire(self.cache.pool.allocate(1), 99)
        self.cache.check()

    def _node(self, start: int, end: int, token: int) -> Node:
        return next(
            node
            for node in self.cache.tree.nodes()
            if (node.start, node.end, node.data[3]) == (start, end, 2 if token == 2 else token)
        )


def _dead(s: Scene) -> None:
    s.tail.alive = False


def _start(s: Scene) -> None:
    s.tail.start = 8


def _salt(s: Scene) -> None:
    s.trunk.salt = b"x"


def _blocks_missing(s: Scene) -> None:
    s.leaf.blocks.pop()


def _tail_with_children(s: Scene) -> None:
    s.trunk.data = s.trunk.data[:8]


def _misfiled(s: Scene) -> None:
    s.tail.data = b"\0\0\0\x05" + s.tail.data[4:]


def _parent(s: Scene) -> None:
    s.tail.parent = s.leaf.parent.parent if s.leaf.parent else None


def _sibling(s: Scene) -> None:
    children = s.trunk.children
    assert children is not None
    short = Node(s.trunk, b"", s.tail.data[:4], s.tail.blocks, 4)
    children[(b"", short.data)] = short


def _lock_lost(s: Scene) -> None:
    s.trunk.lock -= 1


def _lock_leaked(s: Scene) -> None:
    s.tail.lock += 1


def _lease_forgotten(s: Scene) -> None:
    s.cache.leases.discard(s.lease)


def _table(s: Scene) -> None:
    s.lease.table[0] += 1


def _two_owners(s: Scene) -> None:
    s.busy.table[-1] = s.tail.blocks[0]


def _freed_in_use(s: Scene) -> None:
    s.cache.pool.free(s.tail.blocks)


def _leaked_block(s: Scene) -> None:
    s.busy.table.pop()


def _pool_count(s: Scene) -> None:
    s.cache.pool._count[BlockState.PRIVATE] += 1


def _retired_lost(s: Scene) -> None:
    s.cache.pool._retired.clear()


def _pending_forgotten(s: Scene) -> None:
    s.tail.pending = 7


def _free_list(s: Scene) -> None:
    s.cache.pool._free.pop()


def _free_twice(s: Scene) -> None:
    s.cache.pool._free[0] = s.cache.pool._free[1]


def _handed_out(s: Scene) -> None:
    s.cache.pool._free[0] = s.tail.blocks[0]


def _num_nodes(s: Scene) -> None:
    s.cache.tree.num_nodes += 1


def _num_blocks(s: Scene) -> None:
    s.cache.tree.num_blocks -= 1


def _evictable(s: Scene) -> None:
    s.cache.tree.evictable_blocks += 2


def _unqueued(s: Scene) -> None:
    s.tail.heap_key = None


PLANTED: list[tuple[Callable[[Scene], None], str]] = [
    (_dead, "tokens 4-6 is in the tree but marked dead"),
    (_start, "tokens 8-10 starts at 8, its parent ends at 4"),
    (_salt, "has another salt than its parent"),
    (_blocks_missing, "tokens 4-12 has 8 tokens in 1 blocks of 4"),
    (_tail_with_children, "is a tail of 2 tokens with 2 children"),
    (_misfiled, "tokens 4-6 is filed under another key"),
    (_parent, "has another parent than the node it hangs from"),
    (_sibling, "tokens 4-6 extends its sibling the node of tokens 4-5"),
    (_lock_lost, "tokens 0-4 has lock 1, 2 holders are counted"),
    (_lock_leaked, "tokens 4-6 has lock 1, 0 holders are counted"),
    (_lease_forgotten, "tokens 0-4 has lock 2, 0 holders are counted"),
    (_table, "a block table begins"),
    (_two_owners, "is owned by the node of tokens 4-6 and a lease"),
    (_freed_in_use, "is FREE in the pool, TREE by count"),
    (_leaked_block, "is PRIVATE in the pool, FREE by count"),
    (_pool_count, "blocks are booked PRIVATE"),
    (_retired_lost, "is RETIRED in the pool, FREE by count"),
    (_pending_forgotten, "tokens 4-6 is pending on step 7, which does not write it"),
    (_free_list, "is 0 times in the free list, 1 times by count"),
    (_free_twice, "is 2 times in the free list, 1 times by count"),
    (_handed_out, "is 1 times in the free list, 0 times by count"),
    (_num_nodes, "num_nodes is 5, 4 by count"),
    (_num_blocks, "num_blocks is 4, 5 by count"),
    (_evictable, "evictable_blocks is 3, 1 by count"),
    (_unqueued, "tokens 4-6 can be evicted but is not queued for it"),
]


@pytest.mark.parametrize(("plant", "fact"), PLANTED, ids=lambda value: getattr(value, "__name__", None))
def test_a_planted_corruption_is_found_and_named(plant: Callable[[Scene], None], fact: str) -> None:
    scene = Scene()
    plant(scene)
    with pytest.raises(CacheInconsistent) as found:
        scene.cache.check()
    assert any(fact in told for told in found.value.facts), found.value.facts
    assert all(told in str(found.value) for told in found.value.facts)


def test_every_wrong_number_is_told_at_once() -> None:
    scene = Scene()
    _num_nodes(scene)
    _lock_leaked(scene)
    _unqueued(scene)
    with pytest.raises(CacheInconsistent) as found:
        scene.cache.check()
    assert len(found.value.facts) >= 2


@pytest.mark.parametrize(
    "plant",
    [_num_nodes, _lock_leaked, _freed_in_use, _evictable, _blocks_missing, _pool_count, _retired_lost, _free_twice],
)
def test_an_idle_cache_is_repaired_and_goes_on(
    plant: Callable[[Scene], None], caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene()
    driver, cache = scene.driver, scene.cache
    driver.collect()
    for job in list(driver.jobs):
        driver.leave(job, keep_tail=True)
    assert not cache.leases
    plant(scene)
    assert cache.check_and_repair() is False
    cache.check()
    assert (cache.stats.repairs, len(cache.stats.failed_checks)) == (1, 1)
    assert cache.stats.failed_checks[0] in caplog.text
    assert cache.pool.num_free == cache.pool.total == 20
    assert cache.tree.num_nodes == cache.tree.evictable_blocks == 0
    assert cache.check_and_repair() is True
    lease = cache.acquire(PUBLIC, b"\0\0\0\1" * 8, 7)
    cache.extend(lease, 8)
    cache.release(lease, b"\0\0\0\1" * 8, 8)
    cache.check()
    assert cache.match(PUBLIC, b"\0\0\0\1" * 8, 7).total == 7


def test_a_sound_cache_is_left_alone() -> None:
    scene = Scene()
    nodes = list(scene.cache.tree.nodes())
    assert scene.cache.check_and_repair() is True
    assert list(scene.cache.tree.nodes()) == nodes
    assert scene.cache.stats.repairs == 0
