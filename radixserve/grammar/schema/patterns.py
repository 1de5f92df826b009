"""Patterns as constraints on strings, and what can be decided about several of them together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar

from radixserve.grammar.schema.formats import FORMATS
from radixserve.grammar.schema.limits import Budget
from radixserve.grammar.schema.refusal import UNSUPPORTED, Origin, SchemaRefused
from radixserve.grammar.schema.regex.automaton import Dfa, Nfa, determinize
from radixserve.grammar.schema.regex.elimination import TooLong, expression
from radixserve.grammar.schema.regex.parser import parse
from radixserve.grammar.schema.regex.text import anchored, write
from radixserve.grammar.schema.regex.tree import (
    ANY,
    ANYTHING,
    Chars,
    Concat,
    Edge,
    Either,
    Lookahead,
    Regex,
    Repeat,
    UnsupportedPattern,
    complement,
    literal,
)

_MAX_NAME = 64
_MAX_NAMES = 6_000
_Machine = TypeVar("_Machine")


@dataclass(frozen=True, slots=True)
class Pattern:
    """A string matches it when ``tree`` is found anywhere in it. Equal when the trees are."""

    tree: Regex
    origin: Origin = field(compare=False)


@dataclass(frozen=True, slots=True)
class PatternSet:
    """``positive`` match and ``negative`` do not: what one expression with lookaheads at its start means."""

    positive: tuple[Pattern, ...]
    negative: tuple[Pattern, ...] = ()


def read_pattern(text: str, origin: Origin) -> PatternSet:
    """The ECMA-262 expression ``text``; refuses what is not understood."""
    try:
        tree = _parsed(text)
    except UnsupportedPattern as error:
        raise SchemaRefused(origin, f"{text[:80]!r}: {error}", UNSUPPORTED) from None
    parts = list(tree.parts) if isinstance(tree, Concat) else [tree]
    if parts[:1] != [Edge(start=True)]:
        return PatternSet((Pattern(tree, origin),))
    looks = []
    while len(parts) > 1 and isinstance(parts[1], Lookahead):
        looks.append(parts.pop(1))
    found = [(Concat((Edge(start=True), look.part)), look.positive) for look in looks if isinstance(look, Lookahead)]
    if len(parts) > 1 or not found:
        found.append((Concat(tuple(parts)), True))
    return PatternSet(
        tuple(Pattern(tree, origin) for tree, positive in found if positive),
        tuple(Pattern(tree, origin) for tree, positive in found if not positive),
    )


def read_format(name: str, origin: Origin) -> Pattern:
    """The format ``name`` as a pattern; refuses one that is not enforced."""
    text = FORMATS.get(name)
    if text is None:
        raise SchemaRefused(origin, f"the format {name[:80]!r} is not enforced", UNSUPPORTED)
    return Pattern(_parsed(text), origin)


def length_pattern(low: int, high: int | None, origin: Origin) -> Pattern:
    """Strings of ``low`` to ``high`` characters."""
    return Pattern(Concat((Edge(start=True), Repeat(ANY, low, high), Edge(start=False))), origin)


def exactly(text: str, origin: Origin) -> Pattern:
    """The string ``text`` alone."""
    return Pattern(Concat((Edge(start=True), literal(text), Edge(start=False))), origin)


def fits_trie(names: Sequence[str]) -> bool:
    """Whether `none_of` may be asked for ``names``."""
    return sum(map(len, names)) <= _MAX_NAMES and max(map(len, names)) <= _MAX_NAME


def none_of(names: Iterable[str]) -> str:
    """A pattern for all strings but ``names``."""
    trie: dict[str, Any] = {}
    for name in names:
        at = trie
        for char in name:
            at = at.setdefault(char, {})
        at[""] = {}
    return anchored(_beside(trie))


def _beside(trie: dict[str, Any]) -> Regex:
    """What may follow so that no path through ``trie`` is taken to an end."""
    ranges = tuple((ord(char), ord(char)) for char in sorted(trie) if char)
    parts: list[Regex] = [Concat((Chars(complement(ranges)), ANYTHING))]
    for char, below in sorted(trie.items()):
        if char:
            parts.append(Concat((Chars(((ord(char), ord(char)),)), _beside(below))))
    tree: Regex = parts[0] if len(parts) == 1 else Either(tuple(parts))
    return tree if "" in trie else Repeat(tree, 0, 1)


def source(pattern: Pattern) -> str:
    """What to write for ``pattern`` in the rewritten schema; refuses one with a lookahead inside."""
    try:
        return write(pattern.tree)
    except UnsupportedPattern as error:
        raise SchemaRefused(pattern.origin, str(error), UNSUPPORTED) from None


@lru_cache(maxsize=512)
def _parsed(text: str) -> Regex:
    return parse(text)


class Languages:
    """Decisions about patterns, remembered, on the budget of one schema."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._machines: dict[Regex, Nfa] = {}
        self._matches: dict[tuple[Regex, str], bool] = {}
        self._joint: dict[tuple[Regex, ...], Dfa] = {}

    def matches(self, pattern: Pattern, text: str) -> bool:
        """Whether ``text`` matches."""
        key = (pattern.tree, text)
        if key not in self._matches:
            if pattern.tree not in self._machines:
                self._machines[pattern.tree] = self._guarded(lambda: Nfa([pattern.tree], self._budget), pattern.origin)
            self._matches[key] = bool(self._machines[pattern.tree].match(text))
        return self._matches[key]

    def joint(self, patterns: Sequence[Pattern]) -> Dfa:
        """An automaton whose label ``i`` is ``patterns[i]``."""
        key = tuple(pattern.tree for pattern in patterns)
        if key not in self._joint:
            self._joint[key] = self._guarded(lambda: determinize(key, self._budget), patterns[0].origin)
        return self._joint[key]

    def single(self, patterns: PatternSet, origin: Origin) -> Pattern:
        """One pattern for a set of them."""
        if len(patterns.positive) == 1 and not patterns.negative:
            return patterns.positive[0]
        both = [*patterns.positive, *patterns.negative]
        wanted = frozenset(range(len(patterns.positive)))
        tree = self._expression(both, lambda labels: labels == wanted, origin)
        return Pattern(Concat((Edge(start=True), tree, Edge(start=False))), origin)

    def possible(self, positive: Iterable[Pattern], negative: Iterable[Pattern]) -> bool:
        """Whether some string matches all of ``positive`` and none of ``negative``."""
        yes, no = list(dict.fromkeys(positive)), list(dict.fromkeys(negative))
        if not no and len(yes) < 2:
            return True
        wanted = frozenset(range(len(yes)))
        return any(labels == wanted for labels in self.joint([*yes, *no]).labels)

    def rewritten(self, patterns: Sequence[Pattern], wanted: Callable[[frozenset[int]], bool], origin: Origin) -> str:
        """One pattern for the strings whose combination of ``patterns`` is ``wanted``, whole strings."""
        return anchored(self._expression(patterns, wanted, origin))

    def _expression(
        self, patterns: Sequence[Pattern], wanted: Callable[[frozenset[int]], bool], origin: Origin
    ) -> Regex:
        try:
            return expression(self.joint(patterns), wanted, self._budget)
        except TooLong as error:
            raise SchemaRefused(origin, f"its combination with other keywords is too complex: {error}") from None

    def _guarded(self, make: Callable[[], _Machine], origin: Origin) -> _Machine:
        try:
            return make()
        except UnsupportedPattern as error:
            raise SchemaRefused(origin, str(error), UNSUPPORTED) from None
