"""Reasoning split off, however the text is cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixserve.chat.events import ContentDelta, Event, ReasoningDelta
from radixserve.chat.reasoning import ReasoningSplitter, opens_reasoning
from tests.chat.pieces import CUTS, cut, joined, run


def split(text: str, *, opened: bool = False) -> list[tuple[str, str]]:
    events = joined(run(ReasoningSplitter(opened=opened), [text]))
    return [("reasoning" if isinstance(event, ReasoningDelta) else "content", _text(event)) for event in events]


def _text(event: Event) -> str:
    assert isinstance(event, ContentDelta | ReasoningDelta)
    return event.text


@pytest.mark.parametrize(
    ("text", "opened", "expected"),
    [
        ("<think>\nhm\n\nso\n</think>\n\nyes\n", False, [("reasoning", "hm\n\nso"), ("content", "yes\n")]),
        ("\n<think>hm</think>yes", False, [("reasoning", "hm"), ("content", "yes")]),
        ("<think>\n\n</think>\n\nyes", False, [("content", "yes")]),
        ("hm\n</think>\n\nyes", True, [("reasoning", "hm"), ("content", "yes")]),
        ("hm", True, [("reasoning", "hm")]),
        ("hm </thin", True, [("reasoning", "hm </thin")]),
        ("hm\n", True, [("reasoning", "hm\n")]),
        ("<think>", False, []),
        ("<think", False, [("content", "<think")]),
        ("yes <think>no</think>", False, [("content", "yes <think>no</think>")]),
        ("\n\n yes", False, [("content", "\n\n yes")]),
        ("<think>a</think>b</think>c", False, [("reasoning", "a"), ("content", "b</think>c")]),
        ("a <think> b</think>", True, [("reasoning", "a <think> b")]),
        ("", False, []),
    ],
)
def test_splits(text: str, opened: bool, expected: list[tuple[str, str]]) -> None:
    assert split(text, opened=opened) == expected


@given(
    parts=st.lists(st.sampled_from(["<think>", "</think>", "\n", " ", "hm", "<", "</thi", "think>"]), max_size=10),
    cuts=CUTS,
    opened=st.booleans(),
)
def test_pieces_do_not_matter(parts: list[str], cuts: list[int], opened: bool) -> None:
    text = "".join(parts)
    expected = joined(run(ReasoningSplitter(opened=opened), [text]))
    assert joined(run(ReasoningSplitter(opened=opened), cut(text, cuts))) == expected
    assert joined(run(ReasoningSplitter(opened=opened), text)) == expected
    kept = "".join(_text(event) for event in expected)
    bare = text.replace("<think>", "", 1) if text.lstrip().startswith("<think>") and not opened else text
    bare = bare.replace("</think>", "", 1) if opened or bare is not text else bare
    assert kept.replace("\n", "").split() == bare.replace("\n", "").split(), "nothing but tags and line breaks is lost"


def test_it_streams() -> None:
    splitter = ReasoningSplitter()
    assert splitter.push("<thi") == []
    assert splitter.push("nk>\nI") == [ReasoningDelta("I")]
    assert splitter.push(" see\n") == [ReasoningDelta(" see")]
    assert splitter.push("more<") == [ReasoningDelta("\nmore")]
    assert splitter.push("/think>\n") == []
    assert splitter.push("\nYes") == [ContentDelta("Yes")]
    assert splitter.push("\n") == [ContentDelta("\n")]
    assert splitter.finish() == []


def test_what_a_prompt_opens() -> None:
    assert opens_reasoning("<|im_start|>assistant\n<think>\n")
    assert not opens_reasoning("<think>\n\n</think>\n\n")
    assert not opens_reasoning("the word <think> alone")
