"""Hostile schemas: refused by name when a bound is reached. The bounds are counts of work, so nothing here looks at a clock."""

from __future__ import annotations

from typing import Any

import pytest

from radixserve.grammar.schema.limits import Limits
from radixserve.grammar.schema.normalizer import normalize_schema
from radixserve.grammar.schema.refusal import INVALID, TOO_COMPLEX, UNSUPPORTED, SchemaRefused


def nested(depth: int) -> Any:
    schema: Any = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def tagged(count: int) -> list[Any]:
    return [{"required": [f"a{index}"]} for index in range(count)]


HOSTILE: dict[str, tuple[Any, str]] = {
    "deep nesting": (nested(500), TOO_COMPLEX),
    "a million values": ({"enum": list(range(1_000_000))}, TOO_COMPLEX),
    "many numbers": ({"enum": list(range(30_000))}, TOO_COMPLEX),
    "many excluded strings": ({"not": {"enum": [f"value {index}" for index in range(20_000)]}}, TOO_COMPLEX),
    "a megabyte of key": (
        {"properties": {"k" * 900_000: {"properties": {str(index): {} for index in range(9_000)}}}},
        TOO_COMPLEX,
    ),
    "two megabytes of text": ({"title": "x" * 2_000_000}, TOO_COMPLEX),
    "a product of choices": (
        {"allOf": [{"anyOf": [{"required": [f"a{n}"]}, {"required": [f"b{n}"]}]} for n in range(20)]},
        TOO_COMPLEX,
    ),
    "choices that overlap": ({"oneOf": tagged(300)}, TOO_COMPLEX),
    "choices that must be told apart": (
        {
            "anyOf": [{"properties": {f"p{n}": {"type": "null"}}, "required": [f"p{n}"]} for n in range(16)],
            "unevaluatedProperties": False,
        },
        TOO_COMPLEX,
    ),
    "many conditions": (
        {
            "allOf": [
                {"if": {"properties": {f"a{n}": {"const": n}}, "required": [f"a{n}"]}, "then": {"required": [f"b{n}"]}}
                for n in range(14)
            ]
        },
        TOO_COMPLEX,
    ),
    "many places": ({"properties": {f"p{n}": {"type": "string"} for n in range(15_000)}}, TOO_COMPLEX),
    "nested quantifiers": ({"not": {"pattern": "^(a{1,1000}){1,1000}$"}}, TOO_COMPLEX),
    "an automaton of 2**40 states": ({"not": {"pattern": "a.{40}$"}}, TOO_COMPLEX),
    "patterns that overlap in every way": (
        {"type": "object", "patternProperties": {f"a.{{{n}}}b": {"minimum": n} for n in range(14)}},
        TOO_COMPLEX,
    ),
    "a number of many digits": ({"minimum": 10**500}, TOO_COMPLEX),
    "subsets of properties": (
        {
            "type": "object",
            "properties": {f"p{n}": {} for n in range(60)},
            "additionalProperties": False,
            "minProperties": 20,
        },
        UNSUPPORTED,
    ),
    "positions of items": ({"type": "array", "contains": {"const": 1}, "minContains": 10, "maxItems": 60}, UNSUPPORTED),
    "orders of values": ({"type": "array", "items": {"enum": list(range(60))}, "uniqueItems": True}, UNSUPPORTED),
    "a long array": ({"type": "array", "maxItems": 10**9}, UNSUPPORTED),
    "a long string": ({"type": "string", "maxLength": 10**9}, UNSUPPORTED),
    "a step of many digits": ({"type": "integer", "multipleOf": 123456789}, UNSUPPORTED),
    "a reference to itself": ({"$ref": "#"}, UNSUPPORTED),
    "a circle of references": (
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"allOf": [{"$ref": "#/$defs/a"}]}}},
        UNSUPPORTED,
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_schema_is_refused(name: str) -> None:
    schema, code = HOSTILE[name]
    with pytest.raises(SchemaRefused) as caught:
        normalize_schema(schema)
    assert caught.value.code == code
    assert caught.value.origin.path.startswith("#")


def test_long_chains_are_fine() -> None:
    count = 2_000
    definitions: dict[str, Any] = {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(count)}
    assert normalize_schema({"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{count}": {"type": "null"}}}) == {
        "type": "null"
    }
    required: dict[str, Any] = {
        f"d{n}": {"type": "object", "properties": {"x": {"$ref": f"#/$defs/d{n + 1}"}}, "required": ["x"]}
        for n in range(count)
    }
    normalize_schema({"$ref": "#/$defs/d0", "$defs": {**required, f"d{count}": {"type": "null"}}})


