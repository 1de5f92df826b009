"""Requests that no honest client sends: every one of them must be refused, by OpenAI's error body and a status in 4xx."""

from __future__ import annotations

import functools
import gzip
import json
import types
import typing
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from radixserve.server.endpoints import Endpoint
from radixserve.server.routes import ENDPOINTS

BODY_LIMIT = 1 << 20
CONTEXT = 512

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
EMBEDDINGS = "/v1/embeddings"
RESPONSES = "/v1/responses"
GENERATE = "/generate"
HI = [{"role": "user", "content": "hi"}]

# What each endpoint takes; each hostile request is one of these with one thing wrong.
HONEST: dict[str, dict[str, Any]] = {
    CHAT: {"messages": HI, "max_tokens": 2},
    COMPLETIONS: {"prompt": "hi", "max_tokens": 2},
    EMBEDDINGS: {"input": "hi"},
    RESPONSES: {"input": "hi", "max_output_tokens": 2},
    GENERATE: {"text": "hi", "sampling_params": {"max_new_tokens": 2}},
    "/tokenize": {"prompt": "hi"},
    "/detokenize": {"tokens": [104]},
    "/apply_template": {"messages": HI},
    "/abort": {"rid": "nobody"},
    "/abort_request": {"rid": "nobody"},
    "/flush_cache": {},
    "/hold": {"input_ids": [104], "ttl_s": 600},
    "/release": {"ids": ["nobody"]},
    "/cache/explain": {"prompt": "hi"},
    "/v1/schema/check": {"schema": {"type": "object"}},
}


@dataclass(frozen=True, slots=True)
class Hostile:
    """One request. ``name`` says what is wrong with it."""

    name: str
    path: str
    body: bytes = b""
    method: str = "POST"
    headers: dict[str, str] = field(default_factory=lambda: {"Content-Type": "application/json"})

    def __str__(self) -> str:
        return f"{self.method} {self.path[:60]}: {self.name}"


@functools.cache
def corpus() -> tuple[Hostile, ...]:
    """All of them."""
    return (*_wrong_types(), *_wrong_values(), *_broken_bodies(), *_wrong_addresses(), *_too_much())


def with_body() -> list[Endpoint]:
    """Endpoints that read a body."""
    return [endpoint for endpoint in ENDPOINTS if endpoint.body is not None]


def _request(path: str, name: str, **changes: Any) -> Hostile:
    return Hostile(name, path, json.dumps({**HONEST[path], **changes}).encode())


# ---------------------------------------------------------------- wrong types at every field

_VALUES: tuple[Any, ...] = (
    "text",
    "",
    True,
    1,
    -1,
    1.5,
    10**40,
    1e308,
    [],
    [[[]]],
    {},
    {"$ref": "#"},
    [{"x": None}],
    ["text"],
    [1],
    {"a": {"b": []}},
)


def _wrong_types() -> Iterator[Hostile]:
    for endpoint in with_body():
        yield from _wrong_fields(endpoint.path, endpoint.body, ())
        yield _request(endpoint.path, "an unknown field", __proto__=1)
        yield _request(endpoint.path, "an unknown field with a long name", **{"x" * 5000: 1})


def _wrong_fields(path: str, struct: type[msgspec.Struct], place: tuple[str, ...]) -> Iterator[Hostile]:
    for item in msgspec.structs.fields(struct):
        where = (*place, item.encode_name)
        wrong = [value for value in _VALUES if not _fits(value, item.type)]
        # Two that differ are enough for each field.
        for value in [*wrong[:1], *wrong[-1:]] if len(wrong) > 1 else wrong:
            yield _request(path, f"{'.'.join(where)} is {json.dumps(value)[:30]}", **_nested(path, where, value))
        for inner in _structs(item.type):
            if not place:
                yield from _wrong_fields(path, inner, where)


def _nested(path: str, where: tuple[str, ...], value: Any) -> dict[str, Any]:
    if len(where) == 1:
        return {where[0]: value}
    return {where[0]: {**HONEST[path].get(where[0], {}), where[1]: value}}


def _fits(value: Any, kind: Any) -> bool:
    try:
        msgspec.json.decode(json.dumps(value).encode(), type=kind)
    except msgspec.ValidationError:
        return False
    return True


def _structs(kind: Any) -> Iterator[type[msgspec.Struct]]:
    for choice in typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,):
        if isinstance(choice, type) and issubclass(choice, msgspec.Struct):
            yield choice


