"""Where the engine alone does not keep what a schema says, and that the rewritten schema does.

The first half of each pair is a fact about the engine: when it fails, the engine has changed and a rule may be dropped.
"""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from radixserve.grammar.schema.normalizer import normalize_schema
from radixserve.grammar.schema.refusal import UNSATISFIABLE, SchemaRefused
from tests.grammar.schema.acceptance import EngineRefused, accepts_text, compile_schema

# name: schema, a text, whether it is valid; the engine alone says the opposite
WRONG: dict[str, tuple[dict[str, Any], str, bool]] = {
    "a named property spelled with escapes": (
        {"type": "object", "properties": {"ab": {"type": "integer"}}},
        '{"\\u0061b":"x"}',
        False,
    ),
    "second 60 at any time": ({"type": "string", "format": "time"}, '"12:00:60Z"', False),
    "the 29th of February": ({"type": "string", "format": "date"}, '"2023-02-29"', False),
    "a dot and line ends": ({"type": "string", "pattern": "^.$"}, '"\\r"', False),
    "a class without the quote": ({"type": "string", "pattern": '^[^"]$'}, '"\\""', False),
    "a class without the backslash": ({"type": "string", "pattern": "^[^\\\\]$"}, '"\\\\"', False),
    "steps with decimals": ({"type": "number", "multipleOf": 0.25}, "0.5", True),
    "a bound with decimals": ({"type": "number", "maximum": 12.375}, "12.3", True),
    "properties beside a pattern": (
        {
            "type": "object",
            "properties": {"ab": {}},
            "additionalProperties": False,
            "patternProperties": {"^b": {}},
            "required": ["ab"],
        },
        '{"ab":1,"b":1,"\\u0062":1}',
        False,
    ),
}


@pytest.mark.parametrize("name", [name for name in WRONG if not name.startswith("properties beside")])
def test_the_engine_alone_is_wrong_and_the_rewritten_schema_is_not(name: str) -> None:
    schema, text, valid = WRONG[name]
    assert accepts_text(compile_schema(schema), text) != valid
    assert accepts_text(compile_schema(normalize_schema(schema)), text) == valid


def test_names_under_patterns_have_one_spelling() -> None:
    schema, text, _ = WRONG["properties beside a pattern"]
    assert not accepts_text(compile_schema(schema), text)


NOT_COMPILED: dict[str, dict[str, Any]] = {
    "counts beside optional properties": {"type": "object", "properties": {"a": {}, "b": {}}, "minProperties": 1},
    "overlapping patterns": {"type": "object", "patternProperties": {"^a": {}, "b$": {}}},
    "oneOf that overlaps": {"oneOf": [{"minimum": 1}, {"maximum": 3}]},
    "a step of binary digits": {"type": "integer", "multipleOf": 0.07},
}


@pytest.mark.parametrize("name", NOT_COMPILED)
def test_the_engine_alone_does_not_compile_it(name: str) -> None:
    with pytest.raises(EngineRefused):
        compile_schema(NOT_COMPILED[name])
    compile_schema(normalize_schema(NOT_COMPILED[name]))


def test_one_name_twice_counts_as_two_for_the_engine() -> None:
    schema = {"type": "object", "minProperties": 2}
    assert accepts_text(compile_schema(schema), '{"a":1,"a":1}')
    with pytest.raises(SchemaRefused, match="minProperties at #/minProperties"):
        normalize_schema(schema)


def test_an_exclusive_bound_is_accepted_by_the_engine_next_to_the_other_one() -> None:
    schema = {"type": "number", "exclusiveMinimum": 3, "maximum": 3.5}
    assert accepts_text(compile_schema(schema), "3")
    with pytest.raises(SchemaRefused, match="exclusiveMinimum at #/exclusiveMinimum"):
        normalize_schema(schema)


def test_the_engine_compiles_what_can_never_end() -> None:
    schema = {"$ref": "#/$defs/a", "$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}, "minItems": 1}}}
    compile_schema(schema)
    with pytest.raises(SchemaRefused) as caught:
        normalize_schema(schema)
    assert caught.value.code == UNSATISFIABLE


BOUNDS = (None, -12.75, -2, -0.255, 0, 0.001, 0.5, 3, 3.7, 12.75)
STEPS = (None, 0.25, 0.3, 0.01, 2, 7)
DIGITS = [
    *range(-300, 301, 25),
    *range(-4, 5),
    -1275,
    -1274,
    -1270,
    -20,
    -26,
    20,
    370,
    371,
    1274,
    1275,
    1276,
    10000,
    -10000,
]
TEXTS = [format((Decimal(value) / 100).normalize(), "f") for value in dict.fromkeys(DIGITS)]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("kind", ["number", "integer"])
def test_numbers_are_exact(kind: str, step: float | None) -> None:
    for index, low in enumerate(BOUNDS):
        for high in BOUNDS[index % 2 :: 2]:
            for least, most in (("minimum", "maximum"), ("exclusiveMinimum", "exclusiveMaximum")):
                bounds = {least: low, most: high, "multipleOf": step}
                _check_numbers({"type": kind, **{key: bound for key, bound in bounds.items() if bound is not None}})


def _check_numbers(schema: dict[str, Any]) -> None:
    expected = [text for text in TEXTS if _meets(schema, Fraction(text))]
    try:
        normalized = normalize_schema(schema)
    except SchemaRefused as error:
        if error.code == UNSATISFIABLE and expected:
            raise
        return
    matcher = compile_schema(normalized)
    # A whole number is an integer however it is written; the engine writes integers without a point.
    assert [text for text in TEXTS if accepts_text(matcher, text)] == expected, schema


def _meets(schema: dict[str, Any], value: Fraction) -> bool:
    def bound(keyword: str) -> Fraction:
        return Fraction(repr(schema[keyword]))

    return (
        ("minimum" not in schema or value >= bound("minimum"))
        and ("maximum" not in schema or value <= bound("maximum"))
        and ("exclusiveMinimum" not in schema or value > bound("exclusiveMinimum"))
        and ("exclusiveMaximum" not in schema or value < bound("exclusiveMaximum"))
        and ("multipleOf" not in schema or (value / bound("multipleOf")).denominator == 1)
        and (schema["type"] == "number" or value.denominator == 1)
    )
