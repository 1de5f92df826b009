"""Schemas of arguments: what is made of what a tool says."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from radixserve.chat.argument_schema import arguments_schema, embedded

OPEN: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}}
CLOSED = {**OPEN, "additionalProperties": False}


def test_listed_properties_are_all() -> None:
    assert arguments_schema(OPEN) == CLOSED
    nested = {"properties": {"list": {"type": "array", "items": OPEN}, "one": OPEN, "any": {"type": "object"}}}
    assert arguments_schema(nested) == {
        "type": "object",
        "properties": {"list": {"type": "array", "items": CLOSED}, "one": CLOSED, "any": {"type": "object"}},
        "additionalProperties": False,
    }
    assert OPEN == {"type": "object", "properties": {"a": {"type": "integer"}}}, "the caller's schema is left alone"


@pytest.mark.parametrize(
    "beside",
    [
        {"additionalProperties": True},
        {"additionalProperties": {"type": "string"}},
        {"patternProperties": {"^x": {}}},
        {"allOf": [{"properties": {"b": {}}}]},
        {"$ref": "#/$defs/x", "$defs": {"x": {"properties": {"b": {}}}}},
        {"required": ["b"]},
        {"required": 3},
        {"minProperties": 3},
        {"unevaluatedProperties": False},
    ],
)
def test_what_says_more_stays_open(beside: dict[str, Any]) -> None:
    schema = {**OPEN, **beside}
    assert arguments_schema(schema) == schema


def test_compositions_stay_open_inside() -> None:
    schema = {"type": "object", "allOf": [OPEN, {"properties": {"b": {}}}], "$defs": {"x": OPEN}}
    assert arguments_schema(schema) == schema
    assert arguments_schema({"properties": {}}) == {"type": "object", "properties": {}}


def test_what_is_closed_still_matches_the_schema() -> None:
    schema = {"type": "object", "properties": {"a": OPEN, "b": {"items": OPEN}}, "required": ["a"]}
    given, enforced = (jsonschema.Draft202012Validator(item) for item in (schema, arguments_schema(schema)))
    right: list[Any] = [{"a": {}}, {"a": {"a": 1}, "b": [{"a": 2}, {}]}]
    for value in right:
        assert enforced.is_valid(value) and given.is_valid(value)
    wrong: list[Any] = [{}, {"a": {"a": "x"}}, {"a": {}, "c": 1}, {"a": {"z": 1}}]
    for value in wrong:
        assert not enforced.is_valid(value)


def test_references_follow_their_schema() -> None:
    tree = {
        "$defs": {"node": {"properties": {"next": {"$ref": "#/$defs/node"}, "v": {"type": "integer"}}}},
        "type": "object",
        "properties": {
            "$ref": {"type": "string"},  # a property of that name
            "root": {"$ref": "#/$defs/node"},
            "self": {"$ref": "#"},
            "data": {"const": {"$ref": "#/kept"}},
            "list": {"anyOf": [{"$ref": "#/$defs/node"}, {"$id": "urn:x", "$ref": "#/own"}]},
        },
    }
    moved = embedded(tree, "#/items/0")
    assert moved["properties"]["root"] == {"$ref": "#/items/0/$defs/node"}
    assert moved["properties"]["self"] == {"$ref": "#/items/0"}
    assert moved["properties"]["$ref"] == {"type": "string"}
    assert moved["properties"]["data"] == tree["properties"]["data"]  # type: ignore[index]
    assert moved["properties"]["list"]["anyOf"] == [{"$ref": "#/items/0/$defs/node"}, {"$id": "urn:x", "$ref": "#/own"}]
    assert moved["$defs"]["node"]["properties"]["next"] == {"$ref": "#/items/0/$defs/node"}
