"""Which shared prefixes of a batch are worth reading once: a rule of bytes. Host side, numpy only.

In a cascade (Ye et al. 2024, "Cascade Inference"; FlashInfer's ``MultiLevelCascadeAttentionWrapper``) each level is a
pass of attention in which groups of consecutive rows read the pages they share together; the last level is what each row
has for itself. The partial results of the levels are merged by their log-sum-exp::

    rows, ordered by block table      level 0          level 1        own
    a  1 2 3 4 5 | 9                  1 2 3  (a-d)     4 5 (a, b)     9
    b  1 2 3 4 5 | 7                                                  7
    c  1 2 3 8 6 | 11                                  8 6 (c, d)     11
    d  1 2 3 8 6 | 12                                                 12

What is shared is found from the block tables alone: rows that lease a path of the tree name the same blocks. A level
saves, in every layer, all but one reading of its groups' pages. It costs a pass over the queries, the merge of two partial
results for every query of the batch, and the launches of both.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from radixserve.attention.flashinfer.pages import (
    Int64Array,
    PageTables,
    bounds,
    gather_ranges,
    page_counts,
    row_tables,
    whole_pages,
)

if TYPE_CHECKING:
    from radixserve.runtime.forward_batch import ForwardBatch

# Levels of shared pages at most; FlashInfer's own documentation warns that more do not always pay.
MOST_LEVELS = 2
# What a GPU of 4 TB/s reads in the 8 microseconds of the launches that a level adds. An estimate until it is measured.
LEVEL_BYTES = 32 << 20
# Groups that save less than this share of what a level costs are not looked at: it bounds the search.
SMALLEST_GROUP = 16
# The search looks this deep into nested prefixes, and at so many sets of rows; beyond that it takes what all of a set share.
DEEPEST = 32
MOST_SETS = 2000


@dataclass(frozen=True, slots=True)
class CascadeCost:
    """Bytes of memory traffic in one layer.

    ``page``: K and V of one page. ``token``: what one more level moves for a query token. ``level``: what its launches
    are worth.
    """

    page: int
    token: int
    level: int = LEVEL_BYTES

    @classmethod
    def of(cls, *, block_size: int, heads: int, kv_heads: int, head_dim: int, size: int, kv_size: int) -> CascadeCost:
        """``size``, ``kv_size``: bytes of one number of queries and outputs, and of the KV store.

        A level reads the queries, writes its output and its log-sum-exp, and the merge reads both partial results and
        writes one: five passes over a token's heads and four over its log-sum-exps, which are float32.
        """
        return cls(
            page=2 * block_size * kv_heads * head_dim * kv_size,
            token=heads * (5 * head_dim * size + 4 * 4),
        )


@dataclass(frozen=True, slots=True, eq=False)
class SharedLevel:
    """Groups of consecutive rows, in the cascade's order, that together hold all rows.

    ``row_start`` [G + 1]: bounds. ``begin``, ``end`` [G]: the pages of its first row's block table that a group reads; equal
    where its rows share nothing at this level.
    """

    row_start: Int64Array
    begin: Int64Array
    end: Int64Array


@dataclass(frozen=True, slots=True, eq=False)
class Cascade:
    """``order`` [R]: the row of the batch at each place. ``own`` [R]: the first page that each place reads alone.

    ``saved``: bytes saved in one layer, the cost of the levels taken off.
    """

    order: Int64Array
    levels: tuple[SharedLevel, ...]
    own: Int64Array
    saved: int


@dataclass(frozen=True, slots=True)
class _Group:
    """Places ``first`` to ``last`` - 1 share pages ``begin`` to ``end`` - 1 at ``level``."""

    level: int
    first: int
    last: int
    begin: int
    end: int


_Found = tuple[int, tuple[_Group, ...]]


def find_cascade(batch: ForwardBatch, cost: CascadeCost, most_levels: int = MOST_LEVELS) -> Cascade | None:
    """The cascade that saves most, or None where none saves anything.

    Only pages wholly before a row's first query are shared, so that no level but the last needs a causal mask.
    """
    whole = whole_pages(batch)
    level_bytes = cost.level + cost.token * batch.num_tokens
    if (int(whole.sum()) - int(whole.max())) * cost.page <= level_bytes:
        return None
    keys = [
        batch.table_blocks[start : start + pages].astype(">u4").tobytes()
        for start, pages in zip(batch.table_start[:-1].tolist(), whole.tolist(), strict=True)
    ]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    common = [_common_pages(keys[a], keys[b]) for a, b in itertools.pairwise(order)]
    least = max(1, level_bytes // (SMALLEST_GROUP * cost.page))
    search = _Search(common, least)
    best: tuple[int, tuple[_Group, ...]] = (0, ())
    for levels in range(1, most_levels + 1):
        pages, groups = search.best(0, len(order), 0, 0, levels)
        used = 1 + max((group.level for group in groups), default=-1)
        best = max(best, (pages * cost.page - used * level_bytes, groups), key=lambda found: found[0])
    saved, groups = best
    return _cascade(np.array(order), groups, saved) if saved > 0 else None


class _Search:
    """Assigns shared stretches of pages to levels so that the pages read less are most.

    ``common``: pages that neighbours in order share. Rows with a common prefix are neighbours, so a set of rows is a range, and
    the least entry inside it is what all of them share. A group is all rows that have its prefix, as in the tree. Stretches of
    which less than ``least`` pages are saved are left alone.
    """

    def __init__(self, common: list[int], least: int) -> None:
        self._common = common
        self._least = least
        self._found: dict[tuple[int, int, int, int, int], _Found] = {}
        self._depth = 0

    def best(self, first: int, last: int, begin: int, level: int, levels: int) -> _Found:
        """Pages saved among places [first, last) whose pages before ``begin`` are taken, with ``level`` and later ones free."""
        key = (first, last, begin, level, levels)
        if key not in self._found:
            self._depth += 1
            self._found[key] = self._search(first, last, begin, level, levels)
            self._depth -= 1
        return self._found[key]

    def _search(self, first: int, last: int, begin: int, level: int, levels: int) -> _Found:
        inside = self._common[first : last - 1]
        if level == levels or not inside or (last - first - 1) * (max(inside) - begin) < self._least:
            return 0, ()
        shared = min(inside)
        alone = (last - first - 1) * (shared - begin)
        if self._depth > DEEPEST or len(self._found) > MOST_SETS:
            return (alone, (_Group(level, first, last, begin, shared),)) if alone > 0 else (0, ())
        parts = list(self._split(first, last, shared))
        apart = self._sum(parts, begin, level, levels)
        if shared <= begin:
            return apart
        below = self._sum(parts, shared, level + 1, levels)
        together = alone + below[0]
        if together <= apart[0]:
            return apart
        return together, (_Group(level, first, last, begin, shared), *below[1])

    def _sum(self, parts: list[tuple[int, int]], begin: int, level: int, levels: int) -> _Found:
        found = [self.best(first, last, begin, level, levels) for first, last in parts]
        return sum(pages for pages, _ in found), tuple(group for _, groups in found for group in groups)

    def _split(self, first: int, last: int, shared: int) -> Iterator[tuple[int, int]]:
        """The parts of [first, last) that share more than ``shared`` pages: the children in the tree. Single rows are left out."""
        start = first
        for place in range(first, last):
            if place == last - 1 or self._common[place] == shared:
                if place > start:
                    yield start, place + 1
                start = place + 1


def _common_pages(one: bytes, other: bytes) -> int:
    """Pages (4 bytes each) that two keys begin with alike."""
    size = min(len(one), len(other)) // 4
    differ = np.frombuffer(one, np.uint32, size) != np.frombuffer(other, np.uint32, size)
    return int(differ.argmax()) if differ.any() else size


def _cascade(order: Int64Array, groups: tuple[_Group, ...], saved: int) -> Cascade:
    count = len(order)
    own = np.zeros(count, np.int64)
    levels = []
    for level in range(1 + max(group.level for group in groups)):
        held = sorted((group for group in groups if group.level == level), key=lambda group: group.first)
        row_start, begin, end = [0], [], []
        for group in held:
            own[group.first : group.last] = np.maximum(own[group.first : group.last], group.end)
            if group.first > row_start[-1]:
                row_start.append(group.first)
                begin.append(0)
                end.append(0)
            row_start.append(group.last)
            begin.append(group.begin)
            end.append(group.end)
        if row_start[-1] < count:
            row_start.append(count)
            begin.append(0)
            end.append(0)
        levels.append(SharedLevel(np.array(row_start), np.array(begin), np.array(end)))
    return Cascade(order, tuple(levels), own, saved)


def level_tables(batch: ForwardBatch, cascade: Cascade) -> list[PageTables]:
    """The pages of each level, the rows' own ones last; queries are taken in the cascade's order."""
    tables = []
    starts = np.concatenate(([0], np.cumsum(np.diff(batch.query_start)[cascade.order])))
    for level in cascade.levels:
        first_row = cascade.order[level.row_start[:-1]]
        count = level.end - level.begin
        tables.append(
            PageTables(
                query_start=starts[level.row_start].astype(np.int32),
                page_start=bounds(count),
                pages=gather_ranges(batch.table_blocks, batch.table_start[first_row] + level.begin, count).astype(
                    np.int32
                ),
                last_page=np.where(count > 0, batch.block_size, 0).astype(np.int32),
            )
        )
    assert (cascade.own <= page_counts(batch)[cascade.order]).all()
    return [*tables, row_tables(batch, cascade.order, cascade.own)]


def token_order(batch: ForwardBatch, cascade: Cascade) -> Int64Array | None:
    """The token of the batch at each place of the cascade's order; None where nothing moves."""
    if (np.diff(cascade.order) > 0).all():
        return None
    lengths = np.diff(batch.query_start)[cascade.order]
    return gather_ranges(np.arange(batch.num_tokens), batch.query_start[cascade.order], lengths)
