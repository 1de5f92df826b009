"""A batch's block tables as the int32 arrays that FlashInfer reads. Host side.

FlashInfer describes paged KV by three arrays: bounds that count *pages*, page ids, and how many tokens the last page of
each row holds; queries by bounds that count tokens. A page is a block of the pool.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

if TYPE_CHECKING:
    from radixserve.runtime.forward_batch import ForwardBatch

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class PageTables:
    """Groups of consecutive query tokens, and the pages that each group attends to.

    ``query_start`` [G + 1]: group g asks with tokens ``query_start[g]`` to ``query_start[g + 1] - 1``.
    ``page_start`` [G + 1], ``pages`` [sum]: its pages are ``pages[page_start[g]:page_start[g + 1]]``.
    ``last_page`` [G]: tokens in its last page, 1 to the page size; 0 where it has no page.
    """

    query_start: Int32Array
    page_start: Int32Array
    pages: Int32Array
    last_page: Int32Array

    @property
    def arrays(self) -> tuple[Int32Array, Int32Array, Int32Array, Int32Array]:
        """All four, in the order in which FlashInfer's ``plan`` takes them."""
        return self.query_start, self.page_start, self.pages, self.last_page


def page_counts(batch: ForwardBatch) -> Int64Array:
    """Pages [R] that hold the tokens of each row; its block table may be longer."""
    counts: Int64Array = -(-batch.seq_lens // batch.block_size)
    return counts


def whole_pages(batch: ForwardBatch) -> Int64Array:
    """Pages [R] that lie wholly before each row's first query, so that all its queries see them without a mask."""
    starts = batch.seq_lens - np.diff(batch.query_start)
    pages: Int64Array = starts // batch.block_size
    return pages


def row_tables(batch: ForwardBatch, rows: Int64Array | None = None, begin: Int64Array | None = None) -> PageTables:
    """One group a row, the ``rows`` of the batch in the given order (None: all, in theirs).

    ``begin``: the first page [len(rows)] that the row attends to, counted in its block table; None is 0. A row may be
    named more than once.
    """
    rows = np.arange(batch.num_rows) if rows is None else rows
    begin = np.zeros(len(rows), np.int64) if begin is None else begin
    needed = page_counts(batch)[rows]
    return PageTables(
        query_start=bounds(np.diff(batch.query_start)[rows]),
        page_start=bounds(needed - begin),
        pages=gather_ranges(batch.table_blocks, batch.table_start[rows] + begin, needed - begin).astype(np.int32),
        last_page=(batch.seq_lens[rows] - (needed - 1) * batch.block_size).astype(np.int32),
    )


def token_rows(batch: ForwardBatch) -> tuple[Int32Array, Int32Array]:
    """The row [T] and the absolute position [T] of each token of the batch."""
    lengths = np.diff(batch.query_start)
    rows = np.repeat(np.arange(batch.num_rows), lengths)
    positions = np.arange(batch.num_tokens) + np.repeat(batch.seq_lens - batch.query_start[1:], lengths)
    return rows.astype(np.int32), positions.astype(np.int32)


def bounds(lengths: Int64Array) -> Int32Array:
    """Bounds [n + 1] of n consecutive stretches."""
    return np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)


def gather_ranges(values: Int64Array, first: Int64Array, lengths: Int64Array) -> Int64Array:
    """``values[first[i]:first[i] + lengths[i]]`` of all i, one after the other."""
    offset = np.concatenate(([0], np.cumsum(lengths)))
    gathered: Int64Array = values[np.arange(offset[-1]) + np.repeat(first - offset[:-1], lengths)]
    return gathered


def token_tables(batch: ForwardBatch) -> PageTables:
    """One group a token: each sees its row's pages up to its own position, as if it were decoded alone."""
    rows, positions = token_rows(batch)
    needed = positions.astype(np.int64) // batch.block_size + 1
    return PageTables(
        query_start=np.arange(batch.num_tokens + 1, dtype=np.int32),
        page_start=bounds(needed),
        pages=gather_ranges(batch.table_blocks, batch.table_start[rows], needed).astype(np.int32),
        last_page=(positions % batch.block_size + 1).astype(np.int32),
    )


def padded(batch: ForwardBatch, rows: int, spare: int) -> ForwardBatch:
    """A batch of decodes on the host, filled up to ``rows`` rows for a captured graph.

    The rows that are added compute token 0 at position 0 of block ``spare``, which is nobody's: the shortest attention there
    is. Copies of a real row would do as long as they compute *its* token; one that is fed back on the device they would not have,
    and then two rows write different K and V to one slot.
    """
    count = batch.num_rows
    assert batch.num_tokens == count, "graphs hold decodes alone"
    assert count <= rows, f"{count} rows in a graph of {rows}"
    more = rows - count
    none = torch.zeros(more, dtype=torch.int64)
    return dataclasses.replace(
        batch,
        tokens=torch.cat((batch.tokens, none)),
        positions=torch.cat((batch.positions, none)),
        slots=torch.cat((batch.slots, none + spare * batch.block_size)),
        query_start=np.arange(rows + 1),
        seq_lens=np.concatenate((batch.seq_lens, np.ones(more, np.int64))),
        table_start=np.concatenate((batch.table_start, batch.table_start[-1] + 1 + np.arange(more))),
        table_blocks=np.concatenate((batch.table_blocks, np.full(more, spare))),
    )
