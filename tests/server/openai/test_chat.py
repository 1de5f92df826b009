from __future__ import annotations

import json
from typing import Any

import pytest

from radixserve.constraints import JsonObject, JsonSchema, StructuralTag
from radixserve.engine.client import Job
from radixserve.errors import InvalidRequest
from radixserve.messages import FinishReason
from tests.server.fake_client import FakeClient, Script, fake_info
from tests.server.harness import Harness, error_of, serve

pytestmark = pytest.mark.anyio
PATH = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hi"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
PERSON = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}


def wide(script: Script) -> FakeClient:
    """An engine with room for prompts that show tools."""
    return FakeClient(script, info=fake_info(context_length=8192, num_blocks=1024))


async def call_text(arguments: str) -> str:
    """How the model of these tests writes a call: whatever its syntax parses back."""
    from radixserve.chat.format import ChatFormat
    from radixserve.chat.tools import parse_tools
    from tests.server.fake_client import text_model

    text = text_model()
    syntax = ChatFormat(text.chat_template, text.tokenizer).traits.syntax
    return syntax.example(parse_tools([WEATHER]).tools[0], arguments)


def joined(events: list[Any]) -> dict[str, Any]:
    """Sample 0 of a stream, put together as clients do it."""
    message: dict[str, Any] = {"content": "", "reasoning": "", "calls": {}, "finish": [], "roles": 0}
    for event in events:
        for choice in event["choices"]:
            if choice["index"] != 0:
                continue
            delta = choice["delta"]
            message["roles"] += delta.get("role") == "assistant"
            message["content"] += delta.get("content") or ""
            message["reasoning"] += delta.get("reasoning_content") or ""
            for call in delta.get("tool_calls", []):
                assert "content" not in delta, "clients that look for content first would lose the call"
                known = message["calls"].setdefault(call["index"], {"id": None, "name": None, "arguments": ""})
                if "id" in call:
                    assert known["id"] is None and call["type"] == "function"
                    known["id"], known["name"] = call["id"], call["function"]["name"]
                known["arguments"] += call["function"]["arguments"]
            if choice["finish_reason"] is not None:
                message["finish"].append(choice["finish_reason"])
    return message


async def whole_and_stream(server: Harness, body: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    response = await server.post(PATH, body)
    assert response.status_code == 200, response.text
    return response.json(), joined(await server.events(PATH, body))


async def test_a_conversation_is_answered() -> None:
    async with serve(Script(("Hel", "lo"), cached_tokens=4)) as server:
        body, stream = await whole_and_stream(server, {"messages": HELLO, "model": "tiny"})
        prompt = bytes(token for token in server.engine.jobs[0].token_ids if token < 256)
    assert prompt == b"user\nHi\nassistant\n"
    assert body["object"] == "chat.completion" and body["id"].startswith("chatcmpl-")
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
            "matched_stop": None,
        }
    ]
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == 4
    assert stream["content"] == "Hello" and stream["finish"] == ["stop"] and stream["roles"] == 1


async def test_the_answer_may_take_what_the_context_leaves() -> None:
    async with serve() as server:
        await server.post(PATH, {"messages": HELLO})
        await server.post(PATH, {"messages": HELLO, "max_completion_tokens": 3})
        await server.post(PATH, {"messages": HELLO, "max_tokens": 4})
        limits = [job.sampling.max_tokens for job in server.engine.jobs]
    assert limits == [None, 3, 4]


async def test_samples_end_once_each() -> None:
    async with serve(Script(("a", "b"))) as server:
        events = await server.events(PATH, {"messages": HELLO, "n": 3, "stream_options": {"include_usage": True}})
    ends = [choice["index"] for event in events for choice in event["choices"] if choice["finish_reason"]]
    assert sorted(ends) == [0, 1, 2]
    assert events[-1]["choices"] == [] and events[-1]["usage"]["completion_tokens"] == 6
    assert [event.get("usage") for event in events[:-1]] == [None] * (len(events) - 1)


