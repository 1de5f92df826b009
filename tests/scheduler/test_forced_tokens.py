"""Tokens that nobody draws: appended, computed in one step, and told once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from radixserve.errors import MatcherFailed
from radixserve.messages import FinishReason
from radixserve.scheduler.request import Ending, Follow
from tests.scheduler.machine import Machine
from tests.scheduler.scripted import Scripted

PROMPT = [1, 2, 3, 4, 5]


class Listed:
    """``follows[i]`` comes after the i-th draw, ``follows[0]`` before the first; afterwards nothing is forced."""

    def __init__(self, follows: Sequence[Follow], at: int = 0) -> None:
        self.follows, self.at = follows, at

    def begin(self) -> Follow:
        """What the output begins with."""
        return self._next()

    def repeats(self, token: int) -> bool:
        return False

    @property
    def over(self) -> bool:
        """Whether nothing is forced any more."""
        return self.at >= len(self.follows)

    def after(self, token: int) -> Follow:
        """What comes after the next draw."""
        return self._next()

    def copy(self) -> Listed:
        """One at the same place."""
        return Listed(self.follows, self.at)

    def _next(self) -> Follow:
        self.at += 1
        return self.follows[self.at - 1] if self.at <= len(self.follows) else Follow()


def forced(*tokens: int, ending: Ending | None = None) -> Follow:
    return Follow(tokens, ending)


def test_forced_tokens_are_computed_in_one_step() -> None:
    machine = Machine()
    machine.add("a", PROMPT, 12, continuation=Listed([Follow(), forced(7, 8, 9, 7, 8, 9)]))
    plans = machine.run()
    assert [len(plan.rows[0].tokens) for plan in plans] == [5, 7, 1, 1, 1, 1]
    assert machine.tokens("a")[1:7] == [7, 8, 9, 7, 8, 9]
    assert machine.scheduler.stats.forced_tokens == 6 and machine.scheduler.stats.generated_tokens == 12
    machine.check_idle()


def test_one_a_step_without_fast_forward() -> None:
    machine = Machine(fast_forward=False)
    machine.add("a", PROMPT, 12, continuation=Listed([Follow(), forced(7, 8, 9, 7, 8, 9)]))
    plans = machine.run()
    assert [len(plan.rows[0].tokens) for plan in plans] == [5] + [1] * 11
    assert [plan.rows[0].num_samples for plan in plans] == [1, *[0] * 6, *[1] * 5]
    assert machine.tokens("a")[1:7] == [7, 8, 9, 7, 8, 9]


def test_what_an_output_begins_with_runs_with_the_prompt() -> None:
    machine = Machine()
    machine.add("a", PROMPT, 5, n=2, continuation=Listed([forced(7, 8, 9)]))
    assert machine.tokens("a", 0) == machine.tokens("a", 1) == [7, 8, 9]
    plans = machine.run()
    assert [len(row.tokens) for row in plans[0].rows] == [8] and plans[0].rows[0].num_samples == 2
    assert len(plans) == 2 and [len(row.tokens) for row in plans[1].rows] == [1, 1]
    assert [len(machine.tokens("a", index)) for index in (0, 1)] == [5, 5]


@pytest.mark.parametrize("fast_forward", [True, False])
@pytest.mark.parametrize("logprobs", [None, 0])
def test_endings(fast_forward: bool, logprobs: int | None) -> None:
    script = Ending(FinishReason.STOP, "script")
    cases: list[tuple[list[Follow], dict[str, Any], int, list[int], FinishReason, object]] = [
        ([forced(7, 8, ending=script)], {}, 9, [7, 8], FinishReason.STOP, "script"),
        ([forced(7, 8, ending=script)], {}, 2, [7, 8], FinishReason.STOP, "script"),
        ([forced(7, 8, ending=script)], {}, 1, [7], FinishReason.LENGTH, None),
        ([forced(7, 8)], {}, 2, [7, 8], FinishReason.LENGTH, None),
        ([forced(7, 8, 9)], {"stop_token_ids": (8,)}, 9, [7, 8], FinishReason.STOP, 8),
        ([forced(7, 3, 9)], {}, 9, [7, 3], FinishReason.STOP, None),
    ]
    for follows, sampling, limit, tokens, reason, stop in cases:
        machine = Machine(fast_forward=fast_forward, eos_ids=(3,))
        machine.add("a", PROMPT, limit, continuation=Listed(follows), logprobs=logprobs, n=2, **sampling)
        machine.run()
        for index in (0, 1):
            sample = machine.samples["a", index]
            assert (sample.token_ids, sample.finish_reason, sample.stop_reason) == (tokens, reason, stop)
            assert [entry.token_id for entry in sample.logprobs] == (tokens if logprobs == 0 else [])
            assert all(entry.forced for entry in sample.logprobs)
        machine.check_idle()


def test_what_is_wholly_forced_needs_no_step_unless_logprobs_are_wanted() -> None:
    whole = [forced(7, 8, ending=Ending(FinishReason.STOP))]
    cases: list[tuple[dict[str, Any], int]] = [({}, 0), ({"logprobs": 0}, 1), ({"prompt_logprobs": 0}, 1)]
    for wanted, steps in cases:
        machine = Machine()
        machine.add("a", PROMPT, 9, continuation=Listed(whole), **wanted)
        assert len(machine.run()) == steps
        assert machine.tokens("a") == [7, 8]


def test_forced_tokens_are_chunked_like_a_prompt() -> None:
    machine = Machine(max_batch_tokens=8, max_running=4, block_size=4)
    run = list(range(10, 40))
    machine.add("a", PROMPT, 40, continuation=Listed([Follow(), forced(*run)]), logprobs=0)
    machine.add("b", [9, 9, 9], 30)
    plans = machine.run()
    assert max(plan.num_tokens for plan in plans) <= 8
    assert machine.tokens("a")[1:31] == run
    assert all(any(row.rid == "b" for row in plan.rows) for plan in plans[2:25]), "a decode waits for nobody"


def test_forced_tokens_that_are_in_the_cache_are_not_computed_again() -> None:
    machine = Machine(block_size=4)
    run = list(range(10, 42))
    for rid in ("a", "b"):
        machine.add(rid, PROMPT, 40, temperature=0.0, continuation=Listed([Follow(), forced(*run)]))
        computed = machine.scheduler.stats.computed_tokens
        machine.run()
    assert machine.tokens("a") == machine.tokens("b")
    assert machine.scheduler.stats.computed_tokens - computed < 16


def test_logprobs_of_cached_forced_tokens_are_computed_anyway() -> None:
    machine = Machine(block_size=4)
    run = list(range(10, 42))
    for rid in ("a", "b"):
        machine.add(rid, PROMPT, 40, temperature=0.0, logprobs=0, continuation=Listed([Follow(), forced(*run)]))
        machine.run()
    assert machine.samples["a", 0].logprobs == machine.samples["b", 0].logprobs
    assert len(machine.samples["b", 0].logprobs) == 40


def test_a_continuation_that_fails_ends_its_own_request() -> None:
    class Failing(Listed):
        def after(self, token: int) -> Follow:
            raise MatcherFailed("too complex")

    machine = Machine()
    machine.add("a", PROMPT, 9, continuation=Failing([Follow()]))
    machine.add("b", PROMPT, 9)
    machine.run()
    assert (
        machine.samples["a", 0].finish_reason is FinishReason.ERROR and machine.samples["a", 0].error == "too complex"
    )
    assert len(machine.tokens("b")) == 9
    machine.check_idle()


def test_preempted_requests_keep_what_was_forced() -> None:
    tight = Machine(num_blocks=20, block_size=4, max_running=4, watermark=0.0)
    wide = Machine(block_size=4, max_running=4)
    for machine in (tight, wide):
        for number in range(4):
            machine.add(
                f"r{number}", [number, 1, 2], 40, seed=number, logprobs=0, continuation=Scripted(number, 50, ends=False)
            )
        machine.run()
        machine.check_idle()
    assert tight.scheduler.stats.preemptions > 0
    assert tight.samples == wide.samples
