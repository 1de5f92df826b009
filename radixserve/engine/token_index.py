"""A vocabulary by the bytes of its tokens."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from radixserve.grammar.base import Vocabulary
from radixserve.grammar.special_tokens import special_token_ids

IndexArray = npt.NDArray[np.intp]


class TokenIndex:
    """The tokens that stand for text, in the order of their bytes. Immutable.

    ``texts``: the bytes of every id. ``special``: ids that stand outside text. ``longest``: bytes of the longest token of a text.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.texts: Sequence[bytes] = vocabulary.all_token_bytes()
        self.special = special_token_ids(vocabulary)
        texts = self.texts
        order = sorted(
            (token for token, text in enumerate(texts) if text and token not in self.special),
            key=lambda token: (texts[token], token),
        )
        self._keys = [texts[token] for token in order]
        self._ids = np.array(order, np.intp)
        # Where several stand for the same bytes (a byte token beside a character), the lowest id.
        self._exact = {texts[token]: token for token in reversed(order)}
        self.longest = max(map(len, self._keys), default=0)

    def covering(self, prefix: bytes) -> IndexArray:
        """Ids, ascending, of the tokens that begin with ``prefix``."""
        first = bisect_left(self._keys, prefix)
        after = _after_all(prefix)
        last = len(self._keys) if after is None else bisect_left(self._keys, after, first)
        return np.sort(self._ids[first:last])

    def standing_for(self, text: bytes) -> list[int]:
        """Ids, ascending, of the tokens that stand for exactly ``text``."""
        ids: list[int] = self._ids[bisect_left(self._keys, text) : bisect_right(self._keys, text)].tolist()
        return ids

    def extends(self, prefix: bytes) -> bool:
        """Whether a token begins with ``prefix`` and goes on."""
        at = bisect_right(self._keys, prefix)
        return at < len(self._keys) and self._keys[at].startswith(prefix)

    def longest_in(self, text: bytes) -> int | None:
        """The longest token that ``text`` begins with, None if there is none."""
        for length in range(min(len(text), self.longest), 0, -1):
            token = self._exact.get(text[:length])
            if token is not None:
                return token
        return None

    def spell(self, text: bytes) -> list[int] | None:
        """Tokens that stand for ``text``, always the longest that fits; None if this way finds none."""
        tokens: list[int] = []
        while text:
            token = self.longest_in(text)
            if token is None:
                return None
            tokens.append(token)
            text = text[len(self.texts[token]) :]
        return tokens


def _after_all(prefix: bytes) -> bytes | None:
    """The first of all byte strings after those that begin with ``prefix``; None if there is none."""
    head = prefix.rstrip(b"\xff")
    return head[:-1] + bytes([head[-1] + 1]) if head else None
