"""Token ids of one sample to text, as they come.

The text is the UTF-8 decoding of the tokens' concatenated bytes, with U+FFFD for what is not UTF-8, whichever way the
tokens are cut into pushes: what is streamed is what a single decoding at the end would give. Generated text continues a
prompt, so a space that it begins with is text, whatever kind of tokenizer made it.
"""

from __future__ import annotations

from codecs import utf_8_decode
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from radixserve.engine.stop_strings import StopMatcher
from radixserve.errors import MatcherFailed
from radixserve.grammar.stop_patterns import PatternMatch, StopPatterns


class TokenBytes(Protocol):
    """What the detokenizer needs of a tokenizer."""

    @property
    def special_ids(self) -> frozenset[int]:
        """Control tokens, which ``skip_special_tokens`` leaves out of the text."""

    def token_bytes(self, token_id: int, /) -> bytes:
        """The bytes that a token stands for; they need not be whole characters."""


class IncrementalDetokenizer:
    """Turns one sample's tokens into text and finds its stop strings.

    ``stop``: the text ends before the match that ends first in the stream (of those that end together, the one that
    begins first), or after it with ``include_stop``. Only text that is a proper prefix of a stop string is held back.
    ``min_tokens``: a match that is complete within that many tokens is ignored. ``patterns``, which become this object's own:
    the text ends after their first match, unless a stop string ends it before or at the same place. ``prefix``: whole
    characters that the tokens begin with and that are no part of the text (they stand in the prompt); the tokens that bring
    nothing else do not count for ``min_tokens``.
    """

    def __init__(
        self,
        tokenizer: TokenBytes,
        *,
        stop: Sequence[str] = (),
        include_stop: bool = False,
        min_tokens: int = 0,
        skip_special_tokens: bool = True,
        patterns: StopPatterns | None = None,
        prefix: bytes = b"",
    ) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset[int]()
        self._matcher = StopMatcher(stop) if stop else None
        self._patterns = patterns
        self._include_stop = include_stop
        self._min_tokens = min_tokens
        self._pending = b""  # the bytes of an incomplete character
        self._held = ""  # text that could still become a stop string
        self._emitted: list[str] = []
        self._stopped: str | None = None
        self._failure: str | None = None
        self._num_tokens = 0
        self._finished = False
        self._prefix = prefix  # what is left of it
        self._before = prefix.decode()
        self._repeated = 0  # tokens that brought nothing but the prefix
        self._length = 0  # characters decoded so far, those that are held or cut off included
        self._certain = 0  # characters handed out
        # Where a token ends with a whole character: (tokens, characters of text up to there), as far back as the text can
        # still be cut. Before all of them is the place where not even the prefix was repeated.
        self._ends: deque[tuple[int, int]] = deque([(0, -len(self._before))])

    @property
    def text(self) -> str:
        """All text handed out so far."""
        if len(self._emitted) > 1:
            self._emitted = ["".join(self._emitted)]
        return self._emitted[0] if self._emitted else ""

    @property
    def stopped(self) -> str | None:
        """The stop string or pattern that ended the text, or None."""
        return self._stopped

    @property
    def failure(self) -> str | None:
        """Why ``patterns`` cannot be followed any more, or None; nothing is taken after that."""
        return self._failure

    @property
    def num_tokens(self) -> int:
        """Tokens consumed: all that were pushed, or those up to the one that completed the stop string."""
        return self._num_tokens

    @property
    def kept_tokens(self) -> int:
        """How many tokens, from the first, end inside the text handed out so far, with a whole character."""
        return self._last_end()[0]

    @property
    def rest(self) -> str:
        """What prefix and text are beyond the kept tokens: a token that a stop cut, an incomplete character.

        The kept tokens' text and this are the prefix and the text.
        """
        at = self._last_end()[1] + len(self._before)
        return (self._before + self.text)[at:]

    def repeats(self, token: int) -> bool:
        """Whether ``token``, if it comes next, brings nothing but (a part of) the prefix."""
        return 0 < len(self._token_bytes(token)) <= len(self._prefix)

    def _last_end(self) -> tuple[int, int]:
        return next(end for end in reversed(self._ends) if end[1] <= self._certain)

    @property
    def _ended(self) -> bool:
        return self._stopped is not None or self._failure is not None

    def push(self, token_ids: Sequence[int]) -> str:
        """Take the next tokens; return the text that they make certain. Nothing is taken after a stop string."""
        assert not self._finished, "no token comes after the end"
        if self._ended:
            return ""
        ready = ""
        for token in token_ids:
            ready += self._take(token)
            if self._ended:
                break
        return self._emit(ready)

    def finish(self) -> str:
        """Return the rest of the text: no more tokens come. An incomplete character becomes U+FFFD."""
        if self._finished or self._stopped is not None:
            return ""
        self._finished = True
        rest = self._match(self._decode(b"", final=True))
        rest, self._held = rest + self._held, ""
        return self._emit(rest)

    def _take(self, token: int) -> str:
        """The text that ``token`` makes certain."""
        self._num_tokens += 1
        text = ""
        if token not in self._skipped:
            data = self._token_bytes(token)
            if self._prefix:
                shared = min(len(data), len(self._prefix))
                assert data[:shared] == self._prefix[:shared], "the tokens begin with the prefix"
                data, self._prefix = data[shared:], self._prefix[shared:]
                if not data:
                    self._repeated += 1
            text = self._decode(data)
        if not self._pending and not self._prefix:
            self._ends.append((self._num_tokens, self._length))
        return self._match(text) if text else ""

    def _decode(self, data: bytes, *, final: bool = False) -> str:
        """Characters that ``data`` completes; bytes of an incomplete one wait, unless this is the end."""
        if self._pending:
            data = self._pending + data
        text, used = utf_8_decode(data, "replace", final)
        pending = data[used:]
        if len(pending) == 2 and pending[0] == 0xED and pending[1] >= 0xA0:
            # The codec waits for the third byte of a surrogate, though nothing makes one valid.
            text, pending = text + "\ufffd\ufffd", b""
        self._pending = pending
        self._length += len(text)
        return text

    def _match(self, text: str) -> str:
        """Look for stops in the next piece of text; return what is certain now and hold back the rest."""
        if self._matcher is None and self._patterns is None:
            return text
        ignore = self._num_tokens - self._repeated <= self._min_tokens
        match = None if self._matcher is None else self._matcher.feed(text, ignore=ignore)
        end = len(text) if match is None else match.end
        ended = self._follow(text[:end], ignore)
        whole = self._held + text[: ended.end if ended is not None else end]
        if ended is not None and (match is None or ended.end < end):
            # What a pattern matched stays: it says where the output is complete.
            self._held, self._stopped = "", ended.pattern
            return whole
        if match is not None:
            # Whatever of the stop string came in earlier pieces is in the held text.
            self._held, self._stopped = "", match.stop
            return whole if self._include_stop else whole[: -len(match.stop)]
        certain = len(whole) - (0 if self._matcher is None else self._matcher.held)
        self._held = whole[certain:]
        return whole[:certain]

    def _follow(self, text: str, ignore: bool) -> PatternMatch | None:
        if self._patterns is None or self._failure is not None:
            return None
        try:
            return self._patterns.feed(text, ignore=ignore)
        except MatcherFailed as error:
            self._failure = str(error)
            return None

    def _emit(self, text: str) -> str:
        if text:
            self._emitted.append(text)
            self._certain += len(text)
        while len(self._ends) > 1 and self._ends[1][1] <= self._certain:
            self._ends.popleft()
        return text
