"""The report on a schema."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator, FormatChecker

from radixserve.grammar.schema.dialect import CONSTRAINING
from radixserve.grammar.schema.limits import Limits
from radixserve.grammar.schema.normalizer import normalize_schema
from radixserve.grammar.schema.report import check_schema
from radixserve.grammar.schema.strictness import NATIVE, NOTES, REWRITTEN

ORDER: dict[str, Any] = {
    "title": "order",
    "type": "object",
    "properties": {
        "id": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"},
        "placed": {"type": "string", "format": "date-time"},
        "total": {"type": "number", "exclusiveMinimum": 0, "multipleOf": 0.01},
        "lines": {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/line"}},
        "state": {"enum": ["open", "paid"]},
    },
    "required": ["id", "lines", "total"],
    "dependentRequired": {"state": ["placed"]},
    "$defs": {"line": {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}, "required": ["n"]}},
}


def test_a_schema_that_is_supported() -> None:
    report = check_schema(ORDER)
    assert report.supported
    assert report.refused == []
    assert {"dependentRequired", "format", "pattern", "$ref"} <= set(report.keywords)
    assert report.notes == ["$defs", "title"]
    assert report.unknown == []
    assert check_schema({"minLenght": 3}).unknown == ["minLenght"]
    paths = {item.path: item.how for item in report.rewritten}
    assert paths["#/properties/placed/format"] == "written as a pattern"
    assert "#/properties/id/type" not in paths
    Draft202012Validator(ORDER, format_checker=FormatChecker()).validate(report.example)
    assert report.normalized == normalize_schema(ORDER)
    assert msgspec.json.decode(msgspec.json.encode(report))["supported"] is True


def test_all_refusals_are_found() -> None:
    schema: dict[str, Any] = {
        "properties": {
            "a": {"contains": {"const": 1}},
            "b": {"format": "regex"},
            "c": {"type": "text"},
            "d": {"allOf": [{"pattern": "(a)\\1"}]},
        },
    }
    report = check_schema(schema)
    assert not report.supported
    assert report.example is None
    assert {(item.keyword, item.path, item.code) for item in report.refused} == {
        ("contains", "#/properties/a/contains", "unsupported_schema"),
        ("format", "#/properties/b/format", "unsupported_schema"),
        ("type", "#/properties/c/type", "invalid_schema"),
        ("pattern", "#/properties/d/allOf/0/pattern", "unsupported_schema"),
    }
    assert not {item.path for item in report.refused} & {item.path for item in report.rewritten}
    assert "contains" in schema["properties"]["a"], "the caller's schema is left alone"


@pytest.mark.parametrize(
    ("schema", "code"),
    [(False, "unsatisfiable_schema"), (3, "invalid_schema"), ({"enum": list(range(30_000))}, "schema_too_complex")],
)
def test_a_schema_that_is_none(schema: Any, code: str) -> None:
    report = check_schema(schema)
    assert [item.code for item in report.refused] == [code]


def test_many_refusals_end() -> None:
    report = check_schema({"properties": {f"p{index}": {"format": "color"} for index in range(50)}})
    assert len(report.refused) == 8


def test_limits_hold_for_all_attempts_together() -> None:
    properties = {f"p{index}": {"format": "color", "anyOf": [{"minimum": n} for n in range(40)]} for index in range(8)}
    report = check_schema({"properties": properties}, limits=Limits(shapes=400))
    assert report.refused[-1].code == "schema_too_complex"


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "integer", "minimum": 7, "multipleOf": 5},
        {"type": "number", "exclusiveMinimum": 0.5, "exclusiveMaximum": 0.75},
        {"type": "number", "maximum": -3.5},
        {"type": "string", "minLength": 3, "maxLength": 5, "pattern": "[0-9]$"},
        {"type": "string", "format": "email"},
        {
            "type": "object",
            "minProperties": 1,
            "patternProperties": {"^x[0-9]$": {"type": "null"}},
            "additionalProperties": False,
        },
        {"type": "object", "propertyNames": {"minLength": 3}, "minProperties": 1},
        {"type": "array", "minItems": 2, "prefixItems": [{"const": 1}], "items": {"type": "boolean"}},
        {
            "$ref": "#/$defs/t",
            "$defs": {"t": {"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/t"}, "minItems": 2}, {"const": 1}]}},
        },
        {"type": "object", "properties": {"a": {"not": {"enum": ["a", "text"]}, "type": "string"}}, "required": ["a"]},
    ],
)
def test_examples_validate(schema: Any) -> None:
    report = check_schema(schema)
    assert report.supported, report.refused
    Draft202012Validator(schema, format_checker=FormatChecker()).validate(report.example)


def test_every_keyword_has_a_row() -> None:
    assert NATIVE | set(REWRITTEN) == CONSTRAINING
    assert not NATIVE & set(REWRITTEN)
    assert not NOTES & CONSTRAINING
