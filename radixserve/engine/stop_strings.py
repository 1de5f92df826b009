"""Finding stop strings in text that arrives in pieces, in time linear in the text.

Every stop string runs its own Knuth-Morris-Pratt automaton (Knuth, Morris, Pratt 1977), but only while the text ends in
a prefix of it; where it ends in none, a compiled character class jumps to the next place where one could begin. Failure
tables grow with the longest prefix seen, so a long stop string that never begins to match costs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class StopMatch:
    """``stop`` ends before character ``end`` of the piece of text just fed; it may begin in an earlier piece."""

    stop: str
    end: int


@dataclass(slots=True, eq=False)
class _Needle:
    """One stop string and the length of its longest proper prefix that the text ends in.

    ``borders[k]`` is the length of the longest proper prefix of ``text[:k]`` that is also its suffix (0 for k = 0).
    """

    text: str
    matched: int = 0
    borders: list[int] = field(default_factory=lambda: [0, 0])

    def step(self, char: str) -> bool:
        """Take one character; True when it completes the stop string."""
        text, borders = self.text, self.borders
        matched = self.matched
        while matched and text[matched] != char:
            matched = borders[matched]
        if text[matched] == char:
            matched += 1
            if matched == len(borders):
                borders.append(self._border(matched))
        complete = matched == len(text)
        self.matched = borders[matched] if complete else matched
        return complete

    def _border(self, length: int) -> int:
        """``borders[length]`` for length >= 2, from the entries before it."""
        last = self.text[length - 1]
        border = self.borders[length - 1]
        while border and self.text[border] != last:
            border = self.borders[border]
        return border + 1 if self.text[border] == last else 0


class StopMatcher:
    """Looks for the match that ends first; of those that end together, the one that begins first.

    ``stops`` are not empty strings.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._by_first: dict[str, list[_Needle]] = {}
        for stop in dict.fromkeys(stops):
            assert stop, "a stop string is not empty"
            self._by_first.setdefault(stop[0], []).append(_Needle(stop))
        self._first = re.compile("[" + "".join(map(re.escape, self._by_first)) + "]") if self._by_first else None
        self._active: list[_Needle] = []

    @property
    def held(self) -> int:
        """Characters at the end of the text that could still become a stop string: no more and no fewer."""
        return max((needle.matched for needle in self._active), default=0)

    def feed(self, text: str, *, ignore: bool = False) -> StopMatch | None:
        """Take the next piece of text; return the first match, after which the matcher is done.

        With ``ignore``, matches that end in this piece do not count, but one that only begins here still may.
        """
        if self._first is None:
            return None
        index, size = 0, len(text)
        while index < size:
            if not self._active:
                start = self._first.search(text, index)
                if start is None:
                    return None
                index = start.start()
            complete = self._step(text[index])
            index += 1
            if complete is not None and not ignore:
                return StopMatch(complete, index)
        return None

    def _step(self, char: str) -> str | None:
        """Move all automata by one character; the longest stop string that it completes."""
        # One that is inactive stands before its first character, and only that wakes it.
        woken = [needle for needle in self._by_first.get(char, ()) if not needle.matched]
        complete: str | None = None
        moved: list[_Needle] = []
        for needle in (*self._active, *woken):
            if needle.step(char) and (complete is None or len(needle.text) > len(complete)):
                complete = needle.text
            if needle.matched:
                moved.append(needle)
        self._active = moved
        return complete
