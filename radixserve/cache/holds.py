"""Holds: prefixes that stay in the tree for a while because somebody said that they will be wanted.

A hold is a hint with bounds, so that nobody can pin the pool with it: it ends by itself at its time, all holds together take no
more than a share of the pool, of which each namespace may insist on a fair part, and where blocks run short they give way, the
oldest first, before anybody else has to.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from radixserve.cache.namespace import Namespace
from radixserve.cache.node import Node
from radixserve.cache.radix_tree import RadixTree
from radixserve.cache.token_key import key_length, key_slice

# Each costs its tokens' key and a place in a table, whatever blocks it shares with others.
MAX_HOLDS = 4096


@dataclass(slots=True, eq=False)
class Hold:
    """``key``: the tokens that were wanted; the path down to ``node`` is locked, ``tokens`` of them.

    ``expires``: seconds of the caller's clock.
    """

    id: str
    namespace: Namespace
    key: bytes
    expires: float
    node: Node
    tokens: int


@dataclass(slots=True)
class HoldStats:
    """Counters since the start. ``shortened``: holds that got less than they wanted, or nothing. ``gave_way``: under pressure, for
    others' fair part, or because what they held could not be trusted.
    """

    taken: int = 0
    shortened: int = 0
    released: int = 0
    expired: int = 0
    gave_way: int = 0


class HoldBook:
    """All holds on ``tree``, oldest first. ``max_blocks``: for all of them together.

    ``let_go``: takes a hold's lock back from a node; the tree's owner knows what has to follow.
    """

    def __init__(self, tree: RadixTree, max_blocks: int, let_go: Callable[[Node], None]) -> None:
        self.max_blocks = max_blocks
        self.stats = HoldStats()
        self._tree = tree
        self._let_go = let_go
        self._holds: dict[str, Hold] = {}
        # No hold ends by itself before this.
        self._soonest = math.inf

    def __len__(self) -> int:
        return len(self._holds)

    def __contains__(self, hold_id: str) -> bool:
        return hold_id in self._holds

    @property
    def num_blocks(self) -> int:
        """Blocks on the paths of all holds, each counted once."""
        return sum(self._tree.held_blocks.values())

    @property
    def next_expiry(self) -> float | None:
        """Before this no hold ends by itself; None without any."""
        return self._soonest if self._holds else None

    def nodes(self) -> list[Node]:
        """Where each hold's path ends."""
        return [hold.node for hold in self._holds.values()]

    # ---------------------------------------------------------------- take

    def take(self, hold_id: str, namespace: Namespace, key: bytes, expires: float) -> int:
        """Hold what is committed of the tokens ``key``, to the token, as far as the quota goes; returns how many.

        With 0 there is no hold.
        """
        assert hold_id not in self._holds, "ids of holds are unique"
        node, tokens = self._find(namespace, key)
        if tokens:
            self._make_room(namespace.salt, node)
            node, tokens = self._within_quota(node, tokens)
        if tokens < key_length(key):
            self.stats.shortened += 1
        if not tokens:
            return 0
        self._tree.hold(node)
        self._holds[hold_id] = Hold(hold_id, namespace, key_slice(key, 0, tokens), expires, node, tokens)
        self._soonest = min(self._soonest, expires)
        self.stats.taken += 1
        return tokens

    def _find(self, namespace: Namespace, key: bytes) -> tuple[Node, int]:
        """The node at whose end the committed part of ``key`` ends, and its length in tokens.

        The tree is split so that the path holds no more than these tokens and the rest of their last block.
        """
        tree, size = self._tree, self._tree.block_size
        match = tree.match(tree.root(namespace.tree), namespace.salt, key, key_length(key))
        node, tail = match.node, match.tail_node
        if node.pending:
            while node.pending and node.parent is not None:
                node = node.parent
            return node, node.end
        if match.length < node.end:
            node = tree.split(node, match.length)
            # The lower part is the node that was, and the source of the tail if it was that.
        if tail is None:
            return node, node.end
        if tail.length > size:
            tail = tree.split(tail, tail.start + size)
        return tail, match.total

    def _make_room(self, salt: bytes, node: Node) -> None:
        """Let holds go that stand against a fair division, the oldest first, until the path to ``node`` fits the quota."""
        while True:
            wanted = Counter[bytes](self._tree.held_blocks)
            for step in node.path():
                if step.holds == 0:
                    wanted[step.salt] += len(step.blocks)
            if wanted.total() <= self.max_blocks and len(self._holds) < MAX_HOLDS:
                return
            fair = self.max_blocks // len({*wanted, salt})
            path = node.path()
            oldest = next(
                (
                    hold
                    for hold in self._holds.values()
                    # One inside the new path makes no room by its end.
                    if wanted[hold.namespace.salt] > fair and hold.node not in path
                ),
                None,
            )
            if oldest is None and len(self._holds) >= MAX_HOLDS:
                # Many small ones fill no quota; whoever has most of them makes room.
                ((most, _),) = Counter(hold.namespace.salt for hold in self._holds.values()).most_common(1)
                oldest = next(hold for hold in self._holds.values() if hold.namespace.salt == most)
            if oldest is None:
                return
            self.stats.gave_way += 1
            self._end(oldest)

    def _within_quota(self, node: Node, tokens: int) -> tuple[Node, int]:
        """The deepest place on the path to ``node`` that the quota allows to hold."""
        left = self.max_blocks - self.num_blocks
        place: Node | None = None
        for step in node.path():
            if step.holds == 0:
                if left < len(step.blocks):
                    if left > 0:
                        place = self._tree.split(step, step.start + left * self._tree.block_size)
                    break
                left -= len(step.blocks)
            place = step
        if place is node:
            return node, tokens
        return (node, 0) if place is None else (place, place.end)

    # ---------------------------------------------------------------- end

    def release(self, ids: Sequence[str]) -> int:
        """End these holds; unknown ones are left alone. Returns how many there were."""
        count = self._end_all([hold for hold_id in dict.fromkeys(ids) if (hold := self._holds.get(hold_id))])
        self.stats.released += count
        return count

    def release_namespace(self, salt: bytes | None) -> int:
        """End the holds of one namespace, None for all; returns how many there were."""
        count = self._end_all([hold for hold in self._holds.values() if salt is None or hold.namespace.salt == salt])
        self.stats.released += count
        return count

    def expire(self, now: float) -> int:
        """End the holds whose time is over; returns how many."""
        if now < self._soonest:
            return 0
        count = self._end_all([hold for hold in self._holds.values() if hold.expires <= now])
        self.stats.expired += count
        self._soonest = min((hold.expires for hold in self._holds.values()), default=math.inf)
        return count

    def give_way(self, spared: Sequence[Node] = ()) -> bool:
        """End the oldest hold of those whose end can make a block free, and that do not end in ``spared``; False if there is none."""
        if self._tree.only_held_blocks == 0:
            return False
        oldest = next((hold for hold in self._holds.values() if hold.node.only_held and hold.node not in spared), None)
        if oldest is None:
            return False
        self.stats.gave_way += 1
        self._end(oldest)
        return True

    def distrust(self, node: Node) -> None:
        """End the holds whose path goes through ``node``."""
        ended = [hold for hold in self._holds.values() if node in hold.node.path()]
        self.stats.gave_way += self._end_all(ended)

    def _end_all(self, holds: Sequence[Hold]) -> int:
        for hold in holds:
            self._end(hold)
        return len(holds)

    def _end(self, hold: Hold) -> None:
        del self._holds[hold.id]
        self._tree.unhold(hold.node)
        self._let_go(hold.node)

    # ---------------------------------------------------------------- the tree changed

    def follow(self) -> None:
        """Move the holds on tails that were replaced to what replaced them, which holds the same tokens, once that is committed."""
        for hold in [hold for hold in self._holds.values() if not hold.node.alive]:
            node, tokens = self._find(hold.namespace, hold.key)
            old = hold.node
            if tokens < hold.tokens and any(sibling.pending for sibling in self._tree.replacements(old)):
                continue
            if tokens:
                self._tree.hold(node)
                hold.node, hold.tokens = node, tokens
            else:
                del self._holds[hold.id]
            self._tree.unhold(old)
            self._let_go(old)
