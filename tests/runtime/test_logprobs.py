from __future__ import annotations

import math

import numpy as np

from radixserve.messages import SamplingParams
from radixserve.runtime.logprobs import LogprobRow
from radixserve.runtime.token_distribution import TokenDistribution

LOGITS = np.array([1.0, 3.0, -2.0, 3.0, 0.5], np.float32)


def test_any_tokens_may_be_asked_for() -> None:
    row = LogprobRow.raw(LOGITS)
    total = math.log(sum(math.exp(value) for value in LOGITS.tolist()))
    asked = row.of((4, 1, 1))
    assert [token for token, _ in asked] == [4, 1, 1]
    np.testing.assert_allclose([logprob for _, logprob in asked], [0.5 - total, 3.0 - total, 3.0 - total])
    assert row.of(()) == ()


def test_what_is_asked_for_has_the_bits_of_what_is_on_top() -> None:
    row = LogprobRow.raw(LOGITS)
    assert row.of((1, 3, 0)) == row.top(3)


def test_what_cannot_be_drawn_has_no_probability() -> None:
    distribution = TokenDistribution.of(LOGITS, SamplingParams(top_k=2))
    row = LogprobRow.processed(distribution)
    assert row.ids is not None and row.ids.tolist() == [1, 3]
    asked = dict(row.of((0, 1, 2, 3, 4)))
    assert asked[0] == asked[2] == asked[4] == -math.inf
    np.testing.assert_allclose([asked[1], asked[3]], [-math.log(2)] * 2)


def test_an_entry_carries_what_was_asked_for() -> None:
    row = LogprobRow.raw(LOGITS)
    entry = row.entry(1, row.top(1), row.of((2,)))
    assert entry.asked == row.of((2,)) and entry.top == row.top(1) and entry.rank == 1