async def test_logprobs_carry_bytes() -> None:
    async with serve(Script(("é", "!"))) as server:
        body = {"messages": HELLO, "logprobs": True, "top_logprobs": 1}
        whole = (await server.post(PATH, body)).json()["choices"][0]["logprobs"]["content"]
        events = await server.events(PATH, body)
    assert [entry["bytes"] for entry in whole] == [[0xC3], [0xA9], [0x21]]
    assert whole[0]["top_logprobs"] == [{"token": "�", "logprob": -0.5, "bytes": [0xC3]}]
    streamed = [
        entry
        for event in events
        for choice in event["choices"]
        for entry in (choice["logprobs"] or {}).get("content", [])
    ]
    assert streamed == whole


async def test_a_forced_call_is_nothing_but_a_call() -> None:
    text = await call_text('{"city":"Paris"}')
    async with serve(engine=wide(Script([text[:9], text[9:20], text[20:]]))) as server:
        body, stream = await whole_and_stream(
            server, {"messages": HELLO, "tools": [WEATHER], "tool_choice": "required"}
        )
        job = server.engine.jobs[0]
    choice = body["choices"][0]
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None
    (call,) = choice["message"]["tool_calls"]
    assert call["type"] == "function" and call["id"].startswith("call_")
    assert call["function"] == {"name": "get_weather", "arguments": '{"city":"Paris"}'}
    assert stream["finish"] == ["tool_calls"] and stream["content"] == ""
    assert stream["calls"][0]["name"] == "get_weather" and stream["calls"][0]["arguments"] == '{"city":"Paris"}'
    constraint = job.sampling.constraint
    assert isinstance(constraint, StructuralTag) and constraint.required
    shown = bytes(token for token in job.token_ids if token < 256).decode()
    assert "get_weather" in shown and "Weather of a city." in shown


async def test_a_call_that_was_not_asked_for_comes_after_content() -> None:
    text = await call_text('{"city":"Rome"}')
    async with serve(engine=wide(Script(["Let me see. ", text]))) as server:
        body, stream = await whole_and_stream(server, {"messages": HELLO, "tools": [WEATHER]})
        constraint = server.engine.jobs[0].sampling.constraint
    assert body["choices"][0]["finish_reason"] == "tool_calls"
    assert json.loads(stream["calls"][0]["arguments"]) == {"city": "Rome"}
    assert body["choices"][0]["message"]["content"].strip() == stream["content"].strip() == "Let me see."
    assert isinstance(constraint, StructuralTag) and not constraint.required


async def test_an_answer_beside_tools_may_have_a_format_too() -> None:
    async with serve(engine=wide(Script(['{"age":3}']))) as server:
        body = {"messages": HELLO, "tools": [WEATHER], "guided_json": PERSON}
        choice = (await server.post(PATH, body)).json()["choices"][0]
        constraint = server.engine.jobs[0].sampling.constraint
    assert choice["message"]["content"] == '{"age":3}' and choice["finish_reason"] == "stop"
    assert isinstance(constraint, StructuralTag) and constraint.required
    assert constraint.otherwise == JsonSchema(json.dumps(PERSON, separators=(",", ":")))


async def test_a_call_that_is_cut_in_its_opening_is_no_content() -> None:
    text = await call_text("{}")
    async with serve(engine=wide(Script([text[:12]]))) as server:
        for fields in ({"tool_choice": "required"}, {"guided_json": PERSON}):
            body = {"messages": HELLO, "tools": [WEATHER], "max_tokens": 12, **fields}
            choice = (await server.post(PATH, body)).json()["choices"][0]
            assert not choice["message"]["content"] and choice["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"guided_json": {"not": {}}}, "guided_json"),
        ({"response_format": {"type": "json_object"}, "guided_json": None}, "response_format"),
        ({"tools": [WEATHER]}, "tools[0].function.parameters"),
        ({"tools": [WEATHER], "regex": "a"}, "tools[0].function.parameters"),
    ],
)
async def test_what_the_engine_says_of_a_constraint_is_told_by_the_field_it_came_from(
    fields: dict[str, Any], param: str
) -> None:
    place = "constraint.tags[0].content" if "tools" in fields else "constraint.schema"
    script = Script(refusal=InvalidRequest(place, "cannot be enforced", "unsupported_schema"))
    async with serve(engine=wide(script)) as server:
        for stream in (False, True):
            response = await server.post(PATH, {"messages": HELLO, "stream": stream, **fields})
            assert response.status_code == 400
            assert (error_of(response)["param"], error_of(response)["code"]) == (param, "unsupported_schema")


