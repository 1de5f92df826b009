"""Random schemas over the keywords that are rewritten, and values that come close to them.

Names, strings and numbers are drawn from small pools, so that keywords meet: the same property under two of them, a value at a bound.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

NAMES = st.sampled_from(["a", "b", "ab", "ba", "c"])
STRINGS = st.sampled_from(["", "a", "b", "ab", "ba", "abc", "cab", "aé", "0", "2001-01-01"])
NUMBERS = st.sampled_from([-2, -1, 0, 1, 2, 3, 4, 6, 0.5, 1.5, -0.5, 2.5, 100])
PATTERNS = st.sampled_from(["^a", "b$", "^a*$", "[ab]c", "^(a|ba)+$", "^.?$", "^(?!a)", "^(?=.*b)a"])
SMALL = st.integers(0, 3)

Schema = Any


def scalars() -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), st.booleans(), NUMBERS, STRINGS)


def values(depth: int = 2) -> st.SearchStrategy[Any]:
    """JSON values."""
    if depth == 0:
        return scalars()
    inner = values(depth - 1)
    return st.one_of(scalars(), st.lists(inner, max_size=4), st.dictionaries(NAMES, inner, max_size=4))


def _numbers() -> st.SearchStrategy[Schema]:
    return st.fixed_dictionaries(
        {},
        optional={
            "minimum": NUMBERS,
            "maximum": NUMBERS,
            "exclusiveMinimum": NUMBERS,
            "exclusiveMaximum": NUMBERS,
            "multipleOf": st.sampled_from([1, 2, 3, 0.5, 0.25, 1.5]),
        },
    )


def _strings() -> st.SearchStrategy[Schema]:
    return st.fixed_dictionaries(
        {}, optional={"minLength": SMALL, "maxLength": SMALL, "pattern": PATTERNS, "format": st.just("date")}
    )


def _arrays(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    return st.fixed_dictionaries(
        {},
        optional={
            "prefixItems": st.lists(inner, min_size=1, max_size=2),
            "items": inner,
            "minItems": SMALL,
            "maxItems": SMALL,
            "contains": inner,
            "minContains": SMALL,
            "maxContains": SMALL,
            "uniqueItems": st.booleans(),
        },
    )


def _objects(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    names = st.lists(NAMES, max_size=2, unique=True)
    return st.fixed_dictionaries(
        {},
        optional={
            "properties": st.dictionaries(NAMES, inner, max_size=3),
            "patternProperties": st.dictionaries(PATTERNS, inner, max_size=2),
            "additionalProperties": st.one_of(st.just(False), inner),
            "required": names,
            "minProperties": SMALL,
            "maxProperties": SMALL,
            "propertyNames": st.one_of(_strings(), st.fixed_dictionaries({"enum": st.lists(NAMES, max_size=3)})),
            "dependentRequired": st.dictionaries(NAMES, names, max_size=2),
            "dependentSchemas": st.dictionaries(NAMES, inner, max_size=1),
        },
    )


def _combined(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    some = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(
        st.fixed_dictionaries({"allOf": some}),
        st.fixed_dictionaries({"anyOf": some}),
        st.fixed_dictionaries({"oneOf": some}),
        st.fixed_dictionaries({"not": inner}),
        st.fixed_dictionaries({"if": inner}, optional={"then": inner, "else": inner}),
    )


_TYPES = st.sampled_from(
    [
        "null",
        "boolean",
        "integer",
        "number",
        "string",
        "array",
        "object",
        ["string", "null"],
        ["integer", "array"],
        ["object", "number"],
    ]
)


def _plain(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    """Keywords of one type, most often with that type."""

    def typed(keywords: Schema, name: str) -> st.SearchStrategy[Schema]:
        return st.sampled_from([{**keywords, "type": name}, {**keywords, "type": name}, keywords])

    return st.one_of(
        _numbers().flatmap(lambda k: typed(k, "number")),
        _numbers().flatmap(lambda k: typed(k, "integer")),
        _strings().flatmap(lambda k: typed(k, "string")),
        _arrays(inner).flatmap(lambda k: typed(k, "array")),
        _objects(inner).flatmap(lambda k: typed(k, "object")),
        _objects(inner).flatmap(lambda k: typed(k, "object")),
        st.fixed_dictionaries({"enum": st.lists(values(1), min_size=1, max_size=4)}),
        st.fixed_dictionaries({"const": values(1)}),
        st.fixed_dictionaries({"type": _TYPES}),
    )


def schemas(depth: int = 2) -> st.SearchStrategy[Schema]:
    """Schemas; most of them are satisfiable and small."""
    if depth == 0:
        return st.one_of(
            st.booleans(),
            st.fixed_dictionaries({"type": _TYPES}),
            st.fixed_dictionaries({"const": scalars()}),
            st.fixed_dictionaries({"enum": st.lists(scalars(), min_size=1, max_size=3)}),
            _numbers(),
            _strings(),
        )
    inner = schemas(depth - 1)
    both = st.tuples(_plain(inner), _combined(inner)).map(lambda pair: {**pair[0], **pair[1]})
    unevaluated = st.tuples(both, st.sampled_from(["unevaluatedProperties", "unevaluatedItems"]), inner).map(
        lambda parts: {**parts[0], parts[1]: parts[2]}
    )
    return st.one_of(_plain(inner), _combined(inner), both, both, unevaluated)


def recursive_schemas() -> st.SearchStrategy[Schema]:
    """Schemas with definitions that refer to one another, and to themselves."""
    reference = st.sampled_from([{"$ref": "#/$defs/x"}, {"$ref": "#/$defs/y"}, {"$ref": "#"}])
    leaf = st.one_of(reference, schemas(0))
    inner = st.one_of(
        _arrays(leaf).map(lambda k: {**k, "type": "array"}),
        _objects(leaf).map(lambda k: {**k, "type": "object"}),
        _combined(leaf),
        leaf,
    )
    return st.fixed_dictionaries({"$defs": st.fixed_dictionaries({"x": inner, "y": inner})}).flatmap(
        lambda definitions: st.one_of(_plain(inner), _combined(inner)).map(lambda schema: {**definitions, **schema})
    )
