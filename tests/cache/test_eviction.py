"""The eviction heap against a sorted list, and the two orders."""

from __future__ import annotations

import random

import pytest

from radixserve.cache.eviction import EvictionHeap, LeastFrequentlyUsed, LeastRecentlyUsed, eviction_policy
from radixserve.cache.node import Node


def _leaf(last_access: int = 0, hits: int = 0) -> Node:
    root = Node(None, b"", b"", [], 0)
    leaf = Node(root, b"", b"\0\0\0\1", [0], 0)
    leaf.last_access, leaf.hits = last_access, hits
    return leaf


def test_the_names_of_the_policies() -> None:
    assert isinstance(eviction_policy("lru"), LeastRecentlyUsed)
    assert isinstance(eviction_policy("lfu"), LeastFrequentlyUsed)


def test_lru_takes_the_longest_unused_and_lfu_the_least_leased_first() -> None:
    old_but_popular, young = _leaf(1, hits=5), _leaf(2, hits=0)
    also_young = _leaf(3, hits=0)
    leaves = [also_young, old_but_popular, young]
    for policy, order in (
        (LeastRecentlyUsed(), [old_but_popular, young, also_young]),
        (LeastFrequentlyUsed(), [young, also_young, old_but_popular]),
    ):
        heap = EvictionHeap(policy)
        for leaf in leaves:
            leaf.heap_key = None
            heap.push(leaf)
        assert [heap.pop() for _ in leaves] == order
        assert heap.pop() is None


def test_what_cannot_be_evicted_now_is_passed_over_and_can_be_pushed_again() -> None:
    heap = EvictionHeap(LeastRecentlyUsed())
    locked, gone, free = _leaf(1), _leaf(2), _leaf(3)
    for leaf in (locked, gone, free):
        heap.push(leaf)
    locked.lock = 1
    gone.alive = False
    assert heap.pop() is free
    assert heap.pop() is None
    locked.lock = 0
    heap.push(locked)
    assert heap.pop() is locked


@pytest.mark.parametrize("sweep_at", [4, 1024])
@pytest.mark.parametrize("seed", range(20))
def test_random_operations_agree_with_a_sorted_list(seed: int, sweep_at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EvictionHeap, "_SWEEP_AT", sweep_at)
    rng = random.Random(seed)
    policy = eviction_policy("lfu" if rng.random() < 0.5 else "lru")
    heap = EvictionHeap(policy)
    leaves = [_leaf() for _ in range(12)]
    waiting: set[int] = set()
    for clock in range(1, 600):
        index = rng.randrange(len(leaves))
        leaf = leaves[index]
        if rng.random() < 0.75:
            # A lease comes and, mostly, goes: the key changes only while the leaf is locked.
            leaf.last_access = clock
            leaf.hits += rng.randrange(2)
            leaf.lock = int(rng.random() < 0.3)
            waiting.discard(index)
            if leaf.lock == 0:
                heap.push(leaf)
                heap.push(leaf)
                waiting.add(index)
        else:
            order = sorted(waiting, key=lambda i: policy.key(leaves[i]))
            assert heap.pop() is (leaves[order[0]] if order else None)
            waiting -= set(order[:1])


def test_stale_entries_are_swept_so_the_heap_stays_small() -> None:
    heap = EvictionHeap(LeastRecentlyUsed())
    leaves = [_leaf() for _ in range(10)]
    for clock in range(50_000):
        leaf = leaves[clock % 10]
        leaf.last_access = clock
        heap.push(leaf)
    assert len(heap._heap) <= 2 * EvictionHeap._SWEEP_AT
    assert [heap.pop() for _ in leaves] == leaves
    assert heap.pop() is None


def test_the_heap_grows_with_live_entries_without_sweeping_each_time() -> None:
    heap = EvictionHeap(LeastRecentlyUsed())
    leaves = [_leaf(clock) for clock in range(5000)]
    for leaf in leaves:
        heap.push(leaf)
    assert heap._sweep_at > 5000
    assert [heap.pop() for _ in leaves] == leaves
