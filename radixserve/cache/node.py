"""What a radix tree is made of, and what it says of itself: nodes, matches, evictions and the observer of its shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from sortedcontainers import SortedDict

from radixserve.cache.eviction import EvictionKey
from radixserve.cache.token_key import TOKEN_BYTES, key_length

ChildKey = tuple[bytes, bytes]


class Node:
    """One edge of the tree with its blocks.

    ``data``: the edge's tokens as a key; ``start``: tokens before it. ``blocks``: one id per block of the edge.
    ``lock``: leases and holds on this node or below; ``holds``: the holds among them. ``pending``: the step that will write its KV,
    0 once committed.
    ``last_access``: logical time of the last lease or release; ``hits``: leases that ended here or below.
    """

    __slots__ = (
        "alive",
        "blocks",
        "children",
        "data",
        "heap_key",
        "hits",
        "holds",
        "last_access",
        "lock",
        "parent",
        "pending",
        "salt",
        "start",
    )

    def __init__(self, parent: Node | None, salt: bytes, data: bytes, blocks: list[int], start: int) -> None:
        self.parent = parent
        self.salt = salt
        self.data = data
        self.blocks = blocks
        self.start = start
        self.children: SortedDict[ChildKey, Node] | None = None
        self.lock = 0
        self.holds = 0
        self.pending = 0
        self.last_access = 0
        self.hits = 0
        self.alive = True
        self.heap_key: EvictionKey | None = None

    @property
    def length(self) -> int:
        """Tokens of the edge."""
        return key_length(self.data)

    @property
    def end(self) -> int:
        """Tokens from the root to the end of the edge."""
        # `key_length` written out: asked for each row of a step several times.
        return self.start + len(self.data) // TOKEN_BYTES

    @property
    def only_held(self) -> bool:
        """Whether nothing but holds keeps it from eviction."""
        return 0 < self.holds == self.lock

    @property
    def evictable(self) -> bool:
        """Whether this is an unlocked leaf."""
        return self.alive and self.lock == 0 and not self.children and self.parent is not None

    def path(self) -> list[Node]:
        """The nodes from below the root to this one."""
        nodes: list[Node] = []
        node: Node | None = self
        while node is not None and node.parent is not None:
            nodes.append(node)
            node = node.parent
        nodes.reverse()
        return nodes


@dataclass(frozen=True, slots=True)
class Match:
    """The longest prefix found; nothing was changed.

    ``node``: deepest node entered. ``length``: tokens matched in whole blocks (``node.start < length <= node.end``,
    or 0 at the root).
    ``tail_node``, ``tail_block``, ``tail_length``: a committed block whose first ``tail_length`` tokens continue the
    match.
    """

    node: Node
    length: int
    tail_node: Node | None = None
    tail_block: int = -1
    tail_length: int = 0

    @property
    def total(self) -> int:
        """Tokens matched, the part inside a block included."""
        return self.length + self.tail_length

    def committed(self) -> Match:
        """As much of it as no step is still writing."""
        node = self.node
        if not node.pending:
            return self
        while node.pending:
            assert node.parent is not None, "the root is never pending"
            node = node.parent
        return Match(node, node.end)


@dataclass(frozen=True, slots=True)
class Eviction:
    """What one eviction took: the path as it was, and where it ends now (tokens)."""

    tree: tuple[str, str]
    salt: bytes
    path: bytes
    kept: int
    blocks: list[int]


class TreeObserver(Protocol):
    """Told of every change of shape, after it is complete; must not change the tree."""

    def child_added(self, parent: Node, child: Node) -> None:
        """``child`` is a new leaf below ``parent``."""

    def split(self, upper: Node, lower: Node) -> None:
        """``upper`` is new and holds what was the beginning of ``lower``."""

    def merged(self, upper: Node, lower: Node) -> None:
        """``lower`` absorbed its parent ``upper``, which is gone."""

    def trimmed(self, node: Node, removed: bytes) -> None:
        """The leaf ``node`` lost the tokens ``removed`` from its end; if that was all, it is gone."""