# ---------------------------------------------------------------- values of the right type that make no sense


def _wrong_values() -> Iterator[Hostile]:
    for path, change in (
        (CHAT, lambda name, value: {name: value}),
        (COMPLETIONS, lambda name, value: {name: value}),
        (RESPONSES, lambda name, value: {name: value}),
        (GENERATE, lambda name, value: {"sampling_params": {"max_new_tokens": 2, name: value}}),
    ):
        for name, values in _SAMPLING.items():
            for value in values:
                yield _request(path, f"{name} is {json.dumps(value)[:30]}", **change(name, value))
    for path, name, value in _FIELDS:
        yield _request(path, f"{name} is {json.dumps(value)[:40]}", **{name: value})
    for value in _SCHEMAS:
        name = f"the schema {json.dumps(value)[:40]}"
        named = {"type": "json_schema", "json_schema": {"name": "x", "schema": value}}
        yield _request(CHAT, name, response_format=named)
        yield _request(COMPLETIONS, name, guided_json=value)
        yield _request(RESPONSES, name, text={"format": {"type": "json_schema", "name": "x", "schema": value}})
        if isinstance(value, dict):
            yield _request(GENERATE, name, sampling_params={"json_schema": value})
    for value in _PATTERNS:
        yield _request(CHAT, f"the pattern {value[:30]!r}", regex=value)
        yield _request(COMPLETIONS, f"the pattern {value[:30]!r}", guided_regex=value)
        yield _request(GENERATE, f"the pattern {value[:30]!r}", sampling_params={"regex": value})
    for value in (*_PATTERNS[:-1], "(?=a)b", "^a$", r"\bword", "a*", "x" * 2000):
        yield _request(GENERATE, f"the stop pattern {value[:30]!r}", sampling_params={"stop_regex": value})
    for value in _GRAMMARS:
        yield _request(CHAT, f"the grammar {value[:30]!r}", guided_grammar=value)
        yield _request(GENERATE, f"the grammar {value[:30]!r}", sampling_params={"ebnf": value})
    for value in _MESSAGES:
        yield _request(CHAT, f"messages are {json.dumps(value)[:40]}", messages=value)
        if len(json.dumps(value)) < CONTEXT:  # A prompt that is only shown may be as long as it likes.
            yield _request("/apply_template", f"messages are {json.dumps(value)[:40]}", messages=value)
        explained = {"prompt": None, "messages": value}
        yield _request("/cache/explain", f"messages are {json.dumps(value)[:40]}", **explained)
    for value in _PROMPTS:
        yield _request(COMPLETIONS, f"the prompt is {json.dumps(value)[:40]}", prompt=value)
        yield _request(EMBEDDINGS, f"the input is {json.dumps(value)[:40]}", input=value)
        yield _request("/cache/explain", f"the prompt is {json.dumps(value)[:40]}", prompt=value)
        if isinstance(value, list):
            yield _request(GENERATE, f"the prompt is {json.dumps(value)[:40]}", text=None, input_ids=value)
    for value in _TOOLS:
        yield _request(CHAT, f"the tools are {json.dumps(value)[:40]}", tools=value)
        yield _request("/apply_template", f"the tools are {json.dumps(value)[:40]}", tools=value)


