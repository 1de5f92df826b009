"""``enum`` and ``const``: the shapes of given values, and of all others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from radixserve.grammar.schema.document import Document
from radixserve.grammar.schema.json_values import KINDS, escape_token, exact, identity, kind_of
from radixserve.grammar.schema.limits import too_complex
from radixserve.grammar.schema.patterns import fits_trie
from radixserve.grammar.schema.refusal import Origin
from radixserve.grammar.schema.shapes import (
    ANY_OF_KIND,
    ANYWHERE,
    NOWHERE,
    Array,
    Boolean,
    Keys,
    Literal,
    Null,
    Number,
    Object,
    Place,
    Rule,
    Shape,
    Some,
    Text,
    Union,
    absent,
    place,
)


def values_allowed(values: Sequence[object], origin: Origin, document: Document) -> Union:
    """The shapes of exactly these values."""
    shapes: list[Shape] = []
    strings: list[str] = []
    known: set[object] = set()
    for index, value in enumerate(values):
        if identity(value) in known:
            continue
        known.add(identity(value))
        path = f"{origin.path}/{index}"
        if value is None:
            shapes.append(Null())
        elif isinstance(value, bool):
            shapes.append(Boolean(value))
        elif isinstance(value, (int, float)):
            shapes.append(Number(exact(value), high=exact(value), origin=origin))
        elif isinstance(value, str):
            strings.append(value)
        elif isinstance(value, list):
            items = tuple(_constant(item, f"{path}/{position}", document) for position, item in enumerate(value))
            shapes.append(Array(items, NOWHERE, len(items), len(items)))
        elif isinstance(value, dict):
            rules = [
                Rule(Keys(name), _constant(item, f"{path}/{escape_token(name)}", document))
                for name, item in value.items()
            ]
            others = Rule(Keys(names=frozenset(value)), NOWHERE)
            shapes.append(Object((*rules, others), tuple(value)))
    if strings:
        shapes.append(Text(tuple(strings)))
    return tuple(shapes)


def values_forbidden(values: Sequence[object], origin: Origin, document: Document) -> list[Union]:
    """Unions whose conjunction is every value but these."""
    by_kind: dict[str, list[object]] = {kind: [] for kind in KINDS}
    for value in values:
        by_kind[kind_of(value)].append(value)
    strings = tuple(dict.fromkeys(value for value in by_kind["string"] if isinstance(value, str)))
    if strings and not fits_trie(strings):
        raise too_complex("it excludes too many strings, or too long ones", origin)
    scalars: list[Shape] = [] if by_kind["null"] else [Null()]
    scalars += [Boolean(flag) for flag in (True, False) if flag not in by_kind["boolean"]]
    points = sorted({exact(value) for value in by_kind["number"] if isinstance(value, (int, float))})
    edges = [None, *points, None]
    scalars += [Number(low, low is not None, high, high is not None, origin=origin) for low, high in pairwise(edges)]
    scalars += [
        Text(excluded=strings, origin=origin),
        Array(),
        Object(),
    ]
    factors: list[Union] = [tuple(scalars)]
    for index, value in enumerate([*by_kind["array"], *by_kind["object"]]):
        path = f"{origin.path}/not{index}"
        others = tuple(shape for kind, shape in ANY_OF_KIND.items() if kind != kind_of(value))
        factors.append((*others, *_other_than(value, path, origin, document)))
    return factors


def _other_than(value: object, path: str, origin: Origin, document: Document) -> Iterator[Shape]:
    if isinstance(value, list):
        yield Array(low=len(value) + 1)
        if value:
            yield Array(high=len(value) - 1)
        for index, item in enumerate(value):
            unlike = _constant(item, f"{path}/{index}", document, positive=False)
            yield Array((ANYWHERE,) * index + (unlike,), low=index + 1)
    elif isinstance(value, dict):
        for name, item in value.items():
            yield absent(name)
            unlike = _constant(item, f"{path}/{escape_token(name)}", document, positive=False)
            yield Object((Rule(Keys(name), unlike),), (name,))
        yield Object(some=(Some(Keys(names=frozenset(value)), ANYWHERE, origin),))


def _constant(value: object, path: str, document: Document, *, positive: bool = True) -> Place:
    return place([Literal(document.constant(value, path), positive)])
