from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from radixserve.messages import SamplingParams
from radixserve.runtime.logits_processors import process
from radixserve.scheduler.plan import PlanRow

EOS = (7,)


def row(history: list[int], num_prompt: int, **sampling: Any) -> PlanRow:
    tokens = np.array(history, np.int32)
    return PlanRow(
        rid="r",
        start=len(history) - 1,
        tokens=tokens[-1:],
        table=np.zeros(1, np.int32),
        sampling=SamplingParams(**sampling),
        seed=0,
        num_prompt=num_prompt,
        num_samples=1,
        history=tokens if SamplingParams(**sampling).needs_history else None,
    )


def logits() -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.array([2.0, -2.0, 0.0, 4.0, 1.0, 1.0, -np.inf, 8.0], np.float32)


def test_nothing_to_do_returns_the_logits_themselves() -> None:
    given = logits()
    assert process(given, row([0, 1], 1), EOS) is given


def test_repetition_looks_at_prompt_and_output() -> None:
    changed = process(logits(), row([0, 0, 1, 2, 6, 3, 3], 5, repetition_penalty=2.0), EOS)
    assert changed.tolist() == [1.0, -4.0, 0.0, 2.0, 1.0, 1.0, -np.inf, 8.0]


def test_frequency_and_presence_look_at_the_output_only() -> None:
    history = [0, 0, 1, 3, 3, 3, 6, 4]
    changed = process(logits(), row(history, 3, frequency_penalty=0.5), EOS)
    assert changed.tolist() == [2.0, -2.0, 0.0, 2.5, 0.5, 1.0, -np.inf, 8.0]
    changed = process(logits(), row(history, 3, presence_penalty=-1.0), EOS)
    assert changed.tolist() == [2.0, -2.0, 0.0, 5.0, 2.0, 1.0, -np.inf, 8.0]
    changed = process(logits(), row(history, 3, frequency_penalty=0.5, presence_penalty=1.0), EOS)
    assert changed.tolist() == [2.0, -2.0, 0.0, 1.5, -0.5, 1.0, -np.inf, 8.0]


def test_without_output_there_is_nothing_to_penalize() -> None:
    changed = process(logits(), row([0, 3], 2, frequency_penalty=1.0, presence_penalty=1.0), EOS)
    assert changed.tolist() == logits().tolist()


def test_bias_comes_after_penalties() -> None:
    changed = process(logits(), row([0, 3], 2, repetition_penalty=2.0, logit_bias={3: -10.0, 5: 0.25}), EOS)
    assert changed.tolist() == [1.0, -2.0, 0.0, -8.0, 1.0, 1.25, -np.inf, 8.0]


@pytest.mark.parametrize(("outputs", "banned"), [(0, True), (1, True), (2, False), (3, False)])
def test_stop_tokens_are_banned_until_min_tokens(outputs: int, banned: bool) -> None:
    changed = process(logits(), row([1] * (2 + outputs), 2, min_tokens=2, stop_token_ids=(3,)), EOS)
    assert (changed[3] == -np.inf, changed[7] == -np.inf) == (banned, banned)
    assert changed[0] == 2.0


def test_a_bias_does_not_lift_the_ban() -> None:
    assert process(logits(), row([1], 1, min_tokens=1, logit_bias={7: 100.0}), EOS)[7] == -np.inf


def test_under_ignore_eos_only_the_stop_tokens_are_banned() -> None:
    changed = process(logits(), row([1], 1, min_tokens=1, stop_token_ids=(3,), ignore_eos=True), EOS)
    assert (changed[3], changed[7]) == (-np.inf, 8.0)
    given = logits()
    assert process(given, row([1], 1, min_tokens=1, ignore_eos=True), EOS) is given


def test_a_tiny_repetition_penalty_stays_finite() -> None:
    changed = process(logits(), row([0, 1, 3], 3, repetition_penalty=5e-324), EOS)
    assert np.isfinite(changed[[0, 1, 3]]).all()
    assert changed[0] > 1e200


def test_the_given_logits_are_not_written_to() -> None:
    given = logits()
    sampling: dict[str, Any] = {
        "repetition_penalty": 2.0,
        "presence_penalty": 1.0,
        "logit_bias": {0: 1.0},
        "min_tokens": 9,
    }
    process(given, row([0, 1, 2, 3], 2, **sampling), EOS)
    assert given.tolist() == logits().tolist()
