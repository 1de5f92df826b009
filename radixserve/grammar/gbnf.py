"""GBNF grammars in the lark notation of llguidance.

GBNF knows characters only; llguidance cuts a text into lexemes first, and always takes the longest. So that both accept the
same sentences, a grammar without recursion becomes a single lexeme, and any other one has lexemes of one character each.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

from radixserve.errors import InvalidRequest
from radixserve.grammar.gbnf_syntax import Alternatives, Characters, Node, Reference, Repeat, Sequence, parse_gbnf

_LONGEST_PATTERN = 64 * 1024
# What the library's parser of regular expressions takes is 250.
_DEEPEST_PATTERN = 150


def gbnf_to_lark(text: str, param: str) -> str:
    """The same grammar in lark; raises `InvalidRequest` naming the line of what is wrong, or the rule."""
    rules = parse_gbnf(text, param)
    for name, node in rules.items():
        for other in _references(node):
            if other not in rules:
                raise InvalidRequest(param, f"rule {name!r} names {other!r}, which is no rule", "invalid_grammar")
    pattern = _Patterns(rules).pattern("root")
    if pattern is not None:
        return f"start: TEXT\nTEXT: /{pattern}/" if pattern else 'start: ""'
    names = {name: f"r{number}" for number, name in enumerate(rules)}
    lines = [f"start: {names['root']}"]
    lines += [f"{names[name]}: {_lark(node, names)}" for name, node in rules.items()]
    return "\n".join(lines)


def _references(node: Node) -> Iterator[str]:
    if isinstance(node, Reference):
        yield node.name
    for child in _children(node):
        yield from _references(child)


def _children(node: Node) -> tuple[Node, ...]:
    if isinstance(node, Sequence):
        return node.parts
    if isinstance(node, Alternatives):
        return node.choices
    return (node.node,) if isinstance(node, Repeat) else ()


class _Patterns:
    """Regular expressions of rules that do not refer to themselves, and are not too long."""

    def __init__(self, rules: Mapping[str, Node]) -> None:
        self._rules = rules
        self._known: dict[str, str | None] = {}

    def pattern(self, name: str) -> str | None:
        """The regular expression of a rule, None if it has none."""
        # Depth first without recursion: a chain of rules may be long. A rule on the way to itself is None.
        waiting = [name]
        entered: set[str] = set()
        while waiting:
            at = waiting[-1]
            if at in self._known:
                waiting.pop()
                continue
            below = [other for other in _references(self._rules[at]) if other not in self._known]
            if at not in entered and below:
                entered.add(at)
                if any(other in entered for other in below):
                    self._known[at] = None
                    continue
                waiting += below
                continue
            entered.add(at)
            self._known[at] = None if below else self._written(self._rules[at])
        return self._known[name]

    def _written(self, node: Node) -> str | None:
        pattern = self._join(node)
        if pattern is None or len(pattern) > _LONGEST_PATTERN:
            return None
        depths = itertools.accumulate({"(": 1, ")": -1}.get(sign, 0) for sign in pattern)
        return pattern if max(depths, default=0) <= _DEEPEST_PATTERN else None

    def _join(self, node: Node) -> str | None:
        if isinstance(node, Characters):
            return _character_class(node)
        if isinstance(node, Reference):
            known = self._known[node.name]
            return None if known is None else f"(?:{known})"
        parts = [self._join(child) for child in _children(node)]
        known_parts = [part for part in parts if part is not None]
        if len(known_parts) < len(parts) or sum(map(len, known_parts)) > _LONGEST_PATTERN:
            return None
        if isinstance(node, Sequence):
            return "".join(known_parts)
        if isinstance(node, Alternatives):
            return f"(?:{'|'.join(known_parts)})"
        assert isinstance(node, Repeat)
        return f"(?:{known_parts[0]}){_times(node)}"


def _lark(node: Node, names: Mapping[str, str]) -> str:
    """An expression in which every character is a lexeme of its own."""
    if isinstance(node, Characters):
        return f"/{_character_class(node)}/"
    if isinstance(node, Reference):
        return names[node.name]
    parts = [_lark(child, names) for child in _children(node)]
    if isinstance(node, Sequence):
        return " ".join(parts) if parts else '""'
    if isinstance(node, Alternatives):
        return f"({' | '.join(parts)})"
    return f"({parts[0]}){_times(node)}"


def _times(node: Repeat) -> str:
    if (node.least, node.most) in _SIGNS:
        return _SIGNS[node.least, node.most]
    if node.most is None:
        return f"{{{node.least},}}"
    return f"{{{node.least},{node.most}}}"


_SIGNS = {(0, None): "*", (1, None): "+", (0, 1): "?"}


def _character_class(node: Characters) -> str:
    """Every character by its number, so that none means anything else in a pattern."""
    ranges = "".join(_code(first) if first == last else f"{_code(first)}-{_code(last)}" for first, last in node.ranges)
    return f"[{'^' if node.negated else ''}{ranges}]"


def _code(character: int) -> str:
    return f"\\x{{{character:x}}}"
