from __future__ import annotations

import random

import pytest

from radixserve.bench.prose import Prose
from radixserve.bench.workloads import LONG, NAMES, OutputOf, Scale, Text, Workload, build_workload
from tests.tiny_model import byte_tokenizer

WHOLE_SIZES = {
    # calls, at once, output tokens of all, prompt tokens of the first
    "W1": (64, 16, 64 * 32, 1064),
    "W2": (64, 8, 64 * 64, 68),
    "W3": (84, 16, 84 * 48, 309),
    "W4": (48, 16, 48 * 48, None),
    "W5": (32, 16, 32 * 64, 512),
    "W6": (3, 1, 3 * 128, 128),
    "W7": (32, 16, 32 * 96, 521),
    "W8": (9, 9, 8 * 200 + 16, 64),
}


def prompt_tokens(workload: Workload, index: int) -> int:
    return sum(
        workload.calls[part.call].max_tokens if isinstance(part, OutputOf) else part.tokens
        for part in workload.calls[index].parts
    )


def test_there_are_eight() -> None:
    assert tuple(WHOLE_SIZES) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_sizes_are_what_they_are_said_to_be(prose: Prose, name: str) -> None:
    workload = build_workload(name, prose, 1)
    calls, at_once, output, first = WHOLE_SIZES[name]
    assert (len(workload.calls), workload.concurrency) == (calls, at_once)
    assert sum(call.max_tokens for call in workload.calls) == output
    if first is not None:
        assert prompt_tokens(workload, 0) == first


@pytest.mark.parametrize("name", NAMES)
def test_a_seed_gives_one_workload_and_another_seed_shares_nothing(prose: Prose, name: str) -> None:
    first, second = build_workload(name, prose, 1), build_workload(name, prose, 2)
    assert build_workload(name, prose, 1) == first
    texts = [
        {part.text for call in one.calls for part in call.parts if isinstance(part, Text)} for one in (first, second)
    ]
    assert not texts[0] & texts[1]


@pytest.mark.parametrize("name", NAMES)
def test_what_a_request_waits_for_stands_before_it(prose: Prose, name: str) -> None:
    for index, call in enumerate(build_workload(name, prose, 1).calls):
        assert all(need < index for need in (*call.needs, *(other for other, _ in call.after)))


def test_texts_have_the_tokens_they_count(prose: Prose) -> None:
    for name in NAMES:
        for call in build_workload(name, prose, 3).calls:
            assert all(prose.count(part.text) == part.tokens for part in call.parts if isinstance(part, Text))


def test_shared_prefixes_are_the_same_parts(prose: Prose) -> None:
    few_shot = build_workload("W1", prose, 1)
    assert {call.parts[0] for call in few_shot.calls} == {few_shot.calls[0].parts[0]}
    assert len({call.parts[1] for call in few_shot.calls}) == 64
    agents = build_workload("W4", prose, 1)
    systems = [call.parts[0] for call in agents.calls]
    assert sorted(systems.count(system) for system in set(systems)) == [12, 12, 12, 12]
    assert len({call.parts[0] for call in agents.calls[:8]}) > 1, "agents are interleaved"
    unrelated = build_workload("W5", prose, 1)
    assert len({call.parts[0] for call in unrelated.calls}) == 32


def test_a_turn_goes_on_from_the_one_before(prose: Prose) -> None:
    chat = build_workload("W2", prose, 1)
    for index, call in enumerate(chat.calls[16:], 16):
        before = index - 16
        assert call.parts[: len(chat.calls[before].parts)] == chat.calls[before].parts
        assert call.parts[-2] == OutputOf(before)


def test_the_tree_has_four_branches_everywhere(prose: Prose) -> None:
    tree = build_workload("W3", prose, 1)
    assert [call.needs for call in tree.calls[:4]] == [()] * 4
    for index, call in enumerate(tree.calls[4:], 4):
        parent = index // 4 - 1
        assert call.needs == (*tree.calls[parent].needs, parent)


def test_the_long_prompt_waits_for_all_streams(prose: Prose) -> None:
    *streams, long = build_workload("W8", prose, 1).calls
    assert (long.group, long.after) == (LONG, tuple((index, 40) for index in range(len(streams))))


@pytest.mark.parametrize("name", NAMES)
def test_a_smaller_scale_is_a_workload_too(prose: Prose, name: str) -> None:
    small = build_workload(name, prose, 1, Scale(requests=2, tokens=4, prompts=0.1))
    assert len(small.calls) == (3 if name == "W8" else 2)
    assert max(call.max_tokens for call in small.calls) == 4
    assert all(need < len(small.calls) for call in small.calls for need in call.needs)
    assert all(count <= 4 for call in small.calls for _, count in call.after)
    assert prompt_tokens(small, 0) < 160


def test_prose_is_exact_also_where_words_are_many_tokens() -> None:
    text = Prose(byte_tokenizer())
    for count in (1, 7, 300):
        assert text.count(text.write(random.Random(count), count)) == count
