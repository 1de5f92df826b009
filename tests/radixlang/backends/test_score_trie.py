"""The fewest requests that tell how likely continuations are, against a model whose every logprob is known."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixlang.backends.base import Continuations, Usage
from radixlang.backends.score_trie import MAX_ASKED, Answer, Question, score
from radixlang.errors import InvalidProgram

PROMPT = (7, 7, 9)


def logprob(path: Sequence[int], token: int) -> float:
    """Any number that depends on everything before."""
    return -float(1 + hash((tuple(path), token)) % 1000)


class Model:
    """Answers questions, and keeps them by the wave that they came in. ``cache``: sequences that were computed."""

    def __init__(self) -> None:
        self.waves: list[list[Question]] = []
        self.cache: set[tuple[int, ...]] = set()
        self.computed: list[tuple[int, ...]] = []

    async def ask(self, questions: Sequence[Question]) -> list[Answer]:
        self.waves.append(list(questions))
        known = set(self.cache)  # what is asked together is computed together
        return [self._answer(question, known) for question in questions]

    def _answer(self, question: Question, known: set[tuple[int, ...]]) -> Answer:
        tokens = question.token_ids
        assert question.asked and len(question.asked) <= MAX_ASKED
        assert len(set(question.asked)) == len(question.asked)
        assert 0 < question.start <= len(tokens)
        places = []
        for place in range(question.start, len(tokens) + 1):
            told = {token: logprob(tokens[:place], token) for token in question.asked}
            if place < len(tokens):
                told[tokens[place]] = logprob(tokens[:place], tokens[place])
            places.append(told)
        # As the engine does: logits before ``start`` are not wanted, so all but one token of them may come from the cache.
        most = question.start - 1
        cached = next((count for count in range(most, 0, -1) if tokens[:count] in known), 0)
        for end in range(cached + 1, len(tokens) + 1):
            self.computed.append(tokens[:end])
            self.cache.add(tokens[:end])
        return Answer(tuple(places), Usage(prompt=len(tokens), cached=cached, computed=len(tokens) - cached))


def scored(continuations: Sequence[Sequence[int]]) -> tuple[Model, Continuations]:
    model = Model()
    return model, asyncio.run(score(model.ask, PROMPT, continuations))


def by_hand(tokens: Sequence[int]) -> tuple[float, ...]:
    return tuple(logprob((*PROMPT, *tokens[:at]), token) for at, token in enumerate(tokens))


continuations = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), min_size=1, max_size=12)


@given(continuations)
def test_scores_are_those_of_each_continuation_alone(items: list[list[int]]) -> None:
    model, result = scored(items)
    assert result.token_ids == tuple(map(tuple, items))
    assert result.logprobs == tuple(map(by_hand, items))
    inner = {tuple(item[:length]) for item in items for length in range(1, len(item))}
    assert result.usage.prompt == len(PROMPT) + len(inner), "each token once, however many requests it was in"
    assert result.usage.computed == len(model.computed)
    assert result.usage.cached is not None
    assert result.usage.cached + result.usage.computed == result.usage.prompt
    assert result.usage.generated == 0


@given(continuations)
def test_every_edge_is_computed_once(items: list[list[int]]) -> None:
    model, _ = scored(items)
    inner = {(*PROMPT, *item[:length]) for item in items for length in range(1, len(item))}
    beyond = [path for path in model.computed if len(path) > len(PROMPT)]
    assert sorted(beyond) == sorted(inner)


@given(continuations)
def test_there_are_as_many_requests_as_inner_ends(items: list[list[int]]) -> None:
    model, _ = scored(items)
    inner = {tuple(item[:length]) for item in items for length in range(len(item))}
    ends = [path for path in inner if not any(other[: len(path)] == path and other != path for other in inner)]
    assert sum(map(len, model.waves)) == len(ends)
    assert len(model.waves) <= 1 + math.log2(len(ends)) + 1


def test_choices_of_one_token_are_one_request_of_one_position() -> None:
    model, result = scored([[1], [2], [3]])
    assert model.waves == [[Question(PROMPT, len(PROMPT), (1, 2, 3))]]
    assert result.usage.computed == len(PROMPT)


def test_a_choice_that_another_one_begins_with() -> None:
    _, result = scored([[1], [1, 2]])
    assert result.logprobs == (by_hand([1]), by_hand([1, 2]))


def test_more_branches_than_a_request_takes() -> None:
    items = [[token] for token in range(MAX_ASKED + 5)] + [[0, token] for token in range(2 * MAX_ASKED + 1)]
    model, result = scored(items)
    assert result.logprobs == tuple(map(by_hand, items))
    assert len(model.waves[0]) == 1, "whatever is shared is computed before anything else is asked"
    assert sum(map(len, model.waves)) == 4


def test_deep_continuations_need_no_deep_stack() -> None:
    long = list(range(1500))
    _, result = scored([long, [*long[:-1], 1]])
    assert result.logprobs[0] == by_hand(long)


@pytest.mark.parametrize("items", [[], [[]], [[1], []]])
def test_nothing_to_score_is_refused(items: list[list[int]]) -> None:
    with pytest.raises(InvalidProgram, match=r"^continuations:"):
        scored(items)
