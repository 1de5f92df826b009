"""Token healing: the end of a prompt is tokenized anew, together with what the model writes after it.

A tokenizer would often have written a prompt's last characters together with the next ones: ``http:`` and ``//`` as one
token, a space with the word after it. A model that finds the short token in its prompt takes that as a sign that the long one
does not come. So the last tokens are taken off, and the output must begin with their text, in whatever token covers it and goes
on. The method is known from guidance (Lundberg 2023, *The art of prompt design: prompt boundaries and token healing*).

What is taken off and what may come in its place:

* As many of the last tokens as their joined text is whole characters and the beginning of a longer token, at most `MAX_HEALED`;
  where no token goes on from them, nothing is. A special token, or one that stands for nothing, is never taken off, nor does one come in
  their place, and one token of the prompt always stays.
* At each place the tokens that cover all that is left of the text, or else the prompt's own token. Other ways to cut the
  text into tokens are not tried: a model gives the beginning of such a way the weight of all that it usually begins, most of which the text
  then forbids. With one token taken off the draw is therefore the model's own distribution, given that one token covers the text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from radixserve.engine.constrained import ConstrainedOutput
from radixserve.engine.token_index import IndexArray, TokenIndex
from radixserve.grammar.base import MaskArray
from radixserve.runtime.token_choice import TokenChoice
from radixserve.scheduler.request import Follow

MAX_HEALED = 8


@dataclass(frozen=True, slots=True)
class Healed:
    """The ``tokens`` that were taken off a prompt, and their ``text``: whole characters."""

    tokens: tuple[int, ...]
    text: bytes


def heal_prompt(index: TokenIndex, prompt: Sequence[int]) -> Healed | None:
    """What is to be taken off the end of ``prompt``; None if nothing is."""
    text = b""
    found: Healed | None = None
    for count in range(1, min(MAX_HEALED, len(prompt) - 1) + 1):
        token = int(prompt[-count])
        if token in index.special or not index.texts[token]:
            break
        text = index.texts[token] + text
        if len(text) >= index.longest:
            break
        if index.extends(text) and _whole_characters(text):
            found = Healed(tuple(map(int, prompt[len(prompt) - count :])), text)
    return found


def _whole_characters(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


class HealedOutput:
    """Follows an output that begins with the text of what was taken off the prompt; a `Continuation` and a `RestrictedOutput`.

    ``inner``: follows what comes after that text, where a constraint does. ``max_tokens``: of the output, not counting tokens
    that only repeat the text.
    """

    __slots__ = ("_index", "_inner", "_max_tokens", "_own", "_rest")

    def __init__(self, index: TokenIndex, healed: Healed, inner: ConstrainedOutput | None, *, max_tokens: int) -> None:
        self._index = index
        self._inner = inner
        self._max_tokens = max_tokens
        self._own = healed.tokens
        self._rest = healed.text

    def copy(self) -> HealedOutput:
        """One at the same place that goes its own way: samples part here."""
        twin = object.__new__(type(self))
        for name in self.__slots__:
            setattr(twin, name, getattr(self, name))
        twin._inner = None if self._inner is None else self._inner.copy()
        return twin

    # ---------------------------------------------------------------- what must follow

    def begin(self) -> Follow:
        """Nothing: there is a choice of tokens for every text that is healed."""
        return Follow()

    def repeats(self, token: int) -> bool:
        """Whether ``token``, which was just drawn, brings nothing but (a part of) the text."""
        return 0 < len(self._index.texts[token]) <= len(self._rest)

    @property
    def over(self) -> bool:
        """Whether the text was repeated, and no constraint follows it."""
        return not self._rest and self._inner is None

    def after(self, token: int) -> Follow:
        """What follows ``token``, which was just drawn. Raises `MatcherFailed`."""
        if not self._rest:
            return Follow() if self._inner is None else self._inner.after(token)
        data = self._index.texts[token]
        beyond = data[len(self._rest) :]
        self._max_tokens += not beyond
        self._rest, self._own = self._rest[len(data) :], self._own[1:]
        if self._rest:
            return Follow()
        follow = Follow()
        if self._inner is not None:
            follow = self._inner.after_text(token, self._spelled(beyond)) if beyond else self._inner.begin()
        return dataclasses.replace(follow, max_tokens=self._max_tokens)

    # ---------------------------------------------------------------- what may be drawn

    def way_out(self, limit: int) -> list[int] | None:
        """As `ConstrainedOutput.way_out`; None while the text is not repeated yet, and without a constraint."""
        return None if self._rest or self._inner is None else self._inner.way_out(limit)

    @property
    def restricts(self) -> bool:
        """Whether the next token is not free."""
        return bool(self._rest) or self._inner is not None

    def fill_mask(self, mask: MaskArray) -> None:
        """Which tokens the constraint allows; without one ``mask`` is not written. Raises `MatcherFailed`."""
        if self._inner is not None:
            self._inner.fill_mask(mask)

    def choice(self, mask: MaskArray, vocab_size: int) -> TokenChoice:
        """The choice of a row, given its mask. Raises `MatcherFailed`. On any thread, while nothing else is asked of it."""
        if self._inner is not None and not self._rest:
            return self._inner.choice(mask, vocab_size)
        allowed = self._index.covering(self._rest)
        if self._inner is not None:
            allowed = self._within(allowed, mask, self._inner)
        if len(self._index.texts[self._own[0]]) < len(self._rest):
            allowed = np.union1d(allowed, self._own[:1]).astype(np.intp)
        promises = self._inner is not None and self._inner.promises_end
        repeating = (self._own[0], *self._index.standing_for(self._rest))
        return TokenChoice(allowed, repeating, settle=self._settle if promises else None)

    def _within(self, tokens: IndexArray, mask: MaskArray, inner: ConstrainedOutput) -> IndexArray:
        """Those of ``tokens`` that go on from the text as the constraint wants it to begin; ``mask``: of its first token."""
        bits = np.unpackbits(mask.view(np.uint8), bitorder="little")

        def fits(token: int) -> bool:
            beyond = self._index.texts[token][len(self._rest) :]
            if not beyond:
                return True
            # Most are tokens themselves, and of the others most begin with one that is not allowed.
            first = self._index.longest_in(beyond)
            if first is None or not bits[first]:
                return False
            if len(self._index.texts[first]) == len(beyond):
                return True
            spelled = self._index.spell(beyond)
            return spelled is not None and inner.takes(spelled)

        return np.array([token for token in tokens.tolist() if fits(token)], np.intp)

    def _settle(self, token: int) -> int:
        """``token`` if a valid end can still be reached after it, else the prompt's own, which takes nothing of ``max_tokens``."""
        assert self._inner is not None, "asked of constrained requests only"
        beyond = self._index.texts[token][len(self._rest) :]
        if not beyond or self._inner.keeps_way(token, self._spelled(beyond)):
            return token
        return self._own[0]

    def _spelled(self, text: bytes) -> list[int]:
        spelled = self._index.spell(text)
        assert spelled is not None, "what cannot be spelled is not allowed"
        return spelled