# Under names that every endpoint has.
_SAMPLING: dict[str, list[Any]] = {
    "temperature": [-0.1, 1e9, -1e308],
    "top_p": [0, 1.0001, -1],
    "top_k": [-2, 10**30 * -1],
    "min_p": [-0.1, 1.1],
    "frequency_penalty": [-2.1, 3],
    "presence_penalty": [-2.1, 3],
    "repetition_penalty": [0, -1, 1e9],
    "n": [0, -1, 129, 10**18],
    "stop": [[""], ["x"] * 65, "x" * 5000],
    "stop_token_ids": [[-1], [264], [10**20], [0] * 1025],
    "logit_bias": [{"x": 1}, {"-1": 1}, {"264": 1}, {"1": 1e9}, {"٣": 1}],
}
_FIELDS: list[tuple[str, str, Any]] = [
    *((path, "priority", 2**31) for path in (CHAT, COMPLETIONS, RESPONSES, GENERATE, EMBEDDINGS)),
    *((path, "cache_salt", value) for path in (CHAT, COMPLETIONS, GENERATE, "/tokenize") for value in ("", "x" * 1025)),
    *((path, "model", "another") for path in (CHAT, COMPLETIONS, RESPONSES, EMBEDDINGS, "/tokenize", "/detokenize")),
    (CHAT, "max_tokens", -1),
    (CHAT, "max_tokens", CONTEXT),
    (CHAT, "max_completion_tokens", 3),
    (CHAT, "min_tokens", 3),
    (CHAT, "seed", 2**64),
    (CHAT, "logprobs", 5),
    (CHAT, "top_logprobs", 3),
    (CHAT, "tool_choice", "required"),
    (CHAT, "tool_choice", {"type": "function", "function": {"name": "nobody"}}),
    (CHAT, "functions", [{"name": "f"}]),
    (CHAT, "stream_options", {"include_usage": True}),
    (CHAT, "stream_options", {"include_everything": True}),
    (CHAT, "modalities", ["audio"]),
    (CHAT, "audio", {"voice": "x"}),
    (CHAT, "prediction", {"type": "content"}),
    (CHAT, "web_search_options", {}),
    (CHAT, "chat_template", "{{ 1 }}"),
    (CHAT, "chat_template_kwargs", {"messages": []}),
    (CHAT, "continue_final_message", True),
    (CHAT, "response_format", {}),
    (CHAT, "response_format", {"type": "xml"}),
    (CHAT, "response_format", {"type": "json_schema"}),
    (CHAT, "response_format", {"type": "json_schema", "json_schema": {"name": "x"}}),
    (CHAT, "response_format", {"type": "json_schema", "json_schema": {"schema": {}, "extra": 1}}),
    (CHAT, "response_format", {"type": "structural_tag"}),
    (CHAT, "guided_choice", []),
    (CHAT, "guided_choice", ["a", "a"]),
    (CHAT, "structured_outputs", {"json": {}, "regex": "a"}),
    (CHAT, "structured_outputs", {"yaml": "a"}),
    (COMPLETIONS, "max_tokens", CONTEXT - 1),
    (COMPLETIONS, "max_tokens", 10**30),
    (COMPLETIONS, "logprobs", 129),
    (COMPLETIONS, "logprobs", -1),
    (COMPLETIONS, "prompt_logprobs", 129),
    (COMPLETIONS, "suffix", "end"),
    (COMPLETIONS, "best_of", 4),
    (COMPLETIONS, "finish_json", True),
    (COMPLETIONS, "seed", -(2**63) - 1),
    (COMPLETIONS, "min_tokens", 3),
    (COMPLETIONS, "logit_bias", {str(token): 1 for token in range(264, 400)}),
    (EMBEDDINGS, "dimensions", 3),
    (EMBEDDINGS, "encoding_format", "int8"),
    (EMBEDDINGS, "pooling", "max"),
    (RESPONSES, "input", []),
    (RESPONSES, "input", [{"type": "image"}]),
    (RESPONSES, "input", [{"type": "function_call_output", "output": "x"}]),
    (RESPONSES, "input", [{"role": "robot", "content": "x"}]),
    (RESPONSES, "previous_response_id", "resp_of_nobody"),
    (RESPONSES, "background", True),
    (RESPONSES, "truncation", "auto"),
    (RESPONSES, "include", ["everything"]),
    (RESPONSES, "max_tool_calls", 1),
    (RESPONSES, "tools", [{"type": "web_search"}]),
    (RESPONSES, "max_output_tokens", -1),
    (RESPONSES, "max_output_tokens", CONTEXT),
    (GENERATE, "image_data", "data:"),
    (GENERATE, "lora_path", "x"),
    (GENERATE, "session_params", {"id": "x"}),
    (GENERATE, "input_embeds", [[0.5]]),
    (GENERATE, "return_hidden_states", True),
    (GENERATE, "custom_logit_processor", "x"),
    (GENERATE, "top_logprobs_num", 2),
    (GENERATE, "logprob_start_len", 0),
    (GENERATE, "token_ids_logprob", [1]),
    (GENERATE, "rid", ""),
    (GENERATE, "rid", "x" * 300),
    (GENERATE, "rid", ["a", "b"]),
    (GENERATE, "text", []),
    (GENERATE, "text", "a" * (CONTEXT - 1)),
    (GENERATE, "sampling_params", [{}, {}]),
    (GENERATE, "sampling_params", {"max_new_tokens": CONTEXT - 1}),
    (GENERATE, "sampling_params", {"min_new_tokens": 200}),
    (GENERATE, "sampling_params", {"structural_tag": "{}"}),
    (GENERATE, "sampling_params", {"custom_params": {"a": 1}}),
    (GENERATE, "sampling_params", {"spaces_between_special_tokens": False}),
    ("/detokenize", "tokens", [264]),
    ("/detokenize", "tokens", [-1]),
    ("/detokenize", "tokens", [2**70]),
    ("/abort", "abort_all", True),
    ("/abort", "rid", None),
    ("/flush_cache", "all", True),
    ("/flush_cache", "cache_salt", ""),
]
_SCHEMAS: list[Any] = [
    {"type": "objekt"},
    {"type": ["string", "objekt"]},
    {"type": 5},
    {"$ref": "#/$defs/nothing"},
    {"$ref": "http://example.com/schema.json"},
    {"properties": []},
    {"type": "object", "required": "name"},
    {"enum": []},
    {"type": "string", "pattern": "("},
    {"type": "string", "minLength": -1},
    {"type": "array", "items": {"$ref": "#"}, "minItems": 2},
    {"allOf": [{"type": "string"}, {"type": "integer"}]},
    False,
    {"not": {}},
]
_PATTERNS = ["(", "[z-a]", "a{3,1}", "(?<=a)b", "(a)\\1", "*", "\\", "(?P<n", "a{100000000}"]
_GRAMMARS = ["", "start: nothing", "start: /(/", "root ::= root", "%%%", "start: start"]
_MESSAGES: list[Any] = [
    [],
    [None],
    ["hi"],
    [[]],
    [{}],
    [{"role": "user"}],
    [{"role": "king", "content": "hi"}],
    [{"role": 5, "content": "hi"}],
    [{"role": "user", "content": 5}],
    [{"role": "user", "content": [5]}],
    [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1"}}]}],
    [{"role": "user", "content": [{"type": "text"}]}],
    [{"role": "user", "content": "hi", "tool_calls": []}],
    [{"role": "user", "content": "hi", "weight": 1}],
    [{"role": "tool", "content": "hi"}],
    [{"role": "assistant", "tool_calls": [{"id": "x"}]}],
    [{"role": "assistant", "tool_calls": [{"id": "x", "type": "custom", "function": {"name": "f"}}]}],
    [{"role": "assistant", "content": None}],
    [{"role": "user", "content": "a" * (CONTEXT * 2)}],
]
_PROMPTS: list[Any] = [
    "",
    [],
    [[]],
    [""],
    [None],
    [1, "a"],
    [[1, "a"]],
    [True],
    [1.5],
    [-1],
    [264],
    [2**63],
    [{"text": "a"}],
    [[[1]]],
    [1] * (CONTEXT + 1),
    "a" * (CONTEXT + 1),
    ["a"] * 2049,
]
_TOOLS: list[Any] = [
    ["f"],
    [{}],
    [{"type": "function"}],
    [{"type": "function", "function": {}}],
    [{"type": "function", "function": {"name": ""}}],
    [{"type": "function", "function": {"name": "a b"}}],
    [{"type": "function", "function": {"name": "f", "parameters": []}}],
    [{"type": "code_interpreter"}],
    [{"type": "function", "function": {"name": "f"}}] * 2,
    [{"type": "function", "function": {"name": f"f{index}"}} for index in range(129)],
]

# ---------------------------------------------------------------- bodies that are none


def _broken_bodies() -> Iterator[Hostile]:
    for endpoint in with_body():
        path = endpoint.path
        whole = json.dumps(HONEST[path]).encode()
        broken = {
            "a list": b"[]",
            "null": b"null",
            "a number": b"1",
            "a text": b'"text"',
            "cut short": whole[:-1],
            "half a literal": b'{"a": tru',
            "two documents": whole + whole,
            "trailing garbage": whole + b"x",
            "a comment": b"/* */" + whole,
            "single quotes": b"{'a': 1}",
            "a field without a name": b"{: 1}",
            "not UTF-8": b'{"a": "\xff\xfe"}',
            "an overlong encoding": b'{"a": "\xc0\xaf"}',
            "UTF-16": '{"a": 1}'.encode("utf-16"),
            "a byte order mark": b"\xef\xbb\xbf" + whole,
            "a NUL": b'{"a\x00": 1}',
            "a lone surrogate": b'{"model": "\\ud800"}',
            "NaN": b'{"temperature": NaN}',
            "Infinity": b'{"temperature": -Infinity}',
            "a number that overflows": b'{"temperature": 1e999}',
            "a huge integer": b'{"n": ' + b"9" * 5000 + b"}",
            "deep lists": b'{"a": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
            "deep objects": b'{"a":' * 20_000 + b"1" + b"}" * 20_000,
        }
        if endpoint.body_required:
            broken |= {"nothing": b"", "blanks": b" \n"}
        for name, body in broken.items():
            yield Hostile(name, path, body)
        for kind in ("text/plain", "multipart/form-data; boundary=x", "application/x-www-form-urlencoded", "nonsense"):
            yield Hostile(f"declared as {kind}", path, whole, headers={"Content-Type": kind})


# ---------------------------------------------------------------- paths, methods, parameters


def _wrong_addresses() -> Iterator[Hostile]:
    methods: dict[str, set[str]] = {}
    for endpoint in ENDPOINTS:
        methods.setdefault(endpoint.path, set()).add(endpoint.method)
    for path, known in methods.items():
        address = path.replace("{model:path}", "tiny").replace("{response_id}", "x")
        for method in sorted({"GET", "POST", "PUT", "DELETE", "PATCH", "TRACE"} - known):
            yield Hostile("wrong method", address, method=method)
    for path in ("/v1", "/v1/", "/v1/chat", "/v1/completions/", "/../etc/passwd", "/%00", "/" + "a" * 5000, "/.env"):
        yield Hostile("no such path", path, method="GET")
    for path in ("/v1/models/another", "/v1/models/%ff", "/v1/models/../../x", "/v1/responses/x", "/v1/responses/%00"):
        yield Hostile("nobody's", path, method="GET")
    yield Hostile("nobody's", "/v1/responses/x", method="DELETE")
    yield Hostile("nobody's", "/v1/responses/x/cancel")
    for query in ("max_nodes=0", "max_nodes=1.5", "max_nodes=-1", "max_tokens=x", "all", "all=2", "x=1", "cache_salt="):
        yield Hostile("wrong parameter", f"/cache?{query}", method="GET")
    for query in ("all", "all=maybe", "x", "cache_salt=", "cache_salt=a&cache_salt=b"):
        yield Hostile("wrong parameter", f"/flush_cache?{query}", method="GET")


# ---------------------------------------------------------------- too much of it


def _too_much() -> Iterator[Hostile]:
    json_type = {"Content-Type": "application/json"}
    packed = {
        "gzip": gzip.compress(b'{"a": "' + b"a" * (20 * BODY_LIMIT) + b'"}'),
        "deflate": zlib.compress(b" " * (20 * BODY_LIMIT)),
    }
    for path in (CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES, GENERATE, "/tokenize", "/abort", "/cache/explain"):
        large = b'{"a": "' + b"a" * BODY_LIMIT + b'"}'
        yield Hostile("a body over the limit", path, large)
        for encoding, body in packed.items():
            yield Hostile(f"a {encoding} bomb", path, body, headers={**json_type, "Content-Encoding": encoding})
        good = json.dumps(HONEST[path]).encode()
        for name, body, encoding in (
            ("gzip that is none", good, "gzip"),
            ("gzip cut short", gzip.compress(good)[:-4], "gzip"),
            ("gzip with more behind it", gzip.compress(good) + good, "gzip"),
            ("packed twice", gzip.compress(gzip.compress(good)), "gzip"),
            ("an unknown packing", good, "br"),
            ("two packings", good, "gzip, gzip"),
        ):
            yield Hostile(name, path, body, headers={**json_type, "Content-Encoding": encoding})
    nested: Any = {"type": "string"}
    for _ in range(400):
        nested = {"type": "object", "properties": {"a": nested}}
    yield _request(
        CHAT, "a schema of 400 levels", response_format={"type": "json_schema", "json_schema": {"schema": nested}}
    )
    wide = {"type": "object", "properties": {f"p{index}": {"type": "integer"} for index in range(5000)}}
    yield _request(CHAT, "a schema of 5,000 properties", guided_json=wide)
    yield _request(CHAT, "20,000 choices", guided_choice=[f"c{index}" for index in range(20_000)])
    yield _request(CHAT, "a pattern of 100,000 characters", regex="a" * 100_000)
    yield _request(CHAT, "a grammar of 300,000 characters", guided_grammar="start: " + '"a" ' * 75_000)
    yield _request(CHAT, "10,000 biases outside the vocabulary", logit_bias={str(10_000 + i): 1 for i in range(10_000)})
    yield _request("/abort", "20,000 names", rid=None, rids=["x"] * 20_000)
