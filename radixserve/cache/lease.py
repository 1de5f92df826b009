"""A request's hold on the cache."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from radixserve.cache.namespace import Namespace
from radixserve.cache.node import Node

Int32Array = npt.NDArray[np.int32]

_EMPTY = np.empty(0, np.int32)
_EMPTY.flags.writeable = False


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

    ``table``: block ids in order; the first ``node.end / block_size`` are the tree's, the others private to this lease. It only ever
    grows in place; where it changes in any other way it is replaced by another list.
    """

    namespace: Namespace
    node: Node
    table: list[int]
    copy: CopySource | None = None
    _snapshot: Int32Array = field(default_factory=lambda: _EMPTY)
    _snapshot_of: list[int] | None = None

    def snapshot(self, count: int) -> Int32Array:
        """The first ``count`` block ids as an array that nobody can write to.

        It is the same array as long as they are the same blocks: from one decode to the next a table rarely changes.
        """
        known = self._snapshot if self._snapshot_of is self.table else _EMPTY
        if len(known) < count:
            known = np.concatenate((known, np.array(self.table[len(known) : count], np.int32)))
        elif len(known) > count:
            known = known[:count]
        if known is not self._snapshot:
            known.flags.writeable = False
            self._snapshot, self._snapshot_of = known, self.table
        return known

    @property
    def leased_tokens(self) -> int:
        """Tokens whose KV is or will be in place without this request computing them, the copied part included."""
        return self.node.end + (self.copy.length if self.copy else 0)
