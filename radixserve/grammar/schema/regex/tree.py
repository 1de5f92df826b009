"""Syntax trees of regular expressions, and sets of characters."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from unicodedata import category

Ranges = tuple[tuple[int, int], ...]

# JSON text is Unicode: no half of a surrogate pair is a character.
ALL: Ranges = ((0, 0xD7FF), (0xE000, 0x10FFFF))
DIGITS: Ranges = ((0x30, 0x39),)
WORD: Ranges = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
SPACE: Ranges = (
    (0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029), (0x202F, 0x202F),
    (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF),
)  # fmt: skip
LINE_ENDS: Ranges = ((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029))


class UnsupportedPattern(ValueError):
    """The pattern is not an ECMA-262 expression, or uses what is not supported; the message says which."""


@dataclass(frozen=True, slots=True)
class Chars:
    """One character out of ``ranges`` (sorted, disjoint, inclusive). ``text``: a shorter spelling that the engine has."""

    ranges: Ranges
    text: str = ""


@dataclass(frozen=True, slots=True)
class Concat:
    """``parts`` one after the other; none is the empty string."""

    parts: tuple[Regex, ...]


@dataclass(frozen=True, slots=True)
class Either:
    """One of ``parts``; none is nothing at all."""

    parts: tuple[Regex, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """``part``, ``low`` to ``high`` times (None: without bound)."""

    part: Regex
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class Edge:
    """The start or the end of the whole string."""

    start: bool


@dataclass(frozen=True, slots=True)
class Lookahead:
    """A lookahead; only ever at the start of an expression."""

    part: Regex
    positive: bool


Regex = Chars | Concat | Either | Repeat | Edge | Lookahead
EMPTY = Concat(())
NOTHING = Either(())
ANY = Chars(ALL)
ANYTHING = Repeat(ANY, 0, None)


def union(*sets: Ranges) -> Ranges:
    """All characters of any of the sets."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(pair for ranges in sets for pair in ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


def complement(ranges: Ranges) -> Ranges:
    """All characters but these."""
    result = []
    for low, high in ALL:
        at = low
        for a, b in union(ranges):
            if b < at or a > high:
                continue
            if a > at:
                result.append((at, a - 1))
            at = b + 1
        if at <= high:
            result.append((at, high))
    return tuple(result)


def literal(text: str) -> Regex:
    """The expression for exactly ``text``."""
    return Concat(tuple(Chars(((ord(char), ord(char)),)) for char in text))


def general_category(name: str) -> Ranges:
    """The characters whose Unicode general category starts with ``name``."""
    return union(*(ranges for key, ranges in _categories().items() if key.startswith(name)))


@cache
def _categories() -> dict[str, Ranges]:
    found: dict[str, list[tuple[int, int]]] = {}
    for low, high in ALL:
        for code in range(low, high + 1):
            runs = found.setdefault(category(chr(code)), [])
            if runs and runs[-1][1] == code - 1:
                runs[-1] = (runs[-1][0], code)
            else:
                runs.append((code, code))
    return {key: tuple(runs) for key, runs in found.items()}
