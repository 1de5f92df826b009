"""The way from an unfinished output to a valid end.

No grammar library says how many tokens a sentence still needs at least. A walk that always takes the byte most likely to
close what is open finds *a* way to the end, if not the shortest; an output for which such a way is known and still fits
can always be ended validly, and that is all that is promised.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from radixserve.grammar.base import Matcher, Vocabulary

LONGEST_CLOSING = 512
# Best first. A brace opens an object whose keys may be many; everything that is not listed comes between.
_CLOSERS = b'}]"'
_SHORT_VALUES = b",:0123456789ntf-ae/@."
_OPENERS = b"[{"
_PLAIN = b"#"
_LONGER, _USED, _RUN = 1000, 50, 16


class Closing:
    """Finds ways to the end for grammars over one vocabulary. Stateless, safe to share."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        size = vocabulary.vocab_size
        self._words = -(-size // 32)
        self._rank = np.full(size, 10**9, np.int64)
        self._closers: dict[int, int] = {}
        self._plain = self._quote = size
        self._texts = vocabulary.all_token_bytes()
        for token, text in enumerate(self._texts):
            if token in vocabulary.special_ids or not text:
                continue
            self._rank[token] = _byte_rank(text[0]) + _LONGER * (len(text) - 1)
            if len(text) == 1 and text in _CLOSERS:
                self._closers[token] = text[0]
            if text == _PLAIN:
                self._plain = token
            elif text == b'"':
                self._quote = token

    def way(self, matcher: Matcher, limit: int) -> list[int] | None:
        """At most ``limit`` tokens that make the sentence complete, or None if none were found.

        ``matcher`` is where it was afterwards. Raises `MatcherFailed`.
        """
        walk = matcher.copy()
        limit = min(limit, LONGEST_CLOSING)
        mask = np.zeros(self._words, np.uint32)
        rank = self._rank.copy()
        way: list[int] = []
        run = 0
        while not walk.accepting:
            forced = walk.forced_tokens()
            if forced:
                way += forced[: walk.try_consume(forced)]
                run = 0
            else:
                if len(way) >= limit:
                    return None
                walk.fill_mask(mask)
                bits = np.unpackbits(mask.view(np.uint8), count=len(rank), bitorder="little")
                token = self._along(bits, walk.forced_bytes())
                if token is None:
                    token = self._choose(bits, rank, way[-1] if run >= _RUN else None)
                if token is None:
                    return None
                run = run + 1 if way and way[-1] == token else 0
                walk.consume(token)
                way.append(token)
                if token not in self._closers:
                    # Whatever else did not lead to the end is tried after everything that was not tried yet.
                    rank[token] += _USED
            if len(way) > limit:
                return None
        return way

    def _along(self, bits: npt.NDArray[np.uint8], forced: bytes) -> int | None:
        """The longest token that is a beginning of ``forced``."""
        if not forced:
            return None
        fitting = [token for token in np.flatnonzero(bits).tolist() if forced.startswith(self._texts[token])]
        return max(fitting, key=lambda token: len(self._texts[token]), default=None)

    def _choose(self, bits: npt.NDArray[np.uint8], rank: npt.NDArray[np.int64], tired: int | None) -> int | None:
        """The next token of a walk; ``tired`` was taken too often in a row."""
        allowed = np.flatnonzero(bits)
        if tired is not None and len(allowed) > 1:
            allowed = allowed[allowed != tired]
        if len(allowed) == 0:
            return None
        if self._plain < len(bits) and bits[self._plain]:
            # Inside a string: brackets are characters there, only the quote closes, and not before what must come.
            if self._quote < len(bits) and bits[self._quote]:
                return self._quote
            allowed = allowed[~np.isin(allowed, list(self._closers))]
        return int(allowed[np.argmin(rank[allowed])])


def _byte_rank(byte: int) -> int:
    for start, group in ((0, _CLOSERS), (10, _SHORT_VALUES), (900, _OPENERS)):
        if byte in group:
            return start + group.index(byte)
    return 100 + byte