async def test_without_leave_to_call_everything_is_content() -> None:
    text = await call_text("{}")
    async with serve(engine=wide(Script([text]))) as server:
        body, stream = await whole_and_stream(server, {"messages": HELLO, "tools": [WEATHER], "tool_choice": "none"})
        assert server.engine.jobs[0].sampling.constraint is None
    assert body["choices"][0]["message"]["content"] == stream["content"] == text
    assert body["choices"][0]["finish_reason"] == "stop"


async def test_a_call_that_a_stop_string_cuts_is_not_asked_for() -> None:
    text = await call_text('{"city":"Paris"}')
    cut = text[: text.index("Paris")]
    async with serve(engine=wide(Script([cut], stop_reason="Paris"))) as server:
        fields = {"messages": HELLO, "tools": [WEATHER], "tool_choice": "required", "stop": "Paris"}
        body, stream = await whole_and_stream(server, fields)
    choice = body["choices"][0]
    assert choice["finish_reason"] == "stop" and choice["matched_stop"] == "Paris"
    assert stream["finish"] == ["stop"]


async def test_a_call_that_was_cut_says_length() -> None:
    text = await call_text('{"city":"Paris"}')
    async with serve(engine=wide(Script([text]))) as server:
        body = {"messages": HELLO, "tools": [WEATHER], "tool_choice": "required", "max_tokens": len(text) - 6}
        choice = (await server.post(PATH, body)).json()["choices"][0]
    assert choice["finish_reason"] == "length"
    assert '{"city":"Paris"}'.startswith(choice["message"]["tool_calls"][0]["function"]["arguments"])


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, JsonObject()),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": {"type": "object"}}}},
            JsonSchema('{"type":"object"}'),
        ),
        ({"guided_json": {"type": "object"}}, JsonSchema('{"type":"object"}')),
        ({"structured_outputs": {"json": {"type": "object"}, "regex": None}}, JsonSchema('{"type":"object"}')),
        ({"json_schema": '{"type":"object"}'}, JsonSchema('{"type":"object"}')),
        ({"guided_json": {"a": 1}, "structured_outputs": {"json": {"a": 1}}}, JsonSchema('{"a":1}')),
    ],
)
async def test_formats_reach_the_engine(fields: dict[str, Any], expected: Any) -> None:
    async with serve() as server:
        response = await server.post(PATH, {"messages": HELLO, **fields})
        assert response.status_code == 200, response.text
        assert server.engine.jobs[0].sampling.constraint == expected


async def test_stop_strings_reach_the_engine_and_are_told() -> None:
    async with serve(Script(("ab",), stop_reason="\n")) as server:
        body = (await server.post(PATH, {"messages": HELLO, "stop": "\n"})).json()
        assert server.engine.jobs[0].sampling.stop == ("\n",)
        events = await server.events(PATH, {"messages": HELLO, "stop": "\n"})
    assert body["choices"][0]["matched_stop"] == "\n"
    assert events[-1]["choices"][0]["matched_stop"] == "\n"


async def test_stop_strings_may_be_for_content_only() -> None:
    async with serve(Script(("one tw", "o three", " four"), delay_s=0.001)) as server:
        body = {"messages": HELLO, "stop": ["two"], "stop_content_only": True}
        whole, stream = await whole_and_stream(server, body)
        assert server.engine.jobs[0].sampling.stop == ()
        assert set(server.engine.aborted) == {job.rid for job in server.engine.jobs}
    choice = whole["choices"][0]
    assert choice["message"]["content"] == stream["content"] == "one "
    assert (choice["finish_reason"], choice["matched_stop"]) == ("stop", "two")
    assert stream["finish"] == ["stop"]


