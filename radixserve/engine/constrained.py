"""Constrained sequences: matchers that follow the outputs, and the choices of their rows.

A matcher is at the end of all that is known of its sequence, forced tokens included, whenever a row of it draws; so its
mask can be found while the forward pass runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Protocol, runtime_checkable

import numpy as np

from radixserve.errors import MatcherFailed
from radixserve.grammar.base import MaskArray, Matcher
from radixserve.grammar.compiler import Compiled
from radixserve.grammar.stacks import DeepStackThreads
from radixserve.messages import FinishReason, SamplingParams
from radixserve.runtime.token_choice import TokenChoice
from radixserve.scheduler.plan import StepPlan
from radixserve.scheduler.request import Ending, Follow, Request

_COMPLETE = Ending(FinishReason.STOP)
_CLOSED = Ending(FinishReason.STOP, "finish_json")
# Tokens that a known way is shortened by at its beginning before another one is looked for.
_TRIED = 8


@runtime_checkable
class RestrictedOutput(Protocol):
    """A continuation that leaves the sampler a choice."""

    @property
    def restricts(self) -> bool:
        """Whether the next token is not free."""

    def fill_mask(self, mask: MaskArray) -> None:
        """Write into ``mask`` what `choice` needs. Raises `MatcherFailed`. On any thread, while nothing else is asked of it."""

    def choice(self, mask: MaskArray, vocab_size: int) -> TokenChoice:
        """The choice of a row, given its mask; as `fill_mask`."""


class ConstrainedOutput:
    """One sequence's place in its grammar; the `Continuation` of its request.

    ``end_tokens``: those of the model. ``stop_tokens``: control tokens that end this request besides; they are allowed where
    the model's own are. ``max_tokens``: of the output, for ``finish_json``.
    """

    __slots__ = ("_closing", "_compiled", "_end_tokens", "_ignore_eos", "_left", "_matcher", "_stop_tokens", "_ways")

    def __init__(
        self,
        compiled: Compiled,
        matcher: Matcher,
        sampling: SamplingParams,
        *,
        end_tokens: frozenset[int],
        stop_tokens: frozenset[int],
        max_tokens: int,
    ) -> None:
        self._compiled = compiled
        self._matcher = matcher
        self._end_tokens = end_tokens
        self._stop_tokens = stop_tokens
        self._ignore_eos = sampling.ignore_eos
        self._left = max_tokens
        self._closing = False
        # With ``finish_json``: a way to a valid end that still fits, after each token that may have been drawn.
        self._ways: dict[int | None, list[int]] | None = None
        if sampling.finish_json and max_tokens > 0:
            self._ways = {None: compiled.first_way(max_tokens)}

    def copy(self) -> ConstrainedOutput:
        """One at the same place that goes its own way: samples part here."""
        twin = object.__new__(type(self))
        for name in self.__slots__:
            setattr(twin, name, getattr(self, name))
        twin._matcher = self._matcher.copy()
        if self._ways is not None:
            twin._ways = dict(self._ways)
        return twin

    # ---------------------------------------------------------------- what must follow

    def begin(self) -> Follow:
        """What the output begins with. Raises `MatcherFailed`."""
        return self._follow(None)

    def repeats(self, token: int) -> bool:
        """Nothing repeats a part of the prompt."""
        return False

    @property
    def over(self) -> bool:
        """Never: a constraint has a say in every token."""
        return False

    def after_text(self, token: int, spelled: Sequence[int]) -> Follow:
        """What follows ``token``, which was just drawn and of which the constraint sees the end only, ``spelled`` as tokens."""
        self._left -= 1
        for part in spelled:
            self._matcher.consume(part)
        return self._follow(token)

    def after(self, token: int) -> Follow:
        """What follows ``token``, which was just drawn. Raises `MatcherFailed`."""
        self._left -= 1
        if token in self._end_tokens:
            # Ignored as an end token, but nothing else was left.
            return Follow(ending=_COMPLETE)
        self._matcher.consume(token)
        return self._follow(token)

    def _follow(self, token: int | None) -> Follow:
        way = self._ways[token] if self._ways is not None else []
        if self._closing:
            return Follow(tuple(way), _CLOSED)
        tokens = _take_forced(self._matcher)
        self._left -= len(tokens)
        if self._matcher.stopped:
            return Follow(tuple(tokens), _COMPLETE)
        if self._ways is not None:
            # The way began with what is forced, because nothing else can follow.
            self._ways = {None: way[len(tokens) :]}
            if self._left <= 0:
                return Follow(tuple(tokens), _CLOSED)
        return Follow(tuple(tokens))

    # ---------------------------------------------------------------- what may be drawn

    @property
    def restricts(self) -> bool:
        """Always: a constraint has a say in every token."""
        return True

    @property
    def promises_end(self) -> bool:
        """Whether a way to a valid end is kept in hand."""
        return self._ways is not None

    def takes(self, spelled: Sequence[int]) -> bool:
        """Whether all of ``spelled`` may come next. Raises `MatcherFailed`."""
        return self._matcher.count_allowed(spelled) == len(spelled)

    def keeps_way(self, token: int, spelled: Sequence[int]) -> bool:
        """Whether the output can still be ended in time after ``token``, of which the constraint sees ``spelled``.

        The way is taken in hand then, for `after_text`.
        """
        assert self._ways is not None, "asked of requests with finish_json only"
        way = self._way_after(spelled, self._ways[None])
        if way is None:
            return False
        self._ways[token] = way
        return True

    def fill_mask(self, mask: MaskArray) -> None:
        """Which tokens may come next. Raises `MatcherFailed`. On any thread, while nothing else is asked of it."""
        self._matcher.fill_mask(mask)

    def choice(self, mask: MaskArray, vocab_size: int) -> TokenChoice:
        """The choice of a row, given its mask; as `fill_mask`, on any thread."""
        bits = np.unpackbits(mask.view(np.uint8), count=vocab_size, bitorder="little")
        if (self._stop_tokens or self._ignore_eos) and self._matcher.accepting:
            bits[list(self._stop_tokens)] = 1
            if self._ignore_eos:
                ends = list(self._end_tokens)
                kept, bits[ends] = bits[ends], 0
                if not bits.any():
                    bits[ends] = kept
        allowed = np.flatnonzero(bits)
        if len(allowed) == 0:
            return TokenChoice(allowed, error="the constraint leaves no token to draw")
        return TokenChoice(allowed, settle=self._settle if self._ways is not None else None)

    def way_out(self, limit: int) -> list[int] | None:
        """At most ``limit`` tokens that bring the output to a valid end, None if none were found. Raises `MatcherFailed`."""
        return self._compiled.closing.way(self._matcher, limit)

    def _settle(self, token: int) -> int:
        """``token`` if the output can still be ended within ``max_tokens`` after it, else the first step to the end that is known."""
        assert self._ways is not None, "asked of requests with finish_json only"
        if token in self._end_tokens or token in self._stop_tokens:
            return token
        known = self._ways[None]
        way = self._way_after((token,), known)
        if way is not None:
            self._ways[token] = way
            return token
        if not known:
            return min(self._end_tokens)
        self._closing = True
        self._ways[known[0]] = known[1:]
        return known[0]

    def _way_after(self, spelled: Sequence[int], known: list[int]) -> list[int] | None:
        """A way to a valid end after the token that ``spelled`` stands for, within what is left of max_tokens; ``known``: one
        from before it.

        It begins with the very tokens that `_follow` will find forced: another way may spell the same bytes differently.
        """
        ahead = self._matcher.copy()
        for part in spelled:
            ahead.consume(part)
        forced = _take_forced(ahead)
        room = self._left - 1 - len(forced)
        if room < 0:
            return None
        if ahead.accepting:
            return forced
        # Inside a text the same closes it after one more character, and elsewhere what comes a little later often does: much
        # cheaper to try than to find another way.
        for skipped in range(max(0, len(known) - room), min(len(known), len(forced) + _TRIED) + 1):
            rest = known[skipped:]
            trial = ahead.copy()
            if trial.try_consume(rest) == len(rest) and trial.accepting:
                return forced + rest
        rest_of_way = self._compiled.closing.way(ahead, room)
        return None if rest_of_way is None else forced + rest_of_way


def _take_forced(matcher: Matcher) -> list[int]:
    """Move ``matcher`` on by all that must follow; returns the tokens."""
    tokens: list[int] = []
    while not matcher.stopped:
        forced = matcher.forced_tokens()
        taken = matcher.try_consume(forced) if forced else 0
        tokens += forced[:taken]
        if taken == 0:
            break
    return tokens


def constrained_output(
    compiled: Compiled,
    sampling: SamplingParams,
    *,
    end_tokens: frozenset[int],
    special_ids: frozenset[int],
    max_tokens: int,
) -> ConstrainedOutput:
    """The output of a new request. Raises `InvalidRequest` where ``finish_json`` cannot be promised."""
    return ConstrainedOutput(
        compiled,
        compiled.matcher(),
        sampling,
        end_tokens=end_tokens,
        stop_tokens=special_ids.intersection(sampling.stop_token_ids) - end_tokens,
        max_tokens=max_tokens,
    )


class StepChoices:
    """The choices of one step's constrained rows, found on another thread; a `radixserve.runtime.token_choice.Choices`."""

    def __init__(self, outputs: Mapping[str, RestrictedOutput], vocab_size: int, threads: DeepStackThreads) -> None:
        self._outputs = outputs
        self._vocab_size = vocab_size
        self._found: Future[dict[str, TokenChoice]] = threads.submit(self._find)

    def _find(self) -> dict[str, TokenChoice]:
        mask = np.empty(-(-self._vocab_size // 32), np.uint32)
        found: dict[str, TokenChoice] = {}
        for rid, output in self._outputs.items():
            try:
                output.fill_mask(mask)
                found[rid] = output.choice(mask, self._vocab_size)
            except MatcherFailed as error:
                found[rid] = TokenChoice(np.empty(0, np.intp), error=str(error))
        return found

    def wait(self) -> dict[str, TokenChoice]:
        """Row id -> choice; waits until all are found."""
        return self._found.result()

    def settle(self) -> None:
        """Wait until no other thread looks at a matcher any more."""
        self._found.exception()


class ChoiceFinder:
    """Starts to find the choices of each step, on a thread of its own."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._threads = DeepStackThreads(1, "radixserve-masks")

    def start(self, plan: StepPlan, requests: Mapping[str, Request]) -> StepChoices | None:
        """The choices of the rows of ``plan`` that draw and are not free to; None if there are none."""
        outputs: dict[str, RestrictedOutput] = {}
        for row in plan.rows:
            output = requests[row.rid].continuation if row.num_samples else None
            if output is not None and isinstance(output, RestrictedOutput) and output.restricts:
                outputs[row.rid] = output
        return StepChoices(outputs, self._vocab_size, self._threads) if outputs else None
