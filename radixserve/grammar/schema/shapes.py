"""Shapes: what a value of one JSON type may be. Places: what must hold for the values inside.

A place is a conjunction of literals; it stays unread until somebody asks what it allows, so schemas may be recursive. An ``origin`` is the
keyword to name when a shape cannot be written; it is no part of what a shape is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction

from radixserve.grammar.schema.document import Node, Resource
from radixserve.grammar.schema.json_values import identity
from radixserve.grammar.schema.patterns import Pattern
from radixserve.grammar.schema.refusal import Origin


@dataclass(frozen=True, slots=True)
class Literal:
    """``node`` must hold, or must not. ``scope``: the resources entered on the way, outermost first; only kept where the
    document has dynamic references.
    """

    node: Node
    positive: bool = True
    scope: tuple[Resource, ...] = ()

    def __invert__(self) -> Literal:
        return Literal(self.node, not self.positive, self.scope)


@dataclass(frozen=True, slots=True)
class Place:
    """All of ``literals`` hold for the value here. None means that no value may be here."""

    literals: tuple[Literal, ...] | None = ()

    def __and__(self, other: Place) -> Place:
        if self.literals is None or other.literals is None:
            return NOWHERE
        return (
            place([*self.literals, *other.literals])
            if self.literals and other.literals
            else (other if not self.literals else self)
        )


ANYWHERE = Place(())
NOWHERE = Place(None)


def place(literals: Iterable[Literal]) -> Place:
    """The conjunction, with what is trivially true or false decided."""
    kept: dict[Literal, None] = {}
    only: object = None
    for literal in literals:
        schema = literal.node.schema
        if literal.positive and isinstance(schema, dict) and "$ref" not in schema and "const" in schema:
            value = identity(schema["const"])
            if only not in (None, value):
                return NOWHERE
            only = value
        if isinstance(schema, bool) or not schema:
            if bool(schema is not False) is not literal.positive:
                return NOWHERE
        elif ~literal in kept:
            return NOWHERE
        else:
            kept[literal] = None
    return Place(tuple(kept))


@dataclass(frozen=True, slots=True)
class Null:
    """``null``."""


@dataclass(frozen=True, slots=True)
class Boolean:
    """``value``, or both when it is None."""

    value: bool | None = None


@dataclass(frozen=True, slots=True)
class Number:
    """Numbers between the bounds that are multiples of ``multiple`` (1: integers) and of none in ``not_multiples``."""

    low: Fraction | None = None
    low_open: bool = False
    high: Fraction | None = None
    high_open: bool = False
    multiple: Fraction | None = None
    not_multiples: tuple[tuple[Fraction, Origin], ...] = ()
    origin: Origin | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Text:
    """Strings of ``low`` to ``high`` characters that match all of ``patterns`` and none of ``not_patterns``, out of ``values`` where that
    is not None, and not in ``excluded``.
    """

    values: tuple[str, ...] | None = None
    low: int = 0
    high: int | None = None
    patterns: tuple[Pattern, ...] = ()
    not_patterns: tuple[Pattern, ...] = ()
    excluded: tuple[str, ...] = ()
    origin: Origin | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Count:
    """Of the items from index ``start`` on, ``low`` to ``high`` satisfy ``place``."""

    start: int
    place: Place
    low: int
    high: int | None
    origin: Origin


@dataclass(frozen=True, slots=True)
class Array:
    """Arrays of ``low`` to ``high`` items: the first as in ``prefix``, others as in ``rest``."""

    prefix: tuple[Place, ...] = ()
    rest: Place = ANYWHERE
    low: int = 0
    high: int | None = None
    counts: tuple[Count, ...] = ()
    unique: Origin | None = None
    not_unique: Origin | None = None
    origin: Origin | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Keys:
    """A set of property names: the one ``name``; or those that match ``pattern``; or those that, as strings, are not in the place
    ``unlike``; or (none of these given) all but ``names`` and what matches one of ``patterns``.
    """

    name: str | None = None
    pattern: Pattern | None = None
    names: frozenset[str] = frozenset()
    patterns: tuple[Pattern, ...] = ()
    unlike: Place | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """Every property with a name in ``keys`` has a value as in ``place``."""

    keys: Keys
    place: Place


@dataclass(frozen=True, slots=True)
class Some:
    """At least one property with a name in ``keys`` has a value as in ``place``."""

    keys: Keys
    place: Place
    origin: Origin


@dataclass(frozen=True, slots=True)
class Object:
    """Objects of ``low`` to ``high`` properties that obey ``rules``; ``names``: what the keys must satisfy."""

    rules: tuple[Rule, ...] = ()
    required: tuple[str, ...] = ()
    low: int = 0
    high: int | None = None
    names: tuple[Place, ...] = ()
    some: tuple[Some, ...] = ()
    origin: Origin | None = field(default=None, compare=False)


Shape = Null | Boolean | Number | Text | Array | Object
# Values that are of any of the shapes; they may overlap.
Union = tuple[Shape, ...]

ANY_OF_KIND: dict[str, Shape] = {
    "null": Null(),
    "boolean": Boolean(),
    "number": Number(),
    "string": Text(),
    "array": Array(),
    "object": Object(),
}
ANY_SHAPES: tuple[Shape, ...] = tuple(ANY_OF_KIND.values())


def absent(name: str) -> Object:
    """Objects without the property ``name``."""
    return Object((Rule(Keys(name), NOWHERE),))
