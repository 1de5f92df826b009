"""JSON values as JSON Schema sees them: exact numbers, equality, size, paths."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

from radixserve.grammar.schema.limits import Limits, too_complex
from radixserve.grammar.schema.refusal import INVALID, Origin, SchemaRefused

KINDS = ("null", "boolean", "number", "string", "array", "object")


def escape_token(token: str) -> str:
    """A key as a token of a JSON pointer."""
    return token.replace("~", "~0").replace("/", "~1")


def kind_of(value: object) -> str:
    """The JSON type of ``value``, one of `KINDS`."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, (int, float)):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"


def exact(number: int | float) -> Fraction:
    """The decimal number that was written, not the binary one nearest to it."""
    return Fraction(number) if isinstance(number, int) else Fraction(Decimal(repr(number)))


def plain(number: Fraction) -> int | float:
    """The JSON number for ``number``: an int where it is one."""
    return number.numerator if number.denominator == 1 else float(number)


def identity(value: object) -> object:
    """Something hashable that is equal for values that JSON Schema calls equal: 1 and 1.0 are, 1 and true are not."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return (kind_of(value), value)
    if isinstance(value, (int, float)):
        return ("number", exact(value))
    if isinstance(value, list):
        return ("array", tuple(identity(item) for item in value))
    assert isinstance(value, dict)
    return ("object", frozenset((key, identity(item)) for key, item in value.items()))


def check_size(schema: object, limits: Limits) -> None:
    """Refuse what is no JSON, or beyond the limits, in time linear in the limits whatever the value is."""
    values = characters = 0
    waiting: list[tuple[object, str, int]] = [(schema, "#", 0)]
    while waiting:
        value, path, depth = waiting.pop()
        values += 1
        if depth > limits.depth or len(path) > limits.path_length:
            raise too_complex(
                f"nested deeper than {limits.depth}, or under keys that are too long", Origin("schema", path[:200])
            )
        if isinstance(value, dict):
            if not all(isinstance(key, str) for key in value):
                raise SchemaRefused(Origin("schema", path), "keys are strings", INVALID)
            characters += sum(map(len, value))
            values += len(value)
            waiting += [(part, f"{path}/{escape_token(key)}", depth + 1) for key, part in value.items()]
        elif isinstance(value, list):
            values += len(value)
            if values <= limits.values:
                waiting += [(part, f"{path}/{index}", depth + 1) for index, part in enumerate(value)]
        elif isinstance(value, str):
            characters += len(value)
            if any("\ud800" <= char <= "\udfff" for char in value):
                raise SchemaRefused(Origin("schema", path), "a string holds half of a surrogate pair", INVALID)
        elif isinstance(value, float):
            if not math.isfinite(value):
                raise SchemaRefused(Origin("schema", path), "a number is not finite", INVALID)
        elif isinstance(value, int):
            if abs(value) >= 10**limits.number_digits:
                raise too_complex(f"a number has more than {limits.number_digits} digits", Origin("schema", path))
        elif value is not None:
            raise SchemaRefused(Origin("schema", path), f"{type(value).__name__} is not a JSON value", INVALID)
        if values > limits.values * 2 or characters > limits.characters:
            raise too_complex(f"more than {limits.values * 2} values or {limits.characters} characters")
