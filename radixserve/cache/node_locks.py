"""Who keeps a tree's nodes from being evicted: counts of locks and holds, and of the blocks that hang on them."""

from __future__ import annotations

from radixserve.cache.eviction import EvictionHeap, EvictionPolicy
from radixserve.cache.node import Node


class NodeLocks:
    """Locks and holds on nodes; both count on the whole path of a node.

    ``evictable_blocks``: of unlocked nodes. ``held_blocks``: of nodes with holds, by salt; ``only_held_blocks``: of those that nothing but
    holds locks. A tail that was replaced counts as long as it is held.
    """

    def __init__(self, policy: EvictionPolicy) -> None:
        self.evictable_blocks = 0
        self.only_held_blocks = 0
        self.held_blocks: dict[bytes, int] = {}
        self._heap = EvictionHeap(policy)
        self._clock = 0

    @property
    def clock(self) -> int:
        """Logical time: the ``last_access`` of what is used now."""
        return self._clock

    def lock(self, node: Node) -> None:
        """Protect ``node`` and its whole path from eviction."""
        now = self._tick()
        step: Node | None = node
        while step is not None and step.parent is not None:
            if step.only_held:
                self.only_held_blocks -= len(step.blocks)
            elif step.lock == 0 and step.alive:
                self.evictable_blocks -= len(step.blocks)
            step.lock += 1
            step.last_access = now
            step = step.parent

    def unlock(self, node: Node) -> None:
        """Take one lock back from ``node`` and its path."""
        now = self._tick()
        step: Node | None = node
        while step is not None and step.parent is not None:
            assert step.lock > 0, "unlock without lock"
            step.lock -= 1
            step.last_access = now
            if step.lock == 0 and step.alive:
                self.evictable_blocks += len(step.blocks)
                if not step.children:
                    self._heap.push(step)
            elif step.only_held:
                self.only_held_blocks += len(step.blocks)
            step = step.parent

    def hold(self, node: Node) -> None:
        """`lock`, counted as a hold."""
        for step in node.path():
            if step.holds == 0:
                self.held_blocks[step.salt] = self.held_blocks.get(step.salt, 0) + len(step.blocks)
        self.lock(node)
        for step in node.path():
            step.holds += 1
            if step.only_held:
                self.only_held_blocks += len(step.blocks)

    def unhold(self, node: Node) -> None:
        """Take one hold back, and its lock."""
        for step in node.path():
            assert step.holds > 0, "unhold without hold"
            if step.only_held:
                # Counted in again by the unlock where another hold stays.
                self.only_held_blocks -= len(step.blocks)
            step.holds -= 1
            if step.holds == 0:
                self.held_blocks[step.salt] -= len(step.blocks)
                if not self.held_blocks[step.salt]:
                    del self.held_blocks[step.salt]
        self.unlock(node)

    def count_hit(self, node: Node) -> None:
        """Remember a lease that ended at ``node``."""
        for step in node.path():
            step.hits += 1

    def _tick(self) -> int:
        self._clock += 1
        return self._clock
