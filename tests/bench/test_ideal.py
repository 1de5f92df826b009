from __future__ import annotations

import dataclasses

import pytest

from radixserve.bench.floors import Floor, ModelCost, StepWork
from radixserve.bench.ideal import ideal_run, longest_context
from radixserve.bench.machine import Limits
from radixserve.bench.prose import Prose
from radixserve.bench.workloads import NAMES, Call, OutputOf, Text, Workload, build_workload
from tests.bench.test_floors import SHAPE, SMOLLM2

COST = ModelCost.dense(SHAPE)


def play(limits: Limits, *calls: Call, concurrency: int = 8) -> tuple[int, int, int, float]:
    ideal = ideal_run(Workload("X", "x", calls, concurrency), COST, limits)
    return ideal.steps, ideal.computed_tokens, ideal.cached_tokens, ideal.seconds


def expected(limits: Limits, *steps: StepWork) -> float:
    return sum((COST.step(step, limits) for step in steps), Floor()).seconds


def test_one_request_is_a_prompt_and_its_decodes(limits: Limits) -> None:
    steps, computed, cached, seconds = play(limits, Call((Text("a", 5),), 3))
    assert (steps, computed, cached) == (3, 7, 0)
    work = [StepWork(5, 1, 15, 5), StepWork(1, 1, 6, 6), StepWork(1, 1, 7, 7)]
    assert seconds == pytest.approx(expected(limits, *work))


def test_a_shared_prefix_is_computed_once_and_read_once(limits: Limits) -> None:
    prefix = Text("p", 10)
    steps, computed, cached, seconds = play(
        limits, Call((prefix, Text("a", 2)), 2), Call((prefix, Text("b", 3)), 2), Call((prefix, Text("c", 1)), 1)
    )
    assert (steps, cached) == (2, 20)
    assert computed == 10 + 2 + 3 + 1 + 2
    first = StepWork(16, 3, 78 + (11 + 12 + 13) + 11, 10 + 2 + 3 + 1)
    second = StepWork(2, 2, 13 + 14, 10 + 3 + 4)
    assert seconds == pytest.approx(expected(limits, first, second))


def test_at_least_one_token_of_a_prompt_is_computed(limits: Limits) -> None:
    same = (Text("p", 10),)
    assert play(limits, Call(same, 1), Call(same, 1))[1:3] == (11, 9)


def test_a_turn_finds_all_of_the_last_but_the_token_drawn_last(limits: Limits) -> None:
    first = Call((Text("a", 10),), 4)
    second = Call((*first.parts, OutputOf(0), Text("b", 3)), 1)
    steps, computed, cached, _ = play(limits, first, second)
    assert (steps, cached) == (5, 13)
    assert computed == 10 + 3 + 4


def test_no_more_run_at_once_than_may(limits: Limits) -> None:
    calls = [Call((Text(str(index), 4),), 2) for index in range(4)]
    assert play(limits, *calls, concurrency=4)[0] == 2
    assert play(limits, *calls, concurrency=1)[0] == 8


def test_one_that_waits_for_pieces_starts_when_they_have_come(limits: Limits) -> None:
    stream = Call((Text("s", 4),), 9)
    late = Call((Text("l", 7),), 1, after=((0, 3),))
    ideal = ideal_run(Workload("X", "x", (stream, late), 2), COST, limits)
    assert ideal.steps == 9
    decodes = [StepWork(4, 1, 10, 4), StepWork(1, 1, 5, 5), StepWork(1, 1, 6, 6)]
    assert ideal.sent_s[1] == pytest.approx(expected(limits, *decodes))
    assert ideal.first_s[1] - ideal.sent_s[1] == pytest.approx(expected(limits, StepWork(8, 2, 28 + 7, 7 + 7)))
    assert ideal.done_s[0] == pytest.approx(ideal.seconds)


def test_known_floors_of_the_workloads(prose: Prose) -> None:
    """Wall floors by arithmetic on the limits of a quiet machine of two cores, in seconds."""
    limits = Limits(threads=2, dram=28e9, cache=110e9, bf16=447e9, int8=896e9, fp32=224e9)
    cost = ModelCost.dense(SMOLLM2)
    seconds = {name: ideal_run(build_workload(name, prose, 1), cost, limits).seconds for name in NAMES}
    known = {"W1": 4.7, "W2": 8.2, "W3": 3.6, "W4": 7.0, "W5": 10.5, "W6": 3.9, "W7": 2.8, "W8": 8.1}
    assert seconds == pytest.approx(known, rel=0.02)


def test_a_faster_machine_has_a_lower_floor(prose: Prose, limits: Limits) -> None:
    workload, cost = build_workload("W1", prose, 1), ModelCost.dense(SMOLLM2)
    twice = dataclasses.replace(limits, dram=2 * limits.dram, bf16=2 * limits.bf16)
    assert ideal_run(workload, cost, twice).seconds == pytest.approx(ideal_run(workload, cost, limits).seconds / 2)


def test_the_longest_context_counts_outputs(prose: Prose) -> None:
    assert longest_context(build_workload("W8", prose, 1)) == 6016
    assert (
        longest_context(Workload("X", "x", (Call((Text("a", 5),), 3), Call((Text("a", 5), OutputOf(0)), 2)), 1)) == 10
    )
