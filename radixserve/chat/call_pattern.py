"""Patterns of the fixed text around a call's arguments, and how far a text that is still growing matches one.

A pattern is literals with holes between them. A text matches *in part* where some way of going on would make it match;
that, and no more, is what a parser holds back.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Collection
from dataclasses import dataclass

MAX_SPACE = 64
_NAME_RUN = re.compile(r"[A-Za-z0-9_-]*")
_SPACE_RUN = re.compile(r"\s*")


class Hole(enum.Enum):
    """``SPACE``: at most `MAX_SPACE` characters of white space. ``NAME``: the name of a tool."""

    SPACE = enum.auto()
    NAME = enum.auto()


Pattern = tuple[str | Hole, ...]
"""A ``NAME`` is followed by a literal whose first character no name holds."""


@dataclass(frozen=True, slots=True)
class Match:
    """The pattern ends before character ``end``; ``name`` is what stood in its ``NAME`` hole."""

    end: int
    name: str = ""


def match(pattern: Pattern, text: str, start: int, names: Collection[str]) -> Match | bool:
    """``pattern`` at ``start``: a `Match`, True where the rest of ``text`` matches in part, False where it cannot match."""
    position, name = start, ""
    for item in pattern:
        if item is Hole.SPACE:
            end = _run(_SPACE_RUN, text, position)
            if end - position > MAX_SPACE:
                return False
            position = end
        elif item is Hole.NAME:
            end = _run(_NAME_RUN, text, position)
            name = text[position:end]
            if end == len(text):
                return any(known.startswith(name) for known in names)
            if name not in names:
                return False
            position = end
        elif text.startswith(item, position):
            position += len(item)
        else:
            return item.startswith(text[position:])
    return Match(position, name)


def _run(pattern: re.Pattern[str], text: str, position: int) -> int:
    found = pattern.match(text, position)
    assert found is not None, "a run may be empty"
    return found.end()