async def test_an_answer_is_sent_back_in_its_own_tokens() -> None:
    def script(job: Job) -> Script:
        return Script(("Hello",))

    async with serve(script) as server:
        first = (await server.post(PATH, {"messages": HELLO})).json()
        turn = [*HELLO, first["choices"][0]["message"], {"role": "user", "content": "More"}]
        second = (await server.post(PATH, {"messages": turn})).json()
        other = (await server.post(PATH, {"messages": turn, "cache_salt": "mine"})).json()
    assert first["usage"]["reused_output_tokens"] == 0
    assert second["usage"]["reused_output_tokens"] == 5
    assert other["usage"]["reused_output_tokens"] == 0, "another namespace knows nothing of it"
    async with serve(script, retokenize_history=True) as server:
        await server.post(PATH, {"messages": HELLO})
        assert (await server.post(PATH, {"messages": turn})).json()["usage"]["reused_output_tokens"] == 0


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"messages": []}, "messages", "invalid_type"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "missing_required_parameter"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "messages[0].role", "invalid_value"),
        (
            {"messages": [*HELLO, {"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[1].content[0]",
            "unsupported_feature",
        ),
        ({"messages": [{"role": "user", "content": "a" * 600}]}, "messages", "context_length_exceeded"),
        ({"top_logprobs": 3}, "top_logprobs", "invalid_value"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens", "invalid_value"),
        ({"modalities": ["audio"]}, "modalities", "unsupported_feature"),
        ({"audio": {"voice": "alloy"}}, "audio", "unsupported_feature"),
        ({"verbosity": "high"}, "verbosity", "unsupported_feature"),
        ({"reasoning_effort": "high"}, "reasoning_effort", "unsupported_feature"),
        ({"web_search_options": {}}, "web_search_options", "unsupported_feature"),
        ({"functions": [{}]}, "functions", "unsupported_feature"),
        ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "unsupported_feature"),
        (
            {
                "tools": [WEATHER],
                "response_format": {
                    "type": "structural_tag",
                    "structures": [{"begin": "<a>", "end": ""}],
                    "triggers": ["<a>"],
                },
            },
            "response_format",
            "unsupported_feature",
        ),
        ({"stop": ["a"], "stop_content_only": True, "min_tokens": 2}, "min_tokens", "unsupported_feature"),
        ({"chat_template": "{{ 1 }}"}, "chat_template", "unsupported_feature"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages", "invalid_value"),
        ({"continue_final_message": True}, "continue_final_message", "invalid_value"),
        ({"nonsense": 1}, "nonsense", "unknown_parameter"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value"),
    ],
)
async def test_what_is_wrong_is_refused_by_name(fields: dict[str, Any], param: str, code: str) -> None:
    async with serve() as server:
        response = await server.post(PATH, {"messages": HELLO, **fields})
        assert server.engine.jobs == []
    assert response.status_code == 400, response.text
    error = error_of(response)
    assert (error["param"], error["code"]) == (param, code), error


async def test_inert_fields_change_nothing() -> None:
    inert = {
        "user": "u",
        "metadata": {"a": "b"},
        "store": True,
        "service_tier": "auto",
        "safety_identifier": "s",
        "prompt_cache_key": "k",
        "modalities": ["text"],
        "verbosity": "medium",
    }
    async with serve() as server:
        for fields in ({}, inert, dict.fromkeys(inert)):
            assert (await server.post(PATH, {"messages": HELLO, **fields})).status_code == 200
        plain, *others = server.engine.jobs
    for job in others:
        assert (job.token_ids, job.sampling, job.salt) == (plain.token_ids, plain.sampling, plain.salt)


async def test_an_aborted_answer_keeps_what_there_is() -> None:
    async with serve(Script(("abc",), finish_reason=FinishReason.ABORT)) as server:
        choice = (await server.post(PATH, {"messages": HELLO})).json()["choices"][0]
    assert choice["message"]["content"] == "abc" and choice["finish_reason"] == "abort"


async def test_a_constraint_beyond_the_limits_is_told_by_its_field() -> None:
    async with serve() as server:
        response = await server.post(PATH, {"messages": HELLO, "guided_json": {"enum": ["x" * 600_000]}})
    assert response.status_code == 400
    assert (error_of(response)["param"], error_of(response)["code"]) == ("guided_json", "constraint_too_large")
