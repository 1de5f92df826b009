from __future__ import annotations

import string
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixserve.engine.stop_strings import StopMatcher

# Two letters make overlaps, borders and near misses the rule.
STOPS = st.lists(st.text("ab", min_size=1, max_size=7), min_size=1, max_size=6)


def first_match(text: str, stops: list[str], after: int = 0) -> tuple[str, int] | None:
    """The stop string that ends first, past the first ``after`` characters, and where; the longest of several."""
    for end in range(after + 1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return max(found, key=len), end
    return None


def longest_beginning(text: str, stops: list[str]) -> int:
    """Length of the longest end of ``text`` that is a proper prefix of a stop string."""
    return max(k for stop in stops for k in range(len(stop)) if text.endswith(stop[:k]))


def feed_in_pieces(stops: list[str], text: str, cuts: list[int]) -> tuple[str, int] | None:
    """Feed ``text`` cut at ``cuts``, checking what is held after every piece."""
    matcher = StopMatcher(stops)
    edges = sorted({0, *(cut % (len(text) + 1) for cut in cuts), len(text)})
    for start, end in pairwise(edges):
        match = matcher.feed(text[start:end])
        if match is not None:
            return match.stop, start + match.end
        assert matcher.held == longest_beginning(text[:end], stops)
    return None


@settings(deadline=None, max_examples=300)
@given(STOPS, st.text("abc", max_size=40), st.lists(st.integers(0, 100), max_size=10))
def test_matches_and_held_text_agree_with_a_naive_search(stops: list[str], text: str, cuts: list[int]) -> None:
    assert feed_in_pieces(stops, text, cuts) == first_match(text, stops)


@settings(deadline=None, max_examples=150)
@given(STOPS, st.text("ab", max_size=12), st.text("abc", max_size=12))
def test_ignored_matches_do_not_disturb_later_ones(stops: list[str], early: str, late: str) -> None:
    matcher = StopMatcher(stops)
    assert matcher.feed(early, ignore=True) is None
    assert matcher.held == longest_beginning(early, stops)
    match = matcher.feed(late)
    found = None if match is None else (match.stop, len(early) + match.end)
    assert found == first_match(early + late, stops, after=len(early))


@pytest.mark.parametrize(
    ("stops", "text", "found"),
    [
        (["abcd", "bc"], "xabcd", ("bc", 4)),
        (["bc", "abc", "c"], "xabc", ("abc", 4)),
        (["aab"], "aaaab", ("aab", 5)),
        (["abab", "aba"], "abab", ("aba", 3)),
        (["x", "x"], "ax", ("x", 2)),
        (["aabaaac"], "aabaaabaaac", ("aabaaac", 11)),
        (["\n\nUser:"], "\n\n\nUser:", ("\n\nUser:", 8)),
        (["\ud800"], "a\ufffdb", None),
    ],
)
def test_the_match_that_ends_first_wins(stops: list[str], text: str, found: tuple[str, int] | None) -> None:
    assert feed_in_pieces(stops, text, []) == found
    assert feed_in_pieces(stops, text, list(range(len(text)))) == found


def test_every_character_can_begin_a_stop_string() -> None:
    for characters in (string.punctuation, string.printable, "^-]", "[[", "\\d", "é\U0001f600\x00"):
        for char in characters:
            assert StopMatcher(list(characters)).feed("→→" + char) is not None
            assert StopMatcher([char]).feed("→→") is None


def test_no_stop_strings_never_match() -> None:
    matcher = StopMatcher([])
    assert matcher.feed("anything") is None
    assert matcher.held == 0


def test_the_work_is_linear_in_the_text() -> None:
    """A text that keeps 64 long stop strings almost matching: steps of their automata are counted, not timed."""
    stops = ["ab" * 2047 + f"a{index:02}" for index in range(64)]
    matcher = StopMatcher(stops)
    text = "ab" * 4000
    assert matcher.feed(text) is None
    assert matcher.held == 4094
    needles = matcher._active
    assert len(needles) == 64
    assert all(len(needle.borders) <= 4098 for needle in needles)
    assert matcher.feed("a07") is not None


def test_a_stop_string_that_never_begins_costs_no_table() -> None:
    matcher = StopMatcher(["x" * 4096, "y" * 4096])
    assert matcher.feed("abc" * 100 + "xx") is None
    assert matcher.held == 2
    assert [len(needle.borders) for needle in matcher._by_first["y"]] == [2]
    assert [len(needle.borders) for needle in matcher._by_first["x"]] == [3]
