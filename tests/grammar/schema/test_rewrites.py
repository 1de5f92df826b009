"""One proof for each rule: known documents pass, known others do not, by the engine and by an independent validator."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator, FormatChecker

from radixserve.grammar.schema.dialect import Draft
from radixserve.grammar.schema.normalizer import normalize_schema
from tests.grammar.schema.acceptance import accepts, compile_schema

OPEN = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}

# name: schema, valid documents, invalid documents
RULES: dict[str, tuple[Any, list[Any], list[Any]]] = {
    "keywords apply to their type only": ({"minLength": 2}, ["ab", 1, None, []], ["a", ""]),
    "allOf of bounds": ({"allOf": [{"minimum": 1}, {"maximum": 3}, {"type": "integer"}]}, [1, 3], [0, 4, 1.5, "a"]),
    "allOf of steps": ({"type": "integer", "allOf": [{"multipleOf": 4}, {"multipleOf": 6}]}, [0, 12, -24], [4, 6]),
    "allOf of patterns": (
        {"type": "string", "allOf": [{"pattern": "^a"}, {"pattern": "b$"}]},
        ["ab", "axb"],
        ["a", "b"],
    ),
    "allOf of properties": (
        {
            "allOf": [
                OPEN,
                {"required": ["a"], "additionalProperties": {"type": "null"}, "properties": {"a": {"minimum": 1}}},
            ]
        },
        [{"a": 1}, {"a": 1, "c": None}],
        [{}, {"a": 0}, {"a": 1, "b": "x"}, {"a": 1, "c": 1}],
    ),
    "allOf of items": (
        {"allOf": [{"prefixItems": [{"type": "integer"}]}, {"items": {"minimum": 3}, "maxItems": 2, "type": "array"}]},
        [[], [3], [4, 3.5], [3, "x"]],
        [["a"], [1], [3, 1], [3, 3, 3]],
    ),
    "anyOf": ({"anyOf": [{"type": "null"}, {"type": "integer", "minimum": 2}]}, [None, 2], [1, "a"]),
    "oneOf of overlapping ranges": (
        {"type": "integer", "oneOf": [{"maximum": 5}, {"minimum": 3}]},
        [2, 6],
        [3, 4, 5],
    ),
    "oneOf of overlapping objects": (
        {"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
        [{"a": 1}, {"b": 1}, {"a": 1, "c": 2}],
        [{}, {"a": 1, "b": 1}],
    ),
    "oneOf of closed objects": (
        {
            "oneOf": [
                {"type": "object", "properties": {"a": {}}, "additionalProperties": False},
                {"type": "object", "properties": {"b": {}}, "additionalProperties": False},
            ]
        },
        [{"a": 1}, {"b": 1}],
        [{}, {"a": 1, "b": 1}, {"c": 1}],
    ),
    "oneOf that is told apart by a constant": (
        {"oneOf": [{"properties": {"t": {"const": n}, n: {}}, "required": ["t", n]} for n in ("x", "y")]},
        [{"t": "x", "x": 1}, {"t": "y", "y": 1}],
        [{"t": "x", "y": 1}, {"t": "z", "x": 1, "y": 1}],
    ),
    "not of types": ({"not": {"type": ["string", "object"]}}, [1, None, [], True], ["a", {}]),
    "not of values": ({"not": {"enum": ["ab", 2, None, True]}}, ["a", "abc", 1, 3, False, []], ["ab", 2, None, True]),
    "not of an array and an object": (
        {"not": {"enum": [[1], {"a": 1}]}},
        [[], [2], [1, 1], {}, {"a": 2}, {"a": 1, "b": 1}],
        [[1], {"a": 1}],
    ),
    "not of a pattern": ({"type": "string", "not": {"pattern": "^a+$"}}, ["", "b", "ab"], ["a", "aa"]),
    "not of a length": ({"type": "string", "not": {"minLength": 2}}, ["", "a"], ["ab"]),
    "not of required": ({"type": "object", "not": {"required": ["a"]}}, [{}, {"b": 1}], [{"a": 1}]),
    "not of properties": (
        {"type": "object", "not": {"properties": {"a": {"type": "null"}}}},
        [{"a": 1}],
        [{}, {"a": None}],
    ),
    "not of additionalProperties": (
        {"type": "object", "not": {"properties": {"a": {}}, "additionalProperties": False}},
        [{"b": 1}, {"a": 1, "b": 1}],
        [{}, {"a": 1}],
    ),
    "not of not": ({"not": {"not": {"type": "null"}}}, [None], [1]),
    "if, then and else": (
        {
            "type": "object",
            "if": {"properties": {"k": {"const": 1}}, "required": ["k"]},
            "then": {"required": ["x"]},
            "else": {"required": ["y"]},
        },
        [{"k": 1, "x": 0}, {"k": 2, "y": 0}, {"y": 0}],
        [{"k": 1, "y": 0}, {"k": 2, "x": 0}, {}],
    ),
    "then without if": ({"then": False, "else": False, "type": "null"}, [None], [1]),
    "dependentRequired": (
        {"type": "object", "dependentRequired": {"a": ["b"]}},
        [{}, {"b": 1}, {"a": 1, "b": 1}],
        [{"a": 1}],
    ),
    "dependentSchemas": (
        {"type": "object", "dependentSchemas": {"a": {"properties": {"b": {"type": "integer"}}}}},
        [{"b": "x"}, {"a": 1, "b": 1}],
        [{"a": 1, "b": "x"}],
    ),
    "patternProperties that overlap": (
        {
            "type": "object",
            "patternProperties": {"^a": {"type": "integer"}, "b$": {"minimum": 3}},
            "additionalProperties": False,
        },
        [{"a": 1}, {"b": 3}, {"ab": 3}],
        [{"ab": 1}, {"ab": 3.5}, {"c": 1}, {"b": 1}],
    ),
    "patternProperties beside properties": (
        {"type": "object", "properties": {"ax": {"minimum": 1}}, "patternProperties": {"^a": {"type": "integer"}}},
        [{"ax": 1}, {"ab": 0}, {"c": "x"}],
        [{"ax": 0}, {"ax": 1.5}, {"ab": "x"}],
    ),
    "additionalProperties with a schema": (
        {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "string"}},
        [{"a": 1, "b": "x"}, {"aa": "x"}],
        [{"a": "x"}, {"b": 1}],
    ),
    "propertyNames with a length": (
        {"type": "object", "propertyNames": {"maxLength": 2}, "properties": {"abc": {}}},
        [{}, {"ab": 1}],
        [{"abc": 1}, {"abcd": 1}],
    ),
    "propertyNames with values": (
        {"type": "object", "propertyNames": {"enum": ["a", "b"]}},
        [{}, {"a": 1, "b": 2}],
        [{"c": 1}],
    ),
    "propertyNames that are not something": (
        {"type": "object", "propertyNames": {"not": {"const": "a"}}},
        [{"b": 1}],
        [{"a": 1}],
    ),
    "minProperties with optional ones": (
        {
            "type": "object",
            "properties": {"a": {}, "b": {}, "c": {}},
            "additionalProperties": False,
            "minProperties": 2,
        },
        [{"a": 1, "c": 1}, {"b": 1, "c": 1}, {"a": 1, "b": 1, "c": 1}],
        [{}, {"b": 1}],
    ),
    "maxProperties with optional ones": (
        {"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "required": ["b"], "maxProperties": 2},
        [{"b": 1}, {"b": 1, "c": 1}, {"b": 1, "x": 1}],
        [{"a": 1, "b": 1, "c": 1}, {"a": 1, "b": 1, "x": 1}, {}],
    ),
    "minProperties of one, open": ({**OPEN, "minProperties": 1}, [{"a": 1}, {"c": 1}], [{}]),
    "contains in a bounded array": (
        {"type": "array", "contains": {"type": "string"}, "minContains": 2, "maxContains": 2, "maxItems": 3},
        [["a", "b"], [1, "a", "b"], ["a", 1, "b"]],
        [[], ["a"], ["a", "b", "c"], [1, "a"]],
    ),
    "contains of nothing": (
        {"type": "array", "contains": {"type": "string"}, "minContains": 0, "maxContains": 0},
        [[], [1]],
        [["a"], [1, "a"]],
    ),
    "contains of anything": (
        {"type": "array", "contains": {}, "minContains": 2, "maxContains": 3},
        [[1, 2], [1, 2, 3]],
        [[1], [1, 2, 3, 4]],
    ),
    "uniqueItems of few values": (
        {"type": "array", "items": {"enum": [1, 2, None]}, "uniqueItems": True},
        [[], [1], [None, 2], [2, 1, None]],
        [[1, 1], [1, 2, 1]],
    ),
    "uniqueItems that differ anyway": (
        {"type": "array", "prefixItems": [{"type": "string"}, {"type": "null"}], "items": False, "uniqueItems": True},
        [["a", None]],
        [[1, None], ["a", None, 1]],
    ),
    "unevaluatedProperties across allOf": (
        {
            "allOf": [{"properties": {"a": {}}}],
            "properties": {"b": {}},
            "unevaluatedProperties": False,
            "type": "object",
        },
        [{"a": 1, "b": 1}],
        [{"c": 1}],
    ),
    "unevaluatedProperties depend on what held": (
        {
            "type": "object",
            "anyOf": [
                {"properties": {"a": {"const": 1}}, "required": ["a"]},
                {"properties": {"b": {"const": 2}}, "required": ["b"]},
            ],
            "unevaluatedProperties": False,
        },
        [{"a": 1}, {"b": 2}, {"a": 1, "b": 2}],
        [{"a": 1, "b": 3}, {"a": 2, "b": 2}, {"a": 1, "c": 1}],
    ),
    "unevaluatedItems after prefixItems": (
        {"type": "array", "allOf": [{"prefixItems": [{"type": "integer"}]}], "unevaluatedItems": {"type": "string"}},
        [[1], [1, "a"]],
        [[1, 2], ["a"]],
    ),
    "unevaluatedItems and contains": (
        {"type": "array", "maxItems": 2, "contains": {"const": 1}, "unevaluatedItems": {"type": "null"}},
        [[1], [None, 1], [1, 1]],
        [[], [None], [1, 2]],
    ),
    "references with siblings": (
        {"$ref": "#/$defs/n", "maximum": 3, "$defs": {"n": {"type": "integer", "minimum": 1}}},
        [1, 3],
        [0, 4, "a"],
    ),
    "recursion with siblings": (
        {
            "$ref": "#/$defs/tree",
            "$defs": {
                "tree": {
                    "type": "object",
                    "properties": {
                        "v": {},
                        "kids": {"type": "array", "items": {"$ref": "#/$defs/tree", "required": ["v"]}},
                    },
                    "additionalProperties": False,
                }
            },
        },
        [{}, {"kids": [{"v": 1, "kids": [{"v": 2}]}]}],
        [{"kids": [{}]}, {"kids": [{"v": 1, "kids": [{}]}]}, {"x": 1}],
    ),
    "recursion under names and patterns": (
        {
            "$ref": "#/$defs/t",
            "$defs": {
                "t": {
                    "type": ["object", "null"],
                    "properties": {"a": {"$ref": "#/$defs/t"}},
                    "patternProperties": {"^a": {"$ref": "#/$defs/t"}},
                    "additionalProperties": {"$ref": "#/$defs/t"},
                }
            },
        },
        [None, {"a": {"b": None, "ab": {}}}],
        [1, {"a": 1}, {"b": {"ab": 1}}],
    ),
    "anchors and embedded resources": (
        {
            "$id": "https://x.test/root",
            "$ref": "item#here",
            "$defs": {"i": {"$id": "item", "$defs": {"h": {"$anchor": "here", "type": "null"}}}},
        },
        [None],
        [1],
    ),
    "dynamic references": (
        {
            "$id": "https://x.test/strict",
            "$dynamicAnchor": "node",
            "$ref": "tree",
            "unevaluatedProperties": False,
            "$defs": {
                "tree": {
                    "$id": "tree",
                    "$dynamicAnchor": "node",
                    "type": "object",
                    "properties": {"v": {"type": "integer"}, "kid": {"$dynamicRef": "#node"}},
                }
            },
        },
        [{}, {"v": 1, "kid": {"v": 2}}],
        [{"x": 1}, {"kid": {"x": 1}}, {"kid": {"v": "a"}}],
    ),
    "formats": ({"type": "string", "format": "date"}, ["2024-02-29"], ["2023-02-29", "2024-2-1", "x"]),
    "lookaheads at the start": (
        {"type": "string", "pattern": "^(?=.*[0-9])(?!x)[a-z0-9]{2,4}$"},
        ["a1", "1ab"],
        ["ab", "x1", "a", "1"],
    ),
    "what can never end is left out": (
        {
            "anyOf": [{"$ref": "#/$defs/loop"}, {"type": "null"}],
            "$defs": {"loop": {"type": "array", "items": {"$ref": "#/$defs/loop"}, "minItems": 1}},
        },
        [None],
        [[], [[]]],
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_rule(name: str) -> None:
    schema, valid, invalid = RULES[name]
    original = Draft202012Validator(schema, format_checker=FormatChecker())
    normalized = normalize_schema(schema, draft=Draft.DRAFT_2020)
    rewritten = Draft202012Validator(normalized)
    matcher = compile_schema(normalized)
    for documents, expected in ((valid, True), (invalid, False)):
        for document in documents:
            text = json.dumps(document)
            assert original.is_valid(document) == expected, f"the oracle disagrees about {text}"
            assert rewritten.is_valid(document) == expected, f"the rewritten schema is wrong about {text}"
            assert accepts(matcher, document) == expected, f"the engine is wrong about {text}"


# draft, schema, valid documents, invalid documents
SPELLINGS: dict[str, tuple[Draft, Any, list[Any], list[Any]]] = {
    "exclusiveMinimum as a flag": (Draft.DRAFT_4, {"minimum": 3, "exclusiveMinimum": True}, [4, 3.5], [3, 2]),
    "exclusiveMaximum as a flag": (Draft.DRAFT_4, {"maximum": 3, "exclusiveMaximum": True}, [2], [3]),
    "id": (
        Draft.DRAFT_4,
        {"id": "http://x.test/a", "allOf": [{"$ref": "b"}], "definitions": {"b": {"id": "b", "type": "null"}}},
        [None],
        [1],
    ),
    "items as an array": (
        Draft.DRAFT_7,
        {"items": [{"type": "integer"}], "additionalItems": {"type": "string"}, "type": "array"},
        [[1, "a"]],
        [["a"], [1, 2]],
    ),
    "additionalItems without such items": (Draft.DRAFT_7, {"additionalItems": False, "type": "array"}, [[1]], [1]),
    "dependencies": (
        Draft.DRAFT_7,
        {"type": "object", "dependencies": {"a": ["b"], "c": {"required": ["d"]}}},
        [{}, {"a": 1, "b": 1}, {"c": 1, "d": 1}],
        [{"a": 1}, {"c": 1}],
    ),
    "$ref hides its siblings": (
        Draft.DRAFT_7,
        {"$ref": "#/definitions/a", "maximum": 1, "definitions": {"a": {"type": "integer"}}},
        [5],
        ["a"],
    ),
    "$recursiveRef": (
        Draft.DRAFT_2019,
        {
            "$recursiveAnchor": True,
            "type": "object",
            "properties": {"k": {"$recursiveRef": "#"}},
            "additionalProperties": False,
        },
        [{}, {"k": {"k": {}}}],
        [{"x": 1}, {"k": {"x": 1}}],
    ),
    "all of them, where no draft is named": (
        Draft.MIXED,
        {
            "type": "array",
            "items": [{"minimum": 1, "exclusiveMinimum": True}, {"$ref": "#/definitions/s"}],
            "definitions": {"s": {"dependencies": {"a": ["b"]}}},
        },
        [[2, {"a": 1, "b": 1}]],
        [[1], [2, {"a": 1}]],
    ),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_spelling_of_a_draft(name: str) -> None:
    draft, schema, valid, invalid = SPELLINGS[name]
    matcher = compile_schema(normalize_schema(schema, draft=draft))
    assert [document for document in valid if not accepts(matcher, document)] == []
    assert [document for document in invalid if accepts(matcher, document)] == []


def test_the_schema_says_which_draft_it_is_written_in() -> None:
    schema = {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "minimum": 3,
        "exclusiveMinimum": True,
        "type": "integer",
    }
    matcher = compile_schema(normalize_schema(schema))
    assert accepts(matcher, 4)
    assert not accepts(matcher, 3)


def test_properties_keep_the_order_of_the_schema() -> None:
    schema = {"type": "object", "properties": {"z": {}, "a": {}, "m": {}}, "required": ["m", "q", "a"]}
    normalized = normalize_schema(schema)
    assert isinstance(normalized, dict)
    assert list(normalized["properties"]) == ["z", "a", "m", "q"]


def test_the_schema_of_the_caller_is_left_alone() -> None:
    schema = {"allOf": [{"properties": {"a": {"$ref": "#"}}}], "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}
    before = json.dumps(schema)
    normalize_schema(schema)
    assert json.dumps(schema) == before


def test_the_same_schema_is_always_rewritten_alike() -> None:
    schema = {
        "patternProperties": {"^a": {}, "b$": {"type": "null"}},
        "propertyNames": {"enum": ["ab", "b", "c"]},
        "not": {"required": ["c"]},
    }
    assert json.dumps(normalize_schema(schema)) == json.dumps(normalize_schema(json.loads(json.dumps(schema))))
