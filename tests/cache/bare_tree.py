"""A radix tree without pool or facade, and a watcher of its changes."""

from __future__ import annotations

from collections.abc import Sequence

from radixserve.cache.eviction import LeastRecentlyUsed
from radixserve.cache.node import Node
from radixserve.cache.radix_tree import RadixTree
from radixserve.cache.token_key import decode_tokens, encode_tokens

NAME = ("m", "")


class Watcher:
    """Writes down what the tree tells."""

    def __init__(self) -> None:
        self.news: list[tuple[str, int, int]] = []

    def child_added(self, parent: Node, child: Node) -> None:
        assert child.parent is parent and child in (parent.children or {}).values()
        self.news.append(("added", child.start, child.end))

    def split(self, upper: Node, lower: Node) -> None:
        assert lower.parent is upper and upper.end == lower.start
        self.news.append(("split", upper.end, lower.end))

    def merged(self, upper: Node, lower: Node) -> None:
        assert not upper.alive and lower.alive and lower.start == upper.start
        self.news.append(("merged", lower.start, lower.end))

    def trimmed(self, node: Node, removed: bytes) -> None:
        self.news.append(("trimmed", node.end if node.alive else node.start, len(removed) // 4))


class Tree(RadixTree):
    """Block size 4, block ids handed out in order."""

    def __init__(self) -> None:
        super().__init__(4, LeastRecentlyUsed())
        self.top = self.root(NAME)
        self.next_block = 0

    def put(
        self, parent: Node, tokens: Sequence[int], salt: bytes = b"", *, pending: int = 0, locked: bool = False
    ) -> Node:
        """Insert whole blocks as a request would: lock the parent, insert, let go."""
        self.lock(parent)
        node, replaced = self.insert(parent, salt, encode_tokens(tokens), self.blocks(tokens))
        assert replaced is None
        node.pending = pending
        if not locked:
            self.unlock(node)
        return node

    def put_tail(self, parent: Node, tokens: Sequence[int], salt: bytes = b"") -> tuple[Node | None, Node | None]:
        return self.insert_tail(parent, salt, encode_tokens(tokens), self.blocks(tokens)[0])

    def blocks(self, tokens: Sequence[int]) -> list[int]:
        count = -(-len(tokens) // 4)
        self.next_block += count
        return list(range(self.next_block - count, self.next_block))

    def paths(self) -> set[tuple[int, ...]]:
        """The token path of every node."""
        return {path_of(node) for node in self.nodes()}

    def find(self, tokens: Sequence[int], limit: int | None = None, salt: bytes = b"") -> tuple[int, int]:
        """(tokens in whole blocks, tokens inside a block) of a match from the root."""
        match = self.match(self.top, salt, encode_tokens(tokens), len(tokens) if limit is None else limit)
        return match.length, match.tail_length


def path_of(node: Node) -> tuple[int, ...]:
    return tuple(decode_tokens(b"".join(step.data for step in node.path())).tolist())
