"""What a program asks for in the fields of OpenAI's API, and of the servers that know more than those."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

from radixlang.backends.base import Call
from radixlang.backends.generate_fields import alternatives, finite, schema_text
from radixlang.constraints import Choice, Constraint, Grammar, JsonSchema, Regex
from radixlang.errors import InvalidProgram, Unsupported

Endpoint = Literal["chat", "completions"]
Dialect = Literal["openai", "radixserve", "vllm", "sglang"]
DIALECTS: tuple[Dialect, ...] = get_args(Dialect)

_EVERYWHERE = {"temperature", "top_p", "frequency_penalty", "presence_penalty", "stop", "seed", "n"}
_LOCAL = {"top_k", "min_p", "repetition_penalty", "min_tokens", "ignore_eos", "stop_token_ids", "skip_special_tokens"}
_SAMPLING: dict[Dialect, set[str]] = {
    "openai": _EVERYWHERE,
    "radixserve": _EVERYWHERE | _LOCAL | {"finish_json"},
    "vllm": _EVERYWHERE | _LOCAL,
    "sglang": _EVERYWHERE | _LOCAL,
}


def request_fields(
    call: Call, endpoint: Endpoint, dialect: Dialect, *, limit_field: str, backend: str
) -> dict[str, Any]:
    """The fields of ``call`` beside model and prompt. ``limit_field``: what the output limit is called.

    Raises `Refused` for numbers that cannot be sent, and `Unsupported`, naming the primitive, for what no field of ``dialect`` at
    ``endpoint`` asks for. A priority is a hint and has no field.
    """
    if call.heal:
        raise Unsupported("heal", backend, "its server tokenizes every prompt anew, and the last token stays as it is")
    fields: dict[str, Any] = {}
    for name, value in finite(call.sampling.given()).items():
        if name == "max_tokens":
            fields[limit_field] = value
        elif name == "logit_bias":
            fields[name] = {str(token): bias for token, bias in value.items()}
        elif name == "logprobs":
            fields |= {"logprobs": True, "top_logprobs": value} if endpoint == "chat" else {"logprobs": value}
        elif name in _SAMPLING[dialect]:
            fields[name] = value
        else:
            raise Unsupported(name, backend, f"the API of {dialect} has no such field")
    if call.constraint is not None:
        fields |= _constraint(call.constraint, endpoint, dialect, backend)
    return fields


def check_dialect(dialect: str) -> None:
    """Raise `InvalidProgram` unless it is one."""
    if dialect not in DIALECTS:
        raise InvalidProgram("dialect", f"must be one of {', '.join(DIALECTS)}, not {dialect!r}")


def _constraint(constraint: Constraint, endpoint: Endpoint, dialect: Dialect, backend: str) -> Mapping[str, Any]:
    found = _CONSTRAINTS[dialect](constraint, endpoint)
    if found is None:
        name = {JsonSchema: "json_schema", Regex: "regex", Grammar: "grammar", Choice: "choices"}[type(constraint)]
        raise Unsupported(name, backend, f"the API of {dialect} has no field for it at {endpoint}")
    return found


def _openai(constraint: Constraint, endpoint: Endpoint) -> Mapping[str, Any] | None:
    if isinstance(constraint, JsonSchema) and isinstance(constraint.schema, dict) and endpoint == "chat":
        return _response_format(constraint.schema)
    return None


def _radixserve(constraint: Constraint, endpoint: Endpoint) -> Mapping[str, Any] | None:
    match constraint:
        case JsonSchema(schema):
            return {"json_schema": schema_text(schema)}
        case Regex(pattern):
            return {"regex": pattern}
        case Grammar(source):
            return {"ebnf": source}
        case Choice(choices):
            return {"structured_outputs": {"choice": choices}}


def _vllm(constraint: Constraint, endpoint: Endpoint) -> Mapping[str, Any] | None:
    match constraint:
        case JsonSchema(schema):
            return {"structured_outputs": {"json": schema}} if isinstance(schema, dict) else None
        case Regex(pattern):
            return {"structured_outputs": {"regex": pattern}}
        case Grammar(source):
            return {"structured_outputs": {"grammar": source}}
        case Choice(choices):
            return {"structured_outputs": {"choice": choices}}


def _sglang(constraint: Constraint, endpoint: Endpoint) -> Mapping[str, Any] | None:
    match constraint:
        case JsonSchema(schema):
            if not isinstance(schema, dict):
                return None
            return _response_format(schema) if endpoint == "chat" else {"json_schema": schema_text(schema)}
        case Regex(pattern):
            return {"regex": pattern}
        case Grammar(source):
            return {"ebnf": source}
        case Choice(choices):
            return {"regex": alternatives(choices)}


def _response_format(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    # Without ``strict`` OpenAI's service only tries.
    return {
        "response_format": {"type": "json_schema", "json_schema": {"name": "output", "schema": schema, "strict": True}}
    }


_CONSTRAINTS: dict[Dialect, Callable[[Constraint, Endpoint], Mapping[str, Any] | None]] = {
    "openai": _openai,
    "radixserve": _radixserve,
    "vllm": _vllm,
    "sglang": _sglang,
}
