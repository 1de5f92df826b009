"""Which unlocked leaf goes first: small policy objects, and the lazy heap that keeps their order.

A policy maps a node to a sortable key, the smallest going first. Keys change only when a node is unlocked or becomes
a leaf, and then it is pushed anew; entries whose key is out of date are dropped when they surface. So neither a
touch nor an eviction ever walks the tree.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from radixserve.cache.node import Node

EvictionKey = tuple[int, int]


class EvictionPolicy(Protocol):
    """Order of eviction among unlocked leaves."""

    def key(self, node: Node) -> EvictionKey:
        """The sort key of ``node``; the smallest is evicted first."""


class LeastRecentlyUsed:
    """The leaf whose last use is the longest ago."""

    def key(self, node: Node) -> EvictionKey:
        """Last use, as the tree's logical clock."""
        return (node.last_access, 0)


class LeastFrequentlyUsed:
    """The leaf that was leased the fewest times, the least recently used among equals."""

    def key(self, node: Node) -> EvictionKey:
        """Number of leases, then last use."""
        return (node.hits, node.last_access)


def eviction_policy(name: Literal["lru", "lfu"]) -> EvictionPolicy:
    """The policy of that name: ``lru`` or ``lfu``."""
    return LeastFrequentlyUsed() if name == "lfu" else LeastRecentlyUsed()


class EvictionHeap:
    """Candidates for eviction.

    ``push`` and ``pop`` are O(log n), stale entries are swept when they outnumber live ones.
    """

    _SWEEP_AT = 1024

    def __init__(self, policy: EvictionPolicy) -> None:
        self._policy = policy
        self._heap: list[tuple[EvictionKey, int, Node]] = []
        self._serial = 0
        self._sweep_at = self._SWEEP_AT

    def push(self, node: Node) -> None:
        """Offer ``node``, which is an unlocked leaf now."""
        key = self._policy.key(node)
        if node.heap_key == key:
            return
        node.heap_key = key
        self._serial += 1
        heapq.heappush(self._heap, (key, self._serial, node))
        if len(self._heap) > self._sweep_at:
            self._heap = [entry for entry in self._heap if self._live(entry)]
            heapq.heapify(self._heap)
            self._sweep_at = max(self._SWEEP_AT, 2 * len(self._heap))

    def pop(self) -> Node | None:
        """Take the leaf that goes first, or None if there is none."""
        while self._heap:
            entry = heapq.heappop(self._heap)
            if self._live(entry):
                entry[2].heap_key = None
                return entry[2]
        return None

    def _live(self, entry: tuple[EvictionKey, int, Node]) -> bool:
        key, _, node = entry
        if node.heap_key != key:
            return False
        if node.evictable:
            return True
        node.heap_key = None
        return False
