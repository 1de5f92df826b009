from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixserve.errors import InvalidRequest, MatcherFailed
from radixserve.grammar.stop_patterns import PatternMatch, StopPatterns


def first_end(pattern: str, text: str) -> int | None:
    """Where the match that ends first ends, by trying every end."""
    ends = (end for end in range(1, len(text) + 1) if re.fullmatch(f"(?s:.*)(?:{pattern})", text[:end]))
    return next(ends, None)


@pytest.mark.parametrize(
    ("pattern", "text", "end"),
    [
        ("[0-9]+", "abc 123", 5),
        (r"[0-9]+\.", "12 3.4", 5),
        ("foo|bar", "fobar", 5),
        ("(?i)stop", "a StOp b", 6),
        ("é+", "caffé é", 5),
        ("a.c", "a\nc abc", 7),
        (r"\d{3}-\d{2}", "12-34 555-1234", 12),
        (r"\n\n", "a\n\n", 3),
        ("b$", "abc", 2),
        ("x", "abc", None),
    ],
)
def test_the_first_match_ends_the_text(pattern: str, text: str, end: int | None) -> None:
    match = StopPatterns([pattern]).feed(text)
    assert match == (None if end is None else PatternMatch(pattern, end))


@given(
    st.sampled_from(["ab", "a+b", "(a|b)b", "a[ab]a", "b{2,3}", "(ab)+a", "a(?:b|aa)", "[^a]a"]),
    st.text("ab", max_size=24),
    st.lists(st.integers(0, 24), max_size=6),
)
def test_pieces_make_no_difference(pattern: str, text: str, cuts: list[int]) -> None:
    patterns = StopPatterns([pattern])
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    found = None
    for start, end in itertools.pairwise(edges):
        match = patterns.feed(text[start:end])
        if match is not None:
            found = start + match.end
            break
    assert found == first_end(pattern, text)


def test_the_pattern_whose_match_ends_first_wins() -> None:
    patterns = StopPatterns(["bcd", "c", "b?c"])
    assert patterns.feed("abcd") == PatternMatch("c", 3)


def test_matches_that_end_too_early_do_not_count() -> None:
    patterns = StopPatterns(["ab"])
    assert patterns.feed("ab a", ignore=True) is None
    assert patterns.feed("b") == PatternMatch("ab", 1)


def test_copies_go_their_own_ways() -> None:
    first = StopPatterns(["ab"])
    assert first.feed("a") is None
    second = first.copy()
    assert first.feed("x") is None
    assert second.feed("b") is not None
    assert first.feed("ab") is not None


@pytest.mark.parametrize(
    "pattern", ["(", ")", "a)(b", "[", "*", "a{3,1}", "^a", r"\ba", "(?=a)b", "(?<=a)b", r"(a)\1", "\\", "a\\"]
)
def test_what_cannot_be_followed_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        StopPatterns(["x", pattern])
    assert (caught.value.param, caught.value.code) == ("stop_regex", "unsupported_pattern")
    assert "(?s:.*)" not in caught.value.message.replace(repr(pattern), "")


@pytest.mark.parametrize("pattern", ["", "a*", "(b|)", "c?"])
def test_a_pattern_that_matches_nothing_at_all_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidRequest, match="empty text"):
        StopPatterns([pattern])


def test_a_pattern_that_grows_too_large_fails_alone() -> None:
    greedy = "(a{1,900}b?){900}z"
    patterns = StopPatterns([greedy])
    with pytest.raises(MatcherFailed, match="too complex"):
        patterns.feed("a" * 1000)
    # Others with the same pattern have limits of their own.
    assert StopPatterns([greedy]).feed("a" * 100) is None
