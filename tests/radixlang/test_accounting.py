"""One record for each call."""

from __future__ import annotations

from radixlang.accounting import Ledger
from radixlang.backends.base import Usage
from radixlang.token_keys import tokens_of


def test_records_keep_the_order_and_the_tokens_of_their_calls() -> None:
    times = iter([1.5, 2.5])
    ledger = Ledger(clock=lambda: next(times))
    ledger.record("answer", "gen", Usage(prompt=2, generated=3), [1, 2], [[3, 4, 5], [6]], "0.1")
    ledger.record(None, "hold", Usage(prompt=1), [9])
    first, second = ledger.records()
    assert (first.variable, first.kind, first.branch, first.ended) == ("answer", "gen", "0.1", 1.5)
    assert tokens_of(first.prompt) == [1, 2]
    assert [tokens_of(output) for output in first.outputs] == [[3, 4, 5], [6]]
    assert (second.variable, second.kind, second.branch, second.outputs, second.ended) == (None, "hold", "", (), 2.5)


def test_records_do_not_alias_the_state_of_a_program() -> None:
    ledger = Ledger()
    prompt = [1, 2, 3]
    ledger.record("x", "gen", Usage(), prompt)
    before = ledger.records()
    prompt.append(4)
    ledger.record("y", "gen", Usage())
    assert tokens_of(before[0].prompt) == [1, 2, 3]
    assert len(before) == 1
