"""The methods of `select`, by numbers worked out by hand."""

from __future__ import annotations

import itertools
import math

import pytest

from radixlang.select import (
    Method,
    Scored,
    greedy_token_selection,
    token_length_normalized,
    unconditional_likelihood_normalized,
)

METHODS = [token_length_normalized, greedy_token_selection, unconditional_likelihood_normalized]


def scored(choices: dict[str, list[tuple[int, float]]], unconditional: dict[str, list[float]] | None = None) -> Scored:
    """Choice -> (token, probability) for each of its tokens."""
    return Scored(
        tuple(choices),
        tuple(tuple(token for token, _ in tokens) for tokens in choices.values()),
        tuple(tuple(math.log(probability) for _, probability in tokens) for tokens in choices.values()),
        None
        if unconditional is None
        else tuple(tuple(math.log(probability) for probability in unconditional[choice]) for choice in choices),
    )


def test_the_mean_per_token() -> None:
    decision = token_length_normalized(scored({"long": [(1, 0.5), (2, 0.9)], "short": [(3, 0.6)]}))
    assert decision.index == 0
    assert decision.scores == pytest.approx([(math.log(0.5) + math.log(0.9)) / 2, math.log(0.6)])


def test_what_the_prompt_changes() -> None:
    decision = unconditional_likelihood_normalized(
        scored({"common": [(1, 0.5)], "rare": [(2, 0.2), (3, 0.5)]}, {"common": [0.5], "rare": [0.01, 0.5]})
    )
    assert decision.index == 1
    assert decision.scores == pytest.approx([0.0, math.log(20) / 2])
    with pytest.raises(ValueError, match="unconditional"):
        unconditional_likelihood_normalized(scored({"a": [(1, 0.5)]}))


def test_greedy_goes_to_the_likeliest_token_and_not_to_the_likeliest_choice() -> None:
    choices = {"a1": [(1, 0.6), (2, 0.3)], "a2": [(1, 0.6), (3, 0.2)], "b": [(4, 0.4)]}
    decision = greedy_token_selection(scored(choices))
    assert decision.index == 0
    assert decision.scores == pytest.approx([math.log(0.18), math.log(0.12), math.log(0.4)])


@pytest.mark.parametrize(("going_on", "picked"), [(0.4, "a"), (0.6, "ab")])
def test_greedy_lets_an_end_compete_with_what_the_others_leave(going_on: float, picked: str) -> None:
    choices = {"ab": [(1, 0.5), (2, going_on)], "a": [(1, 0.5)], "c": [(3, 0.1)]}
    decision = greedy_token_selection(scored(choices))
    assert list(choices)[decision.index] == picked
    assert decision.scores == pytest.approx([math.log(0.5 * going_on), math.log(0.5 * (1 - going_on)), math.log(0.1)])


def test_an_end_that_is_left_nothing_cannot_win() -> None:
    decision = greedy_token_selection(scored({"a": [(1, 0.5)], "ab": [(1, 0.5), (2, 0.7)], "ac": [(1, 0.5), (3, 0.3)]}))
    assert decision.index == 1
    assert decision.scores[0] < -30


@pytest.mark.parametrize("method", METHODS)
def test_ties_go_to_the_one_given_first(method: Method) -> None:
    alone = {"x": [0.1], "y": [0.1]}
    assert method(scored({"x": [(1, 0.5)], "y": [(2, 0.5)]}, alone)).index == 0
    assert method(scored({"y": [(2, 0.5)], "x": [(1, 0.5)]}, alone)).index == 0


@pytest.mark.parametrize("method", METHODS)
def test_nothing_but_ties_depends_on_the_order(method: Method) -> None:
    choices = {
        "a": [(1, 0.31)],
        "ab": [(1, 0.31), (2, 0.17)],
        "abc": [(1, 0.31), (2, 0.17), (3, 0.9)],
        "ad": [(1, 0.31), (4, 0.13)],
        "ae": [(1, 0.31), (5, 0.07)],
        "z": [(6, 0.29)],
    }
    alone = {choice: [0.01 * token for token, _ in tokens] for choice, tokens in choices.items()}
    results = set()
    for order in itertools.permutations(choices):
        one = scored({choice: choices[choice] for choice in order}, alone)
        decision = method(one)
        results.add((one.choices[decision.index], tuple(sorted(zip(order, decision.scores, strict=True)))))
    assert len(results) == 1
