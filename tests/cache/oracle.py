"""The naive cache: a set of sequences, no tree, no blocks, no splits. What it says must be matched, must be matched."""

from __future__ import annotations

from collections.abc import Sequence

from radixserve.cache.namespace import Namespace

Tokens = tuple[int, ...]
Entry = tuple[tuple[str, str], bytes, Tokens]


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common prefix, token by token."""
    length = 0
    while length < min(len(a), len(b)) and a[length] == b[length]:
        length += 1
    return length


class Oracle:
    """Everything that was stored: committed sequences match token by token, pending ones by whole blocks."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.committed: set[Entry] = set()
        self.pending: dict[int, set[Entry]] = {}

    def add(self, namespace: Namespace, tokens: Sequence[int]) -> None:
        """``tokens`` are in the tree, their KV in place."""
        self.committed.add((namespace.tree, namespace.salt, tuple(tokens)))

    def publish(self, namespace: Namespace, tokens: Sequence[int], step: int) -> None:
        """``tokens`` (whole blocks) are in the tree, to be written by ``step``."""
        self.pending.setdefault(step, set()).add((namespace.tree, namespace.salt, tuple(tokens)))

    def drop_tails(self, namespace: Namespace, tokens: Sequence[int]) -> None:
        """Forget the part-filled last blocks that a sequence of whole blocks ``tokens`` replaces."""
        for tree, salt, held in list(self.committed):
            if (tree, salt) == (namespace.tree, namespace.salt) and held == tuple(tokens[: len(held)]):
                self.committed.remove((tree, salt, held))
                self.committed.add((tree, salt, held[: len(held) // self.block_size * self.block_size]))

    def collect(self, step: int) -> None:
        """``step`` succeeded."""
        self.committed |= self.pending.pop(step, set())

    def roll_back(self, step: int) -> None:
        """``step`` failed."""
        self.pending.pop(step, None)

    def clear(self) -> None:
        """Nothing committed is certain any more."""
        self.committed.clear()

    def match(self, namespace: Namespace, tokens: Sequence[int], limit: int) -> int:
        """Tokens of the first ``limit`` that are held where ``namespace`` may see them."""
        size, wanted = self.block_size, tokens[: max(0, limit)]
        best = max((common_prefix(held, wanted) for held in self._seen(namespace, self.committed)), default=0)
        for entries in self.pending.values():
            for held in self._seen(namespace, entries):
                best = max(best, common_prefix(held, wanted) // size * size)
        return best

    def _seen(self, namespace: Namespace, entries: set[Entry]) -> list[Tokens]:
        return [held for tree, salt, held in entries if tree == namespace.tree and salt in (b"", namespace.salt)]
