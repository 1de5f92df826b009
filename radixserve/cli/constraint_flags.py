"""The flags that make a constraint: one for each kind, of which at most one may be given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from radixserve.constraints import Choice, Constraint, Grammar, JsonObject, JsonSchema, Regex
from radixserve.errors import InvalidRequest

CONSTRAINT_HELP: dict[str, str] = {
    "json_schema": "The output is a JSON document of this schema: a file, or the schema itself.",
    "json_object": "The output is a JSON object.",
    "regex": "The whole output matches this regular expression.",
    "grammar": "The output is a sentence of this grammar (Lark or GBNF): a file, or the grammar itself.",
    "choice": "The output is one of the texts given so; to be repeated.",
}

CONSTRAINT_TYPES: dict[str, Any] = {
    "json_schema": str,
    "json_object": bool,
    "regex": str,
    "grammar": str,
    "choice": tuple[str, ...],
}

_MAKERS: dict[str, Callable[[Any], Constraint]] = {
    "json_schema": lambda value: JsonSchema(_text("json_schema", value)),
    "json_object": lambda value: JsonObject(),
    "regex": Regex,
    "grammar": lambda value: Grammar(_text("grammar", value)),
    "choice": Choice,
}


def constraint_of(given: Mapping[str, Any]) -> Constraint | None:
    """The constraint that the given flags ask for; raises `InvalidRequest` for more than one, or a file that is not there."""
    named = [name for name, value in given.items() if value not in (None, False)]
    if len(named) > 1:
        flags = " and ".join("--" + name.replace("_", "-") for name in named)
        raise InvalidRequest("constraint", f"{flags} cannot be given together")
    return _MAKERS[named[0]](given[named[0]]) if named else None


def _text(name: str, value: str) -> str:
    """``value`` itself where it is a schema or a grammar, else what the file of that name holds."""
    if "{" in value or ":" in value or "\n" in value:
        return value
    try:
        return Path(value).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(name, f"neither a text nor a readable file: {error}") from None
