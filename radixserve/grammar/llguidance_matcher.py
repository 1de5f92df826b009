"""Matchers of the llguidance library behind the protocol of `radixserve.grammar.base`."""

from __future__ import annotations

from collections.abc import Sequence

import llguidance

from radixserve.errors import MatcherFailed
from radixserve.grammar.base import MaskArray

# Lexer work for one mask (about 14,000 units a millisecond) and parser items for one mask (about 20,000 a millisecond).
_STEP_FUEL = 200_000
_STEP_ITEMS = 50_000
_MAX_GRAMMAR_SYMBOLS = 200_000


def parser_limits() -> llguidance.LLParserLimits:
    """What one grammar may cost when it is compiled and at each token."""
    return llguidance.LLParserLimits(
        step_lexer_fuel=_STEP_FUEL,
        step_max_items=_STEP_ITEMS,
        max_grammar_size=_MAX_GRAMMAR_SYMBOLS,
        verbose_errors=False,
    )


def in_one_line(error: str) -> str:
    """The library's message without the source and the state that it prints around it."""
    lines = [line.strip() for line in error.strip().split("\n")]
    if lines[0].startswith("NoExtension"):
        return "nothing can satisfy it"
    reason = next((line for line in lines[1:] if line.startswith("error:")), "")
    return f"{lines[0][:300]} {reason[:200]}".strip()


class LLGuidanceMatcher:
    """`radixserve.grammar.base.Matcher` over ``inner``, which it owns."""

    __slots__ = ("_inner",)

    def __init__(self, inner: llguidance.LLMatcher) -> None:
        self._inner = inner

    @property
    def accepting(self) -> bool:
        """Whether what was consumed is a complete sentence."""
        return bool(self._inner.is_accepting())

    @property
    def stopped(self) -> bool:
        """Whether it is complete and nothing but an end token can follow."""
        stopped = bool(self._inner.is_stopped())
        if stopped:
            self._check()
        return stopped

    def fill_mask(self, mask: MaskArray) -> None:
        """Write which tokens may come next. Lets other threads run meanwhile."""
        assert mask.flags.c_contiguous, "the library writes a row of words"
        self._inner.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        self._check()

    def consume(self, token: int) -> None:
        """Move on by a token that the mask allows."""
        if not self._inner.consume_token(token):
            self._check()
            raise MatcherFailed(f"the grammar does not take token {token} here")

    def try_consume(self, tokens: Sequence[int]) -> int:
        """Move on by as many of ``tokens`` as may follow one another; returns how many."""
        count = int(self._inner.try_consume_tokens(list(tokens)))
        self._check()
        return count

    def count_allowed(self, tokens: Sequence[int]) -> int:
        """How many of ``tokens`` may follow one another, without moving on."""
        count = int(self._inner.validate_tokens(list(tokens)))
        self._check()
        return count

    def forced_tokens(self) -> list[int]:
        """Tokens that must come next, as the tokenizer itself would write them; often none."""
        tokens = [int(token) for token in self._inner.compute_ff_tokens()]
        self._check()
        return tokens

    def forced_bytes(self) -> bytes:
        """Bytes that must come next, also where it is open which tokens they are written with."""
        forced = bytes(self._inner.compute_ff_bytes())
        self._check()
        return forced

    def rollback(self, count: int) -> None:
        """Take the last ``count`` tokens back."""
        if not self._inner.rollback(count):
            self._check()
            raise MatcherFailed(f"cannot go back by {count} tokens")

    def copy(self) -> LLGuidanceMatcher:
        """A matcher at the same place that goes its own way."""
        return LLGuidanceMatcher(self._inner.deep_copy())

    def _check(self) -> None:
        if self._inner.is_error():
            raise MatcherFailed(in_one_line(self._inner.get_error()))
