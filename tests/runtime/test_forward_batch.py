"""Flattening a plan."""

from __future__ import annotations

import numpy as np
import pytest

from radixserve.runtime.forward_batch import ForwardBatch
from radixserve.scheduler.plan import StepPlan
from tests.tiny_decoder import plan_row


def test_from_plan() -> None:
    rows = (
        plan_row([10, 11, 12], [7, 2], start=3),
        plan_row([20], [5], start=0, num_samples=0),
        plan_row([30, 31], [1, 4, 9], start=8, num_samples=2),
    )
    batch = ForwardBatch.from_plan(StepPlan(1, rows), 4)
    assert batch.tokens.tolist() == [10, 11, 12, 20, 30, 31]
    assert batch.positions.tolist() == [3, 4, 5, 0, 8, 9]
    assert batch.slots.tolist() == [7 * 4 + 3, 2 * 4, 2 * 4 + 1, 5 * 4, 9 * 4, 9 * 4 + 1]
    assert batch.query_start.tolist() == [0, 3, 4, 6]
    assert batch.seq_lens.tolist() == [6, 1, 10]
    assert batch.table_start.tolist() == [0, 2, 3, 6]
    assert batch.table_blocks.tolist() == [7, 2, 5, 1, 4, 9]
    assert batch.sample_rows.tolist() == [0, 2]
    assert batch.sample_tokens.tolist() == [2, 5]
    assert (batch.num_tokens, batch.num_rows, batch.max_seq_len) == (6, 3, 10)


def test_nothing_aliases_the_plan() -> None:
    row = plan_row([1, 2], [3])
    batch = ForwardBatch.from_plan(StepPlan(0, (row,)), 4)
    row.tokens[:] = 99
    row.table[:] = 99
    assert batch.tokens.tolist() == [1, 2]
    assert batch.table_blocks.tolist() == [3]


def test_a_table_that_is_too_short_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="covers all its tokens"):
        ForwardBatch.from_plan(StepPlan(0, (plan_row(np.zeros(5), [0]),)), 4)
