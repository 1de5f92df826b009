r"""Syntax trees written as patterns that the engine's dialect reads as they were meant.

Every class is spelled out, because ``.``, ``\s`` and ``\w`` mean different sets in different dialects.
"""

from __future__ import annotations

from radixserve.grammar.schema.regex.tree import (
    ALL,
    Chars,
    Concat,
    Edge,
    Either,
    Lookahead,
    Ranges,
    Regex,
    UnsupportedPattern,
    complement,
    union,
)

_NEVER = r"[^\x00-\U0010ffff]"


def write(tree: Regex) -> str:
    """A pattern for ``tree``. Raises `UnsupportedPattern` for a lookahead: the dialect has none."""
    if isinstance(tree, Chars):
        return tree.text if tree.text and not _misread(tree.ranges) else _char_class(tree.ranges)
    if isinstance(tree, Edge):
        return "^" if tree.start else "$"
    if isinstance(tree, Concat):
        return "".join(f"(?:{write(part)})" if isinstance(part, Either) else write(part) for part in tree.parts)
    if isinstance(tree, Either):
        return "|".join(map(write, tree.parts)) if tree.parts else _NEVER
    if isinstance(tree, Lookahead):
        raise UnsupportedPattern("a lookahead that is not at the start")
    inner = write(tree.part)
    if not isinstance(tree.part, Chars):
        inner = f"(?:{inner})"
    return inner + _quantifier(tree.low, tree.high)


def anchored(tree: Regex) -> str:
    """A pattern that only the strings of ``tree`` match, as a whole."""
    return f"^(?:{write(tree)})$"


def _quantifier(low: int, high: int | None) -> str:
    if high is None:
        return {0: "*", 1: "+"}.get(low, f"{{{low},}}")
    if (low, high) == (0, 1):
        return "?"
    return f"{{{low}}}" if low == high else f"{{{low},{high}}}"


def _misread(ranges: Ranges) -> bool:
    """Whether the engine lets an escaped quote or backslash pass for a character of a class that holds neither: it does where a class holds
    all control characters (a missing line feed makes no difference), and so every other escape.
    """
    held = [any(low <= code <= high for low, high in ranges) for code in (*range(0x0A), *range(0x0B, 0x20))]
    return all(held) and not all(any(low <= code <= high for low, high in ranges) for code in (0x22, 0x5C))


def _char_class(ranges: Ranges) -> str:
    if _misread(ranges):
        # Without one more control character it is read as written: a few strings that nobody writes are lost, none is gained.
        ranges = complement(union(complement(ranges), ((0x1F, 0x1F),)))
    if ranges == ALL:
        return "(?s:.)"
    if not ranges:
        return _NEVER
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return _char(ranges[0][0])
    others = complement(ranges)
    return f"[^{_members(others)}]" if len(others) < len(ranges) else f"[{_members(ranges)}]"


def _members(ranges: Ranges) -> str:
    return "".join(_char(a) if a == b else f"{_char(a)}-{_char(b)}" for a, b in _bridged(ranges))


def _bridged(ranges: Ranges) -> Ranges:
    # The halves of surrogate pairs are in no text, so a range may run over them.
    joined: list[tuple[int, int]] = []
    for a, b in ranges:
        if joined and joined[-1][1] == 0xD7FF and a == 0xE000:
            joined[-1] = (joined[-1][0], b)
        else:
            joined.append((a, b))
    return tuple(joined)


def _char(code: int) -> str:
    char = chr(code)
    if char.isascii() and (char.isalnum() or char in "_ :;,=@%/<>\"'!`"):
        return char
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
