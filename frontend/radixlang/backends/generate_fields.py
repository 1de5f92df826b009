"""What a program asks for in radixserve's own fields (``/generate``, SGLang's shape), and back again in refusals."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from radixlang.constraints import Choice, Constraint, Grammar, JsonSchema, Regex
from radixlang.errors import Refused
from radixlang.sampling import Sampling

# A program's name of a field -> the server's, where they differ.
_NAMES = {"max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens", "seed": "sampling_seed"}
_BACK = {server: name for name, server in _NAMES.items()}
_OUTSIDE = {"input_ids": "prompt", "top_logprobs_num": "logprobs"}
# How a program calls the constraints; under any of these names a server may refuse one.
_CONSTRAINTS = {JsonSchema: "json_schema", Regex: "regex", Grammar: "grammar", Choice: "choices"}
_CONSTRAINT_FIELDS = {"constraint", "json_schema", "regex", "ebnf"}
_PLACE = re.compile(r"(?:sampling_params(?:\[\d+\])?\.)?([^.\[]*)(.*)", re.DOTALL)
_META = re.compile(r"[\\.+*?()|\[\]{}^$#&~/-]")


def sampling_params(sampling: Sampling, constraint: Constraint | None) -> dict[str, Any]:
    """The ``sampling_params`` of a request; logprobs are asked for beside them."""
    given = finite(sampling.given())
    given.pop("logprobs", None)
    if "logit_bias" in given:
        given["logit_bias"] = {str(token): bias for token, bias in given["logit_bias"].items()}
    fields = {_NAMES.get(name, name): value for name, value in given.items()}
    match constraint:
        case JsonSchema(schema):
            fields["json_schema"] = schema_text(schema)
        case Regex(pattern):
            fields["regex"] = pattern
        case Grammar(source):
            fields["ebnf"] = source
        case Choice(choices):
            fields["regex"] = alternatives(choices)
    return fields


def finite(fields: dict[str, Any]) -> dict[str, Any]:
    """``fields``. Raises `Refused` for a number that JSON does not have, and that would be left out of it."""
    for name, value in fields.items():
        for number in value.values() if isinstance(value, dict) else (value,):
            if isinstance(number, float) and not math.isfinite(number):
                raise Refused(name, f"must be a finite number, not {number}", "invalid_value")
    return fields


def schema_text(schema: dict[str, Any] | bool) -> str:
    """The schema as it travels."""
    return msgspec.json.encode(schema).decode()


def alternatives(choices: tuple[str, ...]) -> str:
    """A regular expression that matches exactly ``choices``. Raises `Refused`."""
    if not choices:
        raise Refused("choices", "must hold at least one text", "invalid_value")
    if len(set(choices)) != len(choices):
        raise Refused("choices", "holds a text twice", "invalid_value")
    return "|".join(_META.sub(r"\\\g<0>", choice) for choice in choices)


@contextlib.contextmanager
def named_as_written(constraint: Constraint | None) -> Iterator[None]:
    """Refusals of the server's fields, or of the engine's, go on under the names that programs have for them."""
    try:
        yield
    except Refused as refused:
        raise Refused(written_name(refused.param, constraint), refused.message, refused.code) from refused


def written_name(param: str | None, constraint: Constraint | None) -> str | None:
    """A program's name of the field that the server calls ``param``."""
    found = None if param is None else _PLACE.fullmatch(param)
    if found is None:
        return param
    head, rest = found[1], found[2]
    if head in _CONSTRAINT_FIELDS and constraint is not None:
        # What comes after is in the words of the engine's or the server's structures, but for places in a schema.
        rest = re.sub(r"^\.(schema|pattern|text|choices)\b", "", rest)
        return _CONSTRAINTS[type(constraint)] + rest
    return _OUTSIDE.get(head, _BACK.get(head, head)) + rest
