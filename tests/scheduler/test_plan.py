"""What scheduler and runner say to each other: when two results are equal, and how open rows get their tokens."""

from __future__ import annotations

import msgspec
import numpy as np

from radixserve.scheduler.plan import UNKNOWN, RowResult, StepPlan, StepResult
from tests.tiny_decoder import plan_row


def test_results_are_equal_where_all_but_the_states_are() -> None:
    one, two = RowResult((1, 2), states=np.zeros((1, 3))), RowResult((1, 2))
    assert one == two and (one != two) is False and hash(one) == hash(two)
    for other in (RowResult((1, 3)), RowResult((1, 2), error="not finite"), (1, 2)):
        assert one != other and (one == other) is False


def test_a_plan_is_filled_with_the_tokens_that_its_rows_name() -> None:
    closed = plan_row([7, 8], [0])
    rows = [plan_row([UNKNOWN], [1 + index], start=3) for index in range(2)]
    named = [RowResult((50,)), RowResult(), RowResult((51,))]
    opened = tuple(
        msgspec.structs.replace(row, token_from=(4, source)) for row, source in zip(rows, (2, 0), strict=True)
    )
    plan = StepPlan(5, (closed, *opened))
    filled = plan.filled(StepResult(4, tuple(named)))
    assert plan.is_open and not filled.is_open
    assert [row.tokens.tolist() for row in filled.rows] == [[7, 8], [51], [50]]
    assert filled.filled(StepResult(9, ())) is filled, "nothing is asked of a step that nothing comes from"