def test_shared_definitions_are_written_once() -> None:
    definitions = {
        f"d{n}": {"type": "object", "properties": {key: {"$ref": f"#/$defs/d{n + 1}"} for key in "abc"}}
        for n in range(20)
    }
    schema = {
        "$ref": "#/$defs/d0",
        "$defs": {**definitions, "d20": {"type": "object", "properties": {"z": {"type": "null"}}}},
    }
    assert len(repr(normalize_schema(schema))) < 8_000


def test_limits_can_be_set() -> None:
    normalize_schema(nested(5))
    with pytest.raises(SchemaRefused, match="nested deeper than 4"):
        normalize_schema(nested(5), limits=Limits(depth=4))


@pytest.mark.parametrize(
    "schema", [1, "object", None, [], {1: 2}, {"minimum": float("inf")}, {"const": "\ud800"}, {"default": {1, 2}}]
)
def test_what_is_no_json_schema_is_invalid(schema: Any) -> None:
    with pytest.raises(SchemaRefused) as caught:
        normalize_schema(schema)
    assert caught.value.code == INVALID


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"properties": {"a": {"type": "text"}}}, "#/properties/a/type"),
        ({"items": {"minimum": "1"}}, "#/items/minimum"),
        ({"required": True}, "#/required"),
        ({"minLength": -1}, "#/minLength"),
        ({"multipleOf": 0}, "#/multipleOf"),
        ({"allOf": {}}, "#/allOf"),
        ({"properties": {"a/b": {"pattern": 1}}}, "#/properties/a~1b/pattern"),
        ({"not": 3}, "#/not"),
        ({"enum": "a"}, "#/enum"),
        ({"uniqueItems": 1}, "#/uniqueItems"),
        ({"$ref": "#/nowhere"}, "#/$ref"),
        ({"$ref": 1}, "#/$ref"),
        ({"dependencies": {"a": "b"}}, "#/dependencies"),
    ],
)
def test_a_wrong_value_is_named_with_its_path(schema: Any, path: str) -> None:
    with pytest.raises(SchemaRefused) as caught:
        normalize_schema(schema)
    assert caught.value.code == INVALID
    assert caught.value.origin.path == path


@pytest.mark.parametrize(
    ("schema", "keyword", "path"),
    [
        ({"properties": {"a": {"contains": {"const": 1}}}}, "contains", "#/properties/a/contains"),
        ({"items": {"items": {}, "type": "array", "uniqueItems": True}}, "uniqueItems", "#/items/uniqueItems"),
        ({"properties": {"a": {"not": {"type": "integer"}}}}, "type", "#/properties/a/not/type"),
        ({"properties": {"a": {"pattern": "(a)\\1"}}}, "pattern", "#/properties/a/pattern"),
        ({"patternProperties": {"\\bx": {}}}, "patternProperties", "#/patternProperties/\\bx"),
        ({"$ref": "https://x.test/schema"}, "$ref", "#/$ref"),
        ({"$schema": "https://x.test/meta"}, "$schema", "#/$schema"),
        ({"minimum": 2**60}, "minimum", "#/minimum"),
        ({"properties": {"a": {"const": 2**60}}}, "const", "#/properties/a/const"),
        (
            {"$schema": "http://json-schema.org/draft-07/schema#", "dependentRequired": {}},
            "dependentRequired",
            "#/dependentRequired",
        ),
        ({"allOf": [{"$id": "http://x.test/a", "$ref": "b"}]}, "$id", "#/allOf/0/$id"),
    ],
)
def test_what_cannot_be_enforced_is_named_with_its_path(schema: Any, keyword: str, path: str) -> None:
    with pytest.raises(SchemaRefused) as caught:
        normalize_schema(schema)
    assert (caught.value.code, caught.value.origin.keyword, caught.value.origin.path) == (UNSUPPORTED, keyword, path)
    assert caught.value.param == "schema"
    assert caught.value.under("response_format").param == "response_format"


def test_what_does_not_matter_is_not_refused() -> None:
    assert normalize_schema({"type": "string", "contains": {"const": 1}, "uniqueItems": True}) == {"type": "string"}
    assert normalize_schema({"properties": {"a": False}, "type": "null", "minProperties": 3}) == {"type": "null"}
    assert normalize_schema({"$defs": {"unused": {"pattern": "(a)\\1"}}, "type": "null"}) == {"type": "null"}
