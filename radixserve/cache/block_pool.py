"""The pool of KV block ids: the only place that hands blocks out and takes them back.

A block is in exactly one state, and every transition is checked::

              allocate              give_to_tree
      FREE ──────────────▶ PRIVATE ──────────────▶ TREE
        ▲                     │                      │
        │        free         │                      │
        ├─────────────────────┴──────────────────────┤
        │                                            │
        └───── collect(step) ────── RETIRED ◀────────┘  retire(step): a forward pass in flight may still read it
                                       ▲
                                       └── PRIVATE

So ``free + tree + private + retired == total`` holds by construction, and a block freed twice is caught where it
happens.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Sequence

from radixserve.errors import OutOfBlocks


class BlockState(enum.IntEnum):
    """Who owns a block."""

    FREE = 0
    PRIVATE = 1
    TREE = 2
    RETIRED = 3


class BlockPool:
    """``total`` block ids ``0 .. total - 1``. Lowest ids are handed out first, then the most recently freed."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._free = list(range(total - 1, -1, -1))
        self._state = bytearray(total)
        self._count = [total, 0, 0, 0]
        self._retired: deque[tuple[int, list[int]]] = deque()

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated at once."""
        return self._count[BlockState.FREE]

    @property
    def num_private(self) -> int:
        """Blocks owned by requests."""
        return self._count[BlockState.PRIVATE]

    @property
    def num_tree(self) -> int:
        """Blocks owned by tree nodes."""
        return self._count[BlockState.TREE]

    @property
    def num_retired(self) -> int:
        """Blocks that wait for a step to be collected."""
        return self._count[BlockState.RETIRED]

    def state(self, block: int) -> BlockState:
        """The state of one block."""
        return BlockState(self._state[block])

    def free_blocks(self) -> list[int]:
        """The free list, the block that is handed out next first."""
        return self._free[::-1]

    def retired_blocks(self) -> list[int]:
        """All retired block ids, oldest first."""
        return [block for _, blocks in self._retired for block in blocks]

    def allocate(self, count: int) -> list[int]:
        """``count`` free blocks, now private; raises `OutOfBlocks` and changes nothing if there are fewer."""
        if count > len(self._free):
            raise OutOfBlocks(count, len(self._free))
        if count == 0:
            return []
        blocks = self._free[-count:][::-1]
        del self._free[-count:]
        self._move(blocks, BlockState.PRIVATE, (BlockState.FREE,))
        return blocks

    def give_to_tree(self, blocks: Sequence[int]) -> None:
        """Private blocks become the tree's."""
        self._move(blocks, BlockState.TREE, (BlockState.PRIVATE,))

    def free(self, blocks: Sequence[int]) -> None:
        """Private or tree blocks become free at once; no forward pass in flight may know them."""
        self._move(blocks, BlockState.FREE, (BlockState.PRIVATE, BlockState.TREE))
        self._free.extend(reversed(blocks))

    def retire(self, blocks: Sequence[int], step: int) -> None:
        """Private or tree blocks become free when ``step`` is collected."""
        if not blocks:
            return
        self._move(blocks, BlockState.RETIRED, (BlockState.PRIVATE, BlockState.TREE))
        self._retired.append((step, list(blocks)))

    def collect(self, step: int) -> None:
        """Free everything retired up to and including ``step``."""
        while self._retired and self._retired[0][0] <= step:
            _, blocks = self._retired.popleft()
            self._move(blocks, BlockState.FREE, (BlockState.RETIRED,))
            self._free.extend(reversed(blocks))

    def _move(self, blocks: Sequence[int], to: BlockState, allowed: tuple[BlockState, ...]) -> None:
        state = self._state
        for block in blocks:
            was = state[block]
            assert was in allowed, f"block {block} is {BlockState(was).name}, cannot become {to.name}"
            state[block] = to
            self._count[was] -= 1
        self._count[to] += len(blocks)
