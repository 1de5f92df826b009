"""A KV array that knows what it holds, and a pool that poisons what it frees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from radixserve.cache.block_pool import BlockPool

Cell = tuple[int, int, int]
"""(token, position, hash of the whole prefix up to and with that token)."""


def cells(tree: tuple[str, str], tokens: Sequence[int]) -> list[Cell]:
    """What the slots of ``tokens`` must hold under one model and adapter."""
    found: list[Cell] = []
    prefix = hash(tuple(len(part) for part in tree))
    for position, token in enumerate(tokens):
        prefix = hash((prefix, token))
        found.append((token, position, prefix))
    return found


@dataclass(frozen=True, slots=True)
class FakeRow:
    """One row of a plan: a snapshot, so that nothing in it follows the lease. ``tokens`` are all tokens up to the row's end."""

    tree: tuple[str, str]
    start: int
    tokens: tuple[int, ...]
    table: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FakePlan:
    """One step: copies first, then all writes, then all reads."""

    step: int
    rows: tuple[FakeRow, ...]
    copies: tuple[tuple[int, int], ...]

    def blocks(self) -> set[int]:
        """Every block that the step reads or writes."""
        return {block for row in self.rows for block in row.table} | {block for pair in self.copies for block in pair}


class FakeKV:
    """One cell a slot; None is poison."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.slots: list[Cell | None] = [None] * (num_blocks * block_size)

    def poison(self, blocks: Sequence[int]) -> None:
        """What a freed block held is gone."""
        for block in blocks:
            first = block * self.block_size
            self.slots[first : first + self.block_size] = [None] * self.block_size

    def execute(self, plan: FakePlan) -> None:
        """Run a step as a runner would, and refuse to read a slot that does not hold exactly the row's prefix."""
        size = self.block_size
        for source, target in plan.copies:
            self.slots[target * size : (target + 1) * size] = self.slots[source * size : (source + 1) * size]
        written: set[int] = set()
        for row in plan.rows:
            for position, cell in enumerate(cells(row.tree, row.tokens)):
                if position >= row.start:
                    slot = row.table[position // size] * size + position % size
                    assert slot not in written, f"two rows of step {plan.step} write slot {slot}"
                    written.add(slot)
                    self.slots[slot] = cell
        for row in plan.rows:
            self.verify(row.tree, row.tokens, row.table, 0, len(row.tokens))

    def verify(self, tree: tuple[str, str], tokens: Sequence[int], table: Sequence[int], start: int, end: int) -> None:
        """Positions ``[start, end)`` of ``tokens`` are in place in the blocks of ``table``."""
        size = self.block_size
        for position, cell in enumerate(cells(tree, tokens[:end])):
            if position >= start:
                held = self.slots[table[position // size] * size + position % size]
                assert held == cell, f"block {table[position // size]} holds {held} where {cell} is wanted"


class PoisoningPool(BlockPool):
    """Tells of every block the moment it becomes free."""

    def __init__(self, total: int, freed: Callable[[Sequence[int]], None]) -> None:
        super().__init__(total)
        self._freed = freed

    def free(self, blocks: Sequence[int]) -> None:
        super().free(blocks)
        self._freed(blocks)

    def collect(self, step: int) -> None:
        before = self.retired_blocks()
        super().collect(step)
        waiting = set(self.retired_blocks())
        self._freed([block for block in before if block not in waiting])
