"""How large a constraint may be before it is compiled at all.

The library's own limits bound most of the work, but not all of it: the time it takes grows faster than the number of
alternatives, properties and nested parts. These counts keep the worst case below a second on one slow core.
"""

from __future__ import annotations

import json
from typing import Any

from radixserve.constraints import Grammar
from radixserve.errors import InvalidRequest

MAX_SCHEMA_DEPTH = 100
MAX_SCHEMA_VALUES = 50_000
MAX_PROPERTIES = 2_000
MAX_ALTERNATIVES = 10_000
MAX_GRAMMAR_CHARACTERS = 128 * 1024


def parse_schema(text: str, param: str) -> Any:
    """``text`` as a JSON value of bounded size and depth; raises `InvalidRequest` that says what is too much."""
    try:
        schema = json.loads(text, parse_constant=_not_json)
    except RecursionError:
        raise too_large(param, f"is nested deeper than {MAX_SCHEMA_DEPTH} levels") from None
    except ValueError as error:
        raise InvalidRequest(param, f"is not valid JSON: {error}", "invalid_schema") from None
    if not isinstance(schema, (dict, bool)):
        raise InvalidRequest(param, "a schema is an object, true or false", "invalid_schema")
    check_schema_size(schema, param)
    return schema


def check_schema_size(schema: Any, param: str) -> None:
    """Raise `InvalidRequest` naming the keyword and the path at which ``schema`` is too large."""
    values = 0
    waiting: list[tuple[Any, int, str]] = [(schema, 1, "#")]
    while waiting:
        value, depth, path = waiting.pop()
        values += 1
        if values > MAX_SCHEMA_VALUES:
            raise too_large(param, f"holds more than {MAX_SCHEMA_VALUES} values")
        if depth > MAX_SCHEMA_DEPTH:
            raise too_large(param, f"{path[:200]}: is nested deeper than {MAX_SCHEMA_DEPTH} levels")
        if isinstance(value, dict):
            if len(value) > MAX_PROPERTIES:
                raise too_large(param, f"{path}: has {len(value)} entries, at most {MAX_PROPERTIES} are taken")
            waiting += [(item, depth + 1, f"{path}/{key}") for key, item in value.items()]
        elif isinstance(value, list):
            if len(value) > MAX_ALTERNATIVES:
                raise too_large(param, f"{path}: has {len(value)} entries, at most {MAX_ALTERNATIVES} are taken")
            waiting += [(item, depth + 1, f"{path}/{index}") for index, item in enumerate(value)]


def check_grammar_size(grammar: Grammar, param: str) -> None:
    """Raise `InvalidRequest` if the grammar's text is longer than is compiled."""
    if len(grammar.text) > MAX_GRAMMAR_CHARACTERS:
        raise too_large(
            param, f"has {len(grammar.text)} characters, at most {MAX_GRAMMAR_CHARACTERS} of a grammar are taken"
        )


def too_large(param: str, message: str) -> InvalidRequest:
    """The refusal of what exceeds a limit."""
    return InvalidRequest(param, message, "constraint_too_large")


def _not_json(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")
