"""Patterns that end an output where one of them matches: followed character by character, in linear time.

llguidance's regular expressions are automata built as they are needed, with limits on their size, so no pattern can make a
character cost more than a bounded amount of work. They know no
word boundaries, no look-around, no back-references and no anchors but a final ``$``, which an output that may go on has at
every character; such patterns are refused.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import llguidance

from radixserve.errors import InvalidRequest, MatcherFailed
from radixserve.grammar.llguidance_matcher import in_one_line, parser_limits


@dataclass(frozen=True, slots=True)
class PatternMatch:
    """``pattern`` matched; ``end``: index in the fed text after the match."""

    pattern: str
    end: int


class StopPatterns:
    """Follows one text and finds the match of ``patterns`` that ends first (among equals the first in order).

    Raises `InvalidRequest` for a pattern that cannot be followed. `copy` is for another text with the same beginning.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self._followers = [(pattern, _follower(pattern)) for pattern in patterns]

    def copy(self) -> StopPatterns:
        """At the same place, going its own way; both draw on the same limits."""
        twin = StopPatterns(())
        twin._followers = [(pattern, follower.deep_copy()) for pattern, follower in self._followers]
        return twin

    def feed(self, text: str, *, ignore: bool = False) -> PatternMatch | None:
        """Take the next piece of text; the first match that ends in it, after which nothing more is to be fed.

        With ``ignore``, matches that end in this piece do not count. Raises `MatcherFailed` when a pattern's automaton grows
        too large.
        """
        for index, character in enumerate(text):
            data = character.encode("utf-8", "replace")
            for pattern, follower in self._followers:
                for byte in data:
                    if not follower.consume_token(byte):
                        reason = in_one_line(follower.get_error())
                        raise MatcherFailed(f"the pattern {pattern[:100]!r} is too complex for this text: {reason}")
                if not ignore and follower.is_accepting():
                    return PatternMatch(pattern, index + 1)
        return None


def _follower(pattern: str) -> llguidance.LLMatcher:
    """Accepts exactly the texts that end in a match of ``pattern``.

    Never shared between requests: copies use up the limits of their original.
    """
    _check(pattern)
    follower = _compile(f"(?s:.*)(?:{pattern})")
    if follower.is_error():
        raise _refused(pattern, follower.get_error())
    if follower.is_accepting():
        raise InvalidRequest("stop_regex", f"{pattern[:100]!r} matches the empty text, which begins every output")
    return follower


@functools.lru_cache(256)
def _check(pattern: str) -> None:
    """Raise `InvalidRequest` unless ``pattern`` is a regular expression by itself, before anything is put around it."""
    alone = _compile(pattern)
    if alone.is_error():
        raise _refused(pattern, alone.get_error())


def _compile(pattern: str) -> llguidance.LLMatcher:
    grammar = llguidance.LLMatcher.grammar_from_regex(pattern)
    return llguidance.LLMatcher(_bytes_tokenizer(), grammar, log_level=0, limits=parser_limits())


@functools.cache
def _bytes_tokenizer() -> llguidance.LLTokenizer:
    """One token a byte, and its id is the byte."""
    return llguidance.LLTokenizer("byte", slices=[])


def _refused(pattern: str, error: str) -> InvalidRequest:
    reasons = [line.removeprefix("error:") for line in error.splitlines() if line.startswith("error:")]
    reason = (reasons or [in_one_line(error).rpartition("(in regex):")[2]])[0].strip()
    # What follows is the pattern with what was put around it.
    reason = reason.partition(" in regex /")[0]
    return InvalidRequest("stop_regex", f"{pattern[:100]!r} is not taken: {reason[:200]}", "unsupported_pattern")
