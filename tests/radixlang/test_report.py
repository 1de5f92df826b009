"""Sums, tables and JSON of programs and batches."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from radixlang.accounting import Ledger
from radixlang.backends.base import Usage
from radixlang.report import Report, batch_report, program_report


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class State:
    ledger: Ledger = field(default_factory=Ledger)


def usage(
    prompt: int, cached: int, generated: int = 0, *, forced: int = 0, wall: float = 0.5, queue: float = 0.1
) -> Usage:
    return Usage(prompt, cached, prompt - cached, generated, forced, wall, queue)


def fork_of_four(*, held: bool) -> Ledger:
    """A hundred tokens shared by four branches, each with two of its own and three generated."""
    clock = Clock()
    ledger = Ledger(clock)
    if held:
        clock.now = 1.0
        ledger.record(None, "hold", usage(100, 0, wall=1.0), range(100))
    for branch in range(4):
        clock.now += 0.25
        cached = 100 if held or branch else 0
        ledger.record("tip", "gen", usage(102, cached, 3), [*range(100), 200 + branch, 7], [[1, 2, 3]], str(branch))
    return ledger


def variable(report: Report, name: str) -> dict[str, object]:
    (line,) = [line for line in report.json()["variables"] if line["name"] == name]
    return dict(line)


def test_a_line_sums_the_calls_of_a_variable() -> None:
    assert variable(program_report(fork_of_four(held=False)), "tip") == {
        "name": "tip",
        "kind": "gen",
        "calls": 4,
        "prompt": 408,
        "cached": 300,
        "computed": 108,
        "needed": 108,
        "generated": 12,
        "forced": 0,
        "wall_s": 2.0,
        "queue_s": pytest.approx(0.4),
    }


def test_a_hold_moves_the_cost_and_not_the_sum() -> None:
    plain, held = program_report(fork_of_four(held=False)), program_report(fork_of_four(held=True))
    assert variable(held, "(held)")["computed"] == 100
    assert variable(held, "(held)")["needed"] == 0
    assert variable(held, "tip")["cached"] == 400
    for report in (plain, held):
        assert (report.total.calls, report.total.prompt, report.total.computed) == (4, 408, 108)
        assert (report.reused, report.reusable, report.share) == (300, 300, 1.0)


def test_a_hold_that_nobody_used_lowers_the_share() -> None:
    ledger = fork_of_four(held=False)
    ledger.record(None, "hold", usage(50, 0), range(500, 550))
    report = program_report(ledger)
    assert (report.reused, report.reusable) == (250, 300)
    assert report.share == pytest.approx(250 / 300)


def test_a_warm_cache_can_beat_the_optimum_and_nothing_to_share_has_none() -> None:
    warm, alone = Ledger(), Ledger()
    warm.record("x", "gen", usage(10, 9), range(10))
    warm.record("y", "gen", usage(10, 9), range(10))
    alone.record("x", "gen", usage(10, 0), range(10))
    assert program_report(warm).share == 2.0
    assert program_report(alone).share is None


def test_variables_stand_in_order_of_use_and_branches_apart() -> None:
    ledger = Ledger()
    ledger.record("b", "gen", usage(4, 0, 2), [1, 2, 3, 4], [[5, 6]])
    ledger.record("a", "select", usage(14, 12), [1, 2, 3, 4, 5, 6], [[7], [8]], "0")
    ledger.record(None, "gen", usage(8, 6, 1), [1, 2, 3, 4, 5, 6, 7, 9], [[1]], "0")
    ledger.record("b", "gen", usage(8, 6, 1), [1, 2, 3, 4, 5, 6, 7, 8], [[1]], "1")
    report = program_report(ledger)
    assert [(line.name, line.kind, line.calls) for line in report.variables] == [
        ("b", "gen", 2),
        ("a", "select", 1),
        ("(unnamed)", "gen", 1),
    ]
    assert [(line.name, line.calls, line.prompt) for line in report.branches] == [("", 1, 4), ("0", 2, 22), ("1", 1, 8)]
    assert [line.needed for line in report.variables] == [4 + 1, 1, 2]


def test_the_programs_of_a_batch_share_one_cache() -> None:
    clock = Clock()
    states = [State(Ledger(clock)) for _ in range(3)]
    for number, state in enumerate(states[:2]):
        clock.now += 1.0
        state.ledger.record("x", "gen", usage(101, 100 * number, 1), [*range(100), 300 + number], [[1]])
    report = batch_report(states)
    assert [(line.name, line.calls, line.needed) for line in report.programs] == [
        ("0", 1, 101),
        ("1", 1, 1),
        ("2", 0, 0),
    ]
    assert (report.reused, report.reusable, report.share) == (100, 100, 1.0)
    assert report.elapsed_s == 1.5


def test_calls_of_a_batch_count_in_the_order_in_which_they_ended() -> None:
    clock = Clock()
    late, early = State(Ledger(clock)), State(Ledger(clock))
    early.ledger.record("x", "gen", usage(3, 0, 2), [1, 2, 3], [[4, 5]])
    clock.now = 1.0
    late.ledger.record("x", "gen", usage(5, 4), [1, 2, 3, 4, 9])
    assert [line.needed for line in batch_report([late, early]).programs] == [1, 3]


def test_what_a_backend_does_not_tell_is_unknown_and_not_zero() -> None:
    ledger = Ledger()
    ledger.record("x", "gen", Usage(prompt=30, generated=5, wall_s=1.0))
    report = program_report(ledger)
    total = report.total
    assert (total.cached, total.computed, total.needed, total.forced, total.queue_s) == (None,) * 5
    assert (report.reused, report.reusable, report.share) == (None, None, None)
    assert "does not tell" in str(report)
    # One of the two is enough; the optimum takes tokens.
    ledger = Ledger()
    ledger.record("x", "gen", Usage(prompt=30, cached=10))
    report = program_report(ledger)
    assert (report.total.computed, report.reused, report.reusable, report.share) == (20, 10, None, None)
    assert str(report).endswith("\n10 of 30 prompt tokens were re-used.")


def test_a_program_without_calls_has_a_report() -> None:
    report = program_report(Ledger())
    assert (report.total.calls, report.elapsed_s, report.share) == (0, 0.0, None)
    assert str(report).startswith("1 program, 0 calls, 0.00 s")


def test_the_table_is_readable() -> None:
    ledger = fork_of_four(held=True)
    assert str(program_report(ledger)).splitlines() == [
        "1 program, 4 calls, 2.00 s",
        "",
        "              calls  prompt  cached  computed  needed  generated  forced  wall s  queue s",
        "(held)  hold      1     100       0       100       0          0       0    1.00     0.10",
        "tip     gen       4     408     400         8     108         12       0    2.00     0.40",
        "total             4     408     400       108     108         12       0    3.00     0.40",
        "",
        "300 of 408 prompt tokens were re-used; a cache without end re-uses 300: 100.0 % of the optimum.",
    ]


def test_a_report_is_written_as_json(tmp_path: Path) -> None:
    report = program_report(fork_of_four(held=True))
    report.to_json(tmp_path / "report.json")
    assert json.loads((tmp_path / "report.json").read_text()) == report.json()
    assert report.json()["total"]["prompt"] == 408
