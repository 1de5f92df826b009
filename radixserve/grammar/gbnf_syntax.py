"""Reads GBNF, the grammar notation of llama.cpp, into a tree.

A grammar is a list of rules ``name ::= alternatives``; the sentence starts at ``root``. A rule goes on to the next line inside
parentheses, after ``::=`` and around ``|``. ``#`` begins a comment.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from radixserve.errors import InvalidRequest

MAX_NESTING = 100
MAX_REPEAT = 1_000
LAST_CHARACTER = 0x10FFFF


@dataclass(frozen=True, slots=True)
class Characters:
    """One character of ``ranges`` (code points, both ends included), or one that is in none of them."""

    ranges: tuple[tuple[int, int], ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Reference:
    """What the rule ``name`` stands for."""

    name: str


@dataclass(frozen=True, slots=True)
class Sequence:
    """All ``parts``, one after the other; none of them is the empty text."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Alternatives:
    """One of ``choices``."""

    choices: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """``node``, ``least`` to ``most`` times; None is without end."""

    node: Node
    least: int
    most: int | None


Node = Characters | Reference | Sequence | Alternatives | Repeat

ANY = Characters(((0, LAST_CHARACTER),))

_NAME = re.compile(r"[A-Za-z0-9_-]+")
_SIGN = re.compile(r"\s*::=")
_SPACE = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_LINES = re.compile(r"(?:\s|#[^\r\n]*)*")
_COUNT = re.compile(r"\{\s*(\d*)\s*(,?)\s*(\d*)\s*\}")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", '"': '"', "[": "[", "]": "]", "-": "-", "^": "^"}
_HEX = {"x": 2, "u": 4, "U": 8}


def parse_gbnf(text: str, param: str) -> dict[str, Node]:
    """Rules by name; raises `InvalidRequest` naming the line of what is wrong."""
    return _Parser(text, param).rules()


class _Parser:
    def __init__(self, text: str, param: str) -> None:
        self._text = text
        self._param = param
        self._at = 0
        self._depth = 0

    def rules(self) -> dict[str, Node]:
        found: dict[str, Node] = {}
        self._skip(_LINES)
        while self._at < len(self._text):
            name = self._name()
            if name in found:
                raise self._error(f"the rule {name!r} is defined twice")
            if not self._skip(_SIGN):
                raise self._error(f"expected '::=' after the rule name {name!r}")
            self._skip(_LINES)
            found[name] = self._alternatives()
            before = self._at
            self._skip(_LINES)
            if self._at < len(self._text) and "\n" not in self._text[before : self._at]:
                raise self._error("expected the end of the line")
        if "root" not in found:
            raise self._error("there is no rule 'root'")
        return found

    def _alternatives(self) -> Node:
        choices = [self._sequence()]
        while self._bar():
            self._at += 1
            self._skip(_LINES)
            choices.append(self._sequence())
        return choices[0] if len(choices) == 1 else Alternatives(tuple(choices))

    def _bar(self) -> bool:
        """Whether alternatives go on here, perhaps on the next line."""
        before = self._at
        self._skip(_LINES)
        if self._peek() == "|":
            return True
        self._at = before
        return False

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while True:
            self._skip(_LINES if self._depth else _SPACE)
            symbol = self._symbol()
            if symbol is None:
                break
            parts.append(self._repeated(symbol))
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _symbol(self) -> Node | None:
        sign = self._peek()
        if sign == '"':
            return self._literal()
        if sign == "[":
            return self._characters()
        if sign == ".":
            self._at += 1
            return ANY
        if sign == "(":
            return self._group()
        if sign in ("<", "!"):
            raise self._error("tokens of the vocabulary in a grammar are not part of this release")
        if _NAME.match(self._text, self._at):
            return Reference(self._name())
        return None

    def _group(self) -> Node:
        self._at += 1
        self._depth += 1
        if self._depth > MAX_NESTING:
            raise self._error(f"is nested deeper than {MAX_NESTING} levels")
        node = self._alternatives()
        self._skip(_LINES)
        if self._peek() != ")":
            raise self._error("expected ')'")
        self._at += 1
        self._depth -= 1
        return node

    def _repeated(self, node: Node) -> Node:
        for _ in range(MAX_NESTING):
            self._skip(_SPACE)
            sign = self._peek()
            if sign in ("*", "+", "?"):
                self._at += 1
                node = Repeat(node, 1 if sign == "+" else 0, 1 if sign == "?" else None)
            elif sign == "{":
                node = self._counted(node)
            else:
                return node
        raise self._error(f"is nested deeper than {MAX_NESTING} levels")

    def _counted(self, node: Node) -> Node:
        count = _COUNT.match(self._text, self._at)
        if count is None or not (count[1] or count[3]):
            raise self._error("expected a number of repetitions such as {2}, {2,} or {2,5}")
        least = int(count[1] or 0)
        most = least if not count[2] else int(count[3]) if count[3] else None
        if max(least, most or 0) > MAX_REPEAT or (most is not None and most < least):
            raise self._error(f"{count[0]} is not a number of repetitions up to {MAX_REPEAT}")
        self._at = count.end()
        return Repeat(node, least, most)

    def _literal(self) -> Node:
        self._at += 1
        parts: list[Node] = []
        while self._peek() != '"':
            code = self._character()
            parts.append(Characters(((code, code),)))
        self._at += 1
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _characters(self) -> Node:
        self._at += 1
        negated = self._peek() == "^"
        self._at += negated
        ranges: list[tuple[int, int]] = []
        while self._peek() != "]":
            first = last = self._character()
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] != "]":
                self._at += 1
                last = self._character()
                if last < first:
                    raise self._error("a range of characters ends before it begins")
            ranges.append((first, last))
        self._at += 1
        if not ranges and not negated:
            raise self._error("an empty set of characters matches nothing")
        return Characters(tuple(ranges), negated) if ranges else ANY

    def _character(self) -> int:
        """One character, escaped or not, as a code point."""
        sign = self._peek()
        if sign == "":
            raise self._error("the grammar ends inside a literal")
        self._at += 1
        if sign != "\\":
            return ord(sign)
        sign = self._peek()
        self._at += 1
        if sign in _ESCAPES:
            return ord(_ESCAPES[sign])
        digits = self._text[self._at : self._at + _HEX.get(sign, 0)]
        if sign in _HEX and re.fullmatch("[0-9A-Fa-f]+", digits) and len(digits) == _HEX[sign]:
            self._at += len(digits)
            code = int(digits, 16)
            if code <= LAST_CHARACTER and not 0xD800 <= code <= 0xDFFF:
                return code
            raise self._error(f"\\{sign}{digits} is no character")
        raise self._error(f"unknown escape \\{sign}")

    def _name(self) -> str:
        name = _NAME.match(self._text, self._at)
        if name is None:
            raise self._error("expected the name of a rule")
        self._at = name.end()
        return name[0]

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _skip(self, pattern: re.Pattern[str]) -> bool:
        found = pattern.match(self._text, self._at)
        if found is not None:
            self._at = found.end()
        return found is not None

    def _error(self, message: str) -> InvalidRequest:
        line = self._text.count("\n", 0, self._at) + 1
        return InvalidRequest(self._param, f"line {line}: {message}", "invalid_grammar")
