"""How many blocks can be had, and what has to give way for them: the numbers that admission and planning ask for."""

from __future__ import annotations

from radixserve.cache.block_pool import BlockPool
from radixserve.cache.holds import HoldBook
from radixserve.cache.node import Match
from radixserve.cache.radix_tree import RadixTree


class CacheRoom:
    """The room in a pool whose blocks a tree owns in part, and holds keep in part; who has them is set by who derives from it."""

    block_size: int
    pool: BlockPool
    tree: RadixTree
    holds: HoldBook

    @property
    def available_blocks(self) -> int:
        """Blocks that are free or can be made so by eviction."""
        return self.pool.num_free + self.tree.evictable_blocks

    @property
    def yieldable_blocks(self) -> int:
        """Blocks that are not available only because of holds."""
        return self.tree.only_held_blocks

    def secure(self, count: int) -> int:
        """`available_blocks`, after holds gave way as far as it takes to have ``count``."""
        while self.available_blocks < count and self.holds.give_way():
            pass
        return self.available_blocks

    def secure_beside(self, match: Match, count: int) -> bool:
        """Whether ``count`` blocks are available beside what a lease on ``match`` locks, after holds gave way as far as that takes.

        Holds on the match itself stay, since their end would bring nothing; and all do where it would not be enough.
        """
        path = match.node.path()
        if match.tail_node is not None and match.tail_node is not match.node:
            path.append(match.tail_node)
        own = sum(len(node.blocks) for node in path if node.only_held)
        if self.available_blocks - self.locked_by(match) + self.yieldable_blocks - own < count:
            return False
        while self.available_blocks - self.locked_by(match) < count:
            if not self.holds.give_way(path):
                return False
        return True

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold ``num_tokens``."""
        return -(-num_tokens // self.block_size)

    def locked_by(self, match: Match) -> int:
        """Blocks that are evictable now and would not be after `acquire` of this match."""
        blocks = 0
        for node in match.node.path():
            if node.lock == 0:
                blocks += (min(node.end, match.length) - node.start + self.block_size - 1) // self.block_size
        tail = match.tail_node
        if tail is not None and tail.lock == 0:
            # Where the match ends inside the edge of the tail's own node, its beginning was counted above.
            blocks += len(tail.blocks) - max(0, match.length - tail.start) // self.block_size
        return blocks
