"""A request's hold on the cache."""

from __future__ import annotations

from dataclasses import dataclass

from radixserve.cache.namespace import Namespace
from radixserve.cache.node import Node


@dataclass(frozen=True, slots=True)
class CopySource:
    """A committed block whose first ``length`` tokens a lease re-uses by copying.

    ``node`` stays locked until the copy's step is collected.
    """

    node: Node
    block: int
    length: int


@dataclass(slots=True, eq=False)
class Lease:
    """A request's hold on the cache: a locked node, the block table, and a copy that is still to be made.

    ``table``: block ids in order; the first ``node.end / block_size`` are the tree's, the others private to this lease.
    """

    namespace: Namespace
    node: Node
    table: list[int]
    copy: CopySource | None = None

    @property
    def leased_tokens(self) -> int:
        """Tokens whose KV is or will be in place without this request computing them, the copied part included."""
        return self.node.end + (self.copy.length if self.copy else 0)
