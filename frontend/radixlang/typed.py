"""Types of variables: what an output must look like to be a value of a type, and how it is read."""

from __future__ import annotations

import enum
import functools
import json
import sys
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

from radixlang.constraints import Choice, Constraint, JsonSchema, Regex
from radixlang.errors import InvalidProgram

# Makes a value of an output; raises ValueError where the output is none.
Reader = Callable[[str], Any]

INT = r"-?(0|[1-9][0-9]*)"
FLOAT = INT + r"(\.[0-9]+)?([eE][-+]?[0-9]+)?"


def typed(dtype: Any, *, json: bool = False) -> tuple[Constraint, Reader]:
    """The constraint and the reader of ``dtype``.

    int, float, bool, a `Literal` or an enum of texts or whole numbers are written plainly (``True``, ``yes``), everything else as JSON;
    with ``json`` all are. A mapping or bool is a JSON schema with ``json``. Raises `InvalidProgram` for what has no JSON form.
    """
    if json and isinstance(dtype, Mapping | bool | str):
        return JsonSchema(json_schema_of(dtype)), _read_json
    try:
        hash(dtype)
    except TypeError:
        return _of_type(dtype, json)
    return _remembered(dtype, json)


def _of_type(dtype: Any, json: bool) -> tuple[Constraint, Reader]:
    if not json and (plain := _plain(dtype)) is not None:
        return plain
    if hasattr(dtype, "model_json_schema") and hasattr(dtype, "model_validate_json"):
        return JsonSchema(closed(dtype.model_json_schema())), dtype.model_validate_json
    try:
        schema = msgspec.json.schema(dtype)
        read: Reader = msgspec.json.Decoder(dtype).decode
    except TypeError as error:
        if (adapted := _adapted(dtype)) is None:
            raise InvalidProgram("dtype", f"{dtype!r} has no form in JSON: {error}") from error
        schema, read = adapted
    return JsonSchema(closed(schema)), read


def _adapted(dtype: Any) -> tuple[dict[str, Any], Reader] | None:
    """Schema and reader of a type with pydantic models inside it; None: it has none, or no form in JSON for pydantic either."""
    pydantic = sys.modules.get("pydantic")
    if pydantic is None or not _mentions_model(dtype):
        return None
    try:
        adapter = pydantic.TypeAdapter(dtype)
        return adapter.json_schema(), adapter.validate_json
    except pydantic.errors.PydanticUserError:
        return None


def _mentions_model(dtype: Any) -> bool:
    inner = (*typing.get_args(dtype), *getattr(dtype, "__annotations__", {}).values())
    return hasattr(dtype, "model_validate_json") or any(map(_mentions_model, inner))


# Schemas take long to make, and programs ask for the same types again and again.
_remembered = functools.lru_cache(maxsize=256)(_of_type)


def json_schema_of(schema: str | Mapping[str, Any] | bool) -> dict[str, Any] | bool:
    """A JSON schema, parsed if it is a text. Raises `InvalidProgram`."""
    content: Any = schema
    if isinstance(schema, str):
        try:
            content = json.loads(schema)
        except ValueError as error:
            raise InvalidProgram("json_schema", f"is no JSON: {error}") from error
    if not isinstance(content, Mapping | bool):
        raise InvalidProgram("json_schema", f"is an object or a bool, not {type(content).__name__}")
    return content if isinstance(content, bool) else dict(content)


def closed(schema: Any) -> Any:
    """``schema`` without other properties than the named ones, in all of its objects: a type has no others."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    content = {key: _closed_below(key, value) for key, value in schema.items()}
    if content.get("type") == "object" and "properties" in content:
        content.setdefault("additionalProperties", False)
    return content


def _closed_below(key: str, value: Any) -> Any:
    if key in ("properties", "$defs"):
        return {name: closed(schema) for name, schema in value.items()}
    return value if key in ("default", "enum", "const", "examples") else closed(value)


def _plain(dtype: Any) -> tuple[Constraint, Reader] | None:
    """Types that need no JSON; None: not one of them."""
    if dtype is int:
        return Regex(INT), int
    if dtype is float:
        return Regex(FLOAT), float
    if dtype is bool:
        return _one_of({"True": True, "False": False})
    if typing.get_origin(dtype) is Literal:
        return _one_of_values({value: value for value in typing.get_args(dtype)})
    if isinstance(dtype, type) and issubclass(dtype, enum.Enum):
        return _one_of_values({member.value: member for member in dtype})
    return None


def _one_of_values(values: Mapping[Any, Any]) -> tuple[Constraint, Reader] | None:
    if not values or any(
        isinstance(value, bool) or not isinstance(value, str | int) or value == "" for value in values
    ):
        return None
    spelled = {str(value): meant for value, meant in values.items()}
    return _one_of(spelled) if len(spelled) == len(values) else None


def _one_of(spelled: Mapping[str, Any]) -> tuple[Constraint, Reader]:
    def read(text: str) -> Any:
        if text not in spelled:
            raise ValueError(f"is none of {', '.join(map(repr, spelled))}")
        return spelled[text]

    return Choice(tuple(spelled)), read


def _read_json(text: str) -> Any:
    return json.loads(text)
