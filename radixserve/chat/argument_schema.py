"""The JSON schemas of tools' arguments, as they are enforced."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Keywords whose value maps names to schemas, and keywords whose value is data and no schema.
_MAPS = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"}
_DATA = {"const", "enum", "default", "example", "examples"}
# Beside one of these, what an object may hold is said elsewhere too.
_OPENERS = {
    "$dynamicRef",
    "$ref",
    "additionalProperties",
    "allOf",
    "anyOf",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "if",
    "maxProperties",
    "minProperties",
    "not",
    "oneOf",
    "patternProperties",
    "propertyNames",
    "unevaluatedProperties",
}


def arguments_schema(parameters: Mapping[str, Any] | None) -> dict[str, Any]:
    """The schema of a function's arguments, which are always an object.

    Without ``parameters`` a function takes none, so its arguments are ``{}``; an empty schema takes any object.
    Where properties are listed and nothing is said of others, others are left out (see `_closed`).
    """
    if parameters is None:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    schema = _closed(parameters)
    return schema if schema.get("type") == "object" else {"type": "object", **schema}


def embedded(schema: Any, pointer: str) -> Any:
    """A copy of ``schema`` for the place ``pointer`` (``#/...``) of a document: references to ``#`` are moved there.

    Only references to the document itself are; a schema that has an ``$id`` keeps a document of its own.
    """
    if isinstance(schema, list):
        return [embedded(item, pointer) for item in schema]
    if not isinstance(schema, dict) or "$id" in schema:
        return schema
    copy: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "$ref" and isinstance(value, str) and (value == "#" or value.startswith("#/")):
            copy[key] = pointer + value[1:]
        elif key in _DATA:
            copy[key] = value
        elif key in _MAPS and isinstance(value, dict):
            copy[key] = {name: embedded(item, pointer) for name, item in value.items()}
        else:
            copy[key] = embedded(value, pointer)
    return copy


def _closed(schema: Mapping[str, Any]) -> dict[str, Any]:
    """``schema`` with ``additionalProperties: false`` where it lists properties and says nothing of others.

    By the letter such an object takes anything beside them, and no author of a tool means that: a small model that may go
    on inventing arguments does. What is left still matches the schema as it was given. Only objects that are reached by
    properties and items alone are closed, since parts of a composition must stay open for one another.
    """
    closed = dict(schema)
    properties, items = schema.get("properties"), schema.get("items")
    if isinstance(properties, Mapping):
        closed["properties"] = {
            name: _closed(item) if isinstance(item, Mapping) else item for name, item in properties.items()
        }
        if properties and not _OPENERS.intersection(schema) and _names_all(schema, properties):
            closed["additionalProperties"] = False
    if isinstance(items, Mapping):
        closed["items"] = _closed(items)
    return closed


def _names_all(schema: Mapping[str, Any], properties: Mapping[str, Any]) -> bool:
    """Whether every property that is required is also listed."""
    required = schema.get("required", ())
    return isinstance(required, list | tuple) and all(name in properties for name in required)
