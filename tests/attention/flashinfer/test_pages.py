"""Tables of pages for tokens that are attended alone, and batches filled up for graphs. Needs no FlashInfer."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from radixserve.attention.flashinfer.pages import padded, row_tables, token_tables
from radixserve.runtime.forward_batch import ForwardBatch
from radixserve.scheduler.plan import StepPlan
from tests.tiny_decoder import plan_row


def batch_of(*rows: tuple[int, int, list[int]], block_size: int = 4) -> ForwardBatch:
    """Rows of (tokens in the store, tokens computed, block table)."""
    plan = StepPlan(0, tuple(plan_row([7] * extent, table, start=context) for context, extent, table in rows))
    return ForwardBatch.from_plan(plan, block_size)


def test_every_token_sees_its_rows_pages_up_to_itself() -> None:
    tables = token_tables(batch_of((2, 4, [9, 5, 3]), (8, 1, [1, 2, 6])))
    pages = np.split(tables.pages, tables.page_start[1:-1])
    assert [each.tolist() for each in pages] == [[9], [9], [9, 5], [9, 5], [1, 2, 6]]
    assert tables.last_page.tolist() == [3, 4, 1, 2, 1]
    assert tables.query_start.tolist() == [0, 1, 2, 3, 4, 5]
    assert all(each.dtype == np.int32 for each in tables.arrays)


def test_of_decodes_they_are_the_rows_own() -> None:
    batch = batch_of((5, 1, [4, 2, 8]), (0, 1, [3]), (7, 1, [1, 6]))
    for one, other in zip(token_tables(batch).arrays, row_tables(batch).arrays, strict=True):
        assert one.tolist() == other.tolist()


def test_a_graph_is_filled_up_with_one_token_of_a_block_that_is_nobodys() -> None:
    batch = batch_of((5, 1, [4, 2]), (2, 1, [3]))
    full = padded(batch, 4, 11)
    assert full.tokens.tolist() == [7, 7, 0, 0]
    assert full.positions.tolist() == [5, 2, 0, 0]
    assert full.slots.tolist() == [*batch.slots.tolist(), 44, 44]
    assert full.seq_lens.tolist() == [6, 3, 1, 1]
    tables = row_tables(full)
    assert np.split(tables.pages, tables.page_start[1:-1])[2:] == [[11], [11]]
    assert tables.last_page.tolist() == [2, 3, 1, 1]
    assert torch.equal(padded(batch, 2, 11).slots, batch.slots)


def test_what_no_graph_holds() -> None:
    with pytest.raises(AssertionError, match="2 rows in a graph of 1"):
        padded(batch_of((5, 1, [4, 2]), (2, 1, [3])), 1, 11)
    with pytest.raises(AssertionError, match="decodes alone"):
        padded(batch_of((5, 2, [4, 2])), 4, 11)
