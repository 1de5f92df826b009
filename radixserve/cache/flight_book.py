"""The steps between planning and collecting: the nodes each writes, what it copies from, and blocks that it may still read.

::

    planned                      begun                                   collected          or rolled back
    ──┬────────────────────────────┬──────────────────────────────────────────┬──────────────────────────────────
      `write`: nodes pending       `give_back`: blocks wait for the last       nodes committed    nodes leave the tree
      `copy`: sources stay locked  step that has begun                         sources let go     sources let go

A tail that a step replaces by a longer sibling is of this book too while it is locked: copies may still be made from it, and it comes
back where it is held and the step fails.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from radixserve.cache.block_pool import BlockPool
from radixserve.cache.node import Eviction, Node
from radixserve.cache.radix_tree import RadixTree


@dataclass(slots=True)
class _Flight:
    """``written``: nodes as they were inserted. ``sources``: of copies, with a lock for each."""

    written: list[Node] = field(default_factory=list)
    sources: list[Node] = field(default_factory=list)


class FlightBook:
    """All steps that were planned and not collected yet, over ``tree`` and ``pool``. Step numbers rise.

    ``let_go``: told of each node whose lock as a source was taken back; the tree's owner knows what has to follow.
    """

    def __init__(self, tree: RadixTree, pool: BlockPool, let_go: Callable[[Node], None]) -> None:
        self._tree = tree
        self._pool = pool
        self._let_go = let_go
        self._flights: dict[int, _Flight] = {}
        self._begun: list[int] = []
        self._replaced: list[Node] = []

    def sources(self) -> list[Node]:
        """Where steps copy from: each is locked once for every time it is listed."""
        return [node for flight in self._flights.values() for node in flight.sources]

    def replaced(self) -> list[Node]:
        """Tails that longer siblings replaced in the tree, and that are locked still."""
        return list(self._replaced)

    def pending(self, step: int) -> list[Node]:
        """The nodes that ``step`` writes, parents first."""
        nodes: dict[Node, None] = {}
        if step in self._flights:
            for written in self._flights[step].written:
                # A split leaves what was inserted as its lower part.
                node: Node | None = written
                while node is not None and node.pending == step and node not in nodes:
                    nodes[node] = None
                    node = node.parent
        return sorted(nodes, key=lambda node: node.start)

    # ---------------------------------------------------------------- while it is planned

    def write(self, node: Node, step: int) -> None:
        """``step`` writes the blocks of ``node``, which was just inserted: it is pending until then."""
        node.pending = step
        self._flight(step).written.append(node)

    def copy(self, source: Node, step: int) -> None:
        """``step`` copies from ``source``; the lock that keeps it there is this book's now."""
        self._flight(step).sources.append(source)

    def _flight(self, step: int) -> _Flight:
        return self._flights.setdefault(step, _Flight())

    # ---------------------------------------------------------------- while it runs

    def begin(self, step: int) -> None:
        """``step`` is planned and will read and write blocks until it is collected (or rolled back)."""
        self._begun.append(step)

    def give_back(self, blocks: Sequence[int]) -> None:
        """Blocks become free, after the last step in flight if there is one: it may still read them."""
        if self._begun:
            self._pool.retire(blocks, self._begun[-1])
        else:
            self._pool.free(blocks)

    def replace(self, tail: Node) -> None:
        """``tail`` left the tree for a longer sibling: its block is given back once no copy is to be made from it."""
        if tail.lock:
            self._replaced.append(tail)
        else:
            # At once, as what is evicted: no step in flight reads what no lease locks. And what could be evicted must stay
            # available while a step is planned.
            self._pool.free(tail.blocks)

    def give_up(self, node: Node) -> bool:
        """``node`` lost a lock: if it is a replaced tail and that was the last one, its block is given back.

        Whether it was that.
        """
        if node.alive or node.lock or node not in self._replaced:
            return False
        self._replaced.remove(node)
        self.give_back(node.blocks)
        return True

    # ---------------------------------------------------------------- when it is over

    def collect(self, step: int) -> None:
        """The KV of all that was pending on ``step`` is in place, its copies are made, and what was retired to it is free.

        Chains that no lease or branch needs apart become one node.
        """
        self._begun.remove(step)
        for node in self.pending(step):
            node.pending = 0
            self._tree.join(node)
        self._finish(step)

    def roll_back(self, step: int) -> list[Eviction]:
        """``step`` failed, and all leases on what it was to write were let go of: that leaves the tree.

        Returns what went; its blocks are free.
        """
        self._begun.remove(step)
        evictions = [self._tree.remove(node) for node in reversed(self.pending(step))]
        for eviction in evictions:
            self._pool.free(eviction.blocks)
        # What was to replace a held tail never came.
        self._replaced = [tail for tail in self._replaced if not (tail.holds and self._tree.reattach(tail))]
        self._finish(step)
        return evictions

    def _finish(self, step: int) -> None:
        flight = self._flights.pop(step, None)
        for node in flight.sources if flight else ():
            self._tree.unlock(node)
            self._let_go(node)
        self._pool.collect(step)
