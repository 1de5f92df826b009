from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from starlette.types import Message

from radixserve.constraints import JsonObject, JsonSchema, Regex, StructuralTag
from radixserve.errors import InvalidRequest, PoolTooSmall
from radixserve.messages import FinishReason
from radixserve.server.app import build_app
from tests.server.fake_client import Script
from tests.server.harness import error_of, serve
from tests.server.openai.responses_client import (
    PATH,
    PERSON,
    WEATHER,
    both,
    call_text,
    create,
    followed,
    let_reason,
    stream,
    wide,
)

pytestmark = pytest.mark.anyio
TAGS = {"structures": [{"begin": "<a>", "schema": {}, "end": "</a>"}], "triggers": ["<a>"]}


async def test_a_text_is_answered_with_every_field_that_clients_read() -> None:
    async with serve(Script(("Hel", "lo"), cached_tokens=4)) as server:
        body = {"input": "Hi", "model": "tiny", "metadata": {"a": "b"}, "user": "me", "temperature": 0, "top_p": 0.5}
        response = await create(server, body)
    prompt = len("<user\nHi>\n<assistant\n")
    assert response["id"].startswith("resp_") and response["object"] == "response"
    assert response["status"] == "completed" and response["model"] == "tiny"
    assert response["error"] is None and response["incomplete_details"] is None
    assert response["completed_at"] >= response["created_at"] > 0
    (item,) = response["output"]
    assert item.pop("id").startswith("msg_")
    assert item == {
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "Hello", "annotations": [], "logprobs": []}],
    }
    assert response["usage"] == {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": prompt - 4},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + 5,
        "reused_output_tokens": 0,
    }
    expected: dict[str, Any] = {
        "instructions": None,
        "max_output_tokens": None,
        "max_tool_calls": None,
        "previous_response_id": None,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "temperature": 0.0,
        "top_p": 0.5,
        "top_logprobs": 0,
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "reasoning": {"effort": None, "summary": None},
        "truncation": "disabled",
        "background": False,
        "store": True,
        "metadata": {"a": "b"},
        "user": "me",
        "service_tier": None,
    }
    assert {key: response[key] for key in expected} == expected
    assert response["timings"]["steps_waited"] == 1 and "cache" not in response


async def test_a_stream_tells_of_one_item_after_the_other() -> None:
    async with serve(Script(("Hel", "lo"))) as server:
        events = await stream(server, {"input": "Hi"})
        await both(server, {"input": "Hi"})
    assert [event["type"].removeprefix("response.") for event in events] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    deltas = [event for event in events if event["type"].endswith("text.delta")]
    assert [event["delta"] for event in deltas] == ["Hel", "lo"]
    assert all(event["logprobs"] == [] and event["content_index"] == 0 for event in deltas)
    assert events[0]["response"]["usage"] is None and events[-1]["response"]["usage"]["output_tokens"] == 5


async def test_the_limit_makes_an_answer_incomplete() -> None:
    async with serve(Script(("Hel", "lo"))) as server:
        response = await both(server, {"input": "Hi", "max_output_tokens": 3})
        events = await stream(server, {"input": "Hi", "max_output_tokens": 3})
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert response["output"][0]["status"] == "incomplete" and response["output"][0]["content"][0]["text"] == "Hel"
    assert response["completed_at"] is None
    assert events[-1]["type"] == "response.incomplete"


async def test_an_aborted_answer_is_cancelled() -> None:
    async with serve(Script(("abc",), finish_reason=FinishReason.ABORT)) as server:
        response = await both(server, {"input": "Hi"})
    assert response["status"] == "cancelled" and response["incomplete_details"] is None
    assert response["output"][0]["content"][0]["text"] == "abc"


async def test_an_answer_without_a_word_is_an_empty_message() -> None:
    async with serve(Script(())) as server:
        response = await both(server, {"input": "Hi"})
    assert response["output"][0]["content"] == [{"type": "output_text", "text": "", "annotations": [], "logprobs": []}]


async def test_logprobs_are_for_the_tokens_of_the_text() -> None:
    async with serve(Script(("é", "!"))) as server:
        body = {"input": "Hi", "include": ["message.output_text.logprobs"], "top_logprobs": 2}
        response = await both(server, body)
        assert server.engine.jobs[0].sampling.logprobs == 2
        deltas = [event for event in await stream(server, body) if event["type"].endswith("text.delta")]
    entries = response["output"][0]["content"][0]["logprobs"]
    assert [entry["bytes"] for entry in entries] == [[0xC3], [0xA9], [ord("!")]]
    assert [len(entry["top_logprobs"]) for entry in entries] == [2, 2, 2]
    assert [len(event["logprobs"]) for event in deltas] == [2, 1]
    assert response["top_logprobs"] == 2


# ---------------------------------------------------------------- tools


async def test_a_forced_call_is_the_whole_answer() -> None:
    text = call_text('{"city":"Rome"}')
    async with serve(engine=wide(Script([text[:9], text[9:40], text[40:]]))) as server:
        body = {"input": "Hi", "tools": [WEATHER], "tool_choice": {"type": "function", "name": "get_weather"}}
        response = await both(server, body)
        constraint = server.engine.jobs[0].sampling.constraint
        events = await stream(server, body)
    assert isinstance(constraint, StructuralTag) and constraint.required and constraint.single
    (item,) = response["output"]
    assert item["id"].startswith("fc_") and item["call_id"].startswith("call_")
    assert (item["type"], item["name"], item["status"]) == ("function_call", "get_weather", "completed")
    assert msgspec.json.decode(item["arguments"]) == {"city": "Rome"}
    assert response["tools"] == [WEATHER] and response["tool_choice"] == body["tool_choice"]
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds[2] == "output_item.added" and set(kinds[3:-3]) == {"function_call_arguments.delta"}
    assert kinds[-3:] == ["function_call_arguments.done", "output_item.done", "completed"]


async def test_text_and_calls_are_items_of_their_own() -> None:
    text = "Let me see.\n" + call_text('{"city":"Rome"}') + "\n" + call_text('{"city":"Oslo"}') + "\nSo it is."
    async with serve(engine=wide(Script([text[at : at + 7] for at in range(0, len(text), 7)]))) as server:
        response = await both(server, {"input": "Hi", "tools": [WEATHER]})
    assert [item["type"] for item in response["output"]] == ["message", "function_call", "function_call", "message"]
    first, rome, oslo, last = response["output"]
    assert first["content"][0]["text"] == "Let me see." and last["content"][0]["text"] == "So it is."
    assert [msgspec.json.decode(item["arguments"])["city"] for item in (rome, oslo)] == ["Rome", "Oslo"]
    assert rome["call_id"] != oslo["call_id"]


async def test_a_call_that_is_cut_is_not_complete() -> None:
    text = call_text('{"city":"Rome"}')
    body = {"input": "Hi", "tools": [WEATHER], "tool_choice": "required", "max_output_tokens": text.index("ome")}
    async with serve(engine=wide(Script([text]))) as server:
        response = await both(server, body)
    (item,) = response["output"]
    assert response["status"] == item["status"] == "incomplete"
    assert item["arguments"] == '{"city":"R'


async def test_an_answer_is_calls_or_in_the_format() -> None:
    body = {"input": "Hi", "tools": [WEATHER], "text": {"format": {"type": "json_object"}}}
    async with serve(engine=wide(Script(['{"a":1}']))) as server:
        response = await both(server, body)
        constraint = server.engine.jobs[0].sampling.constraint
    assert isinstance(constraint, StructuralTag) and constraint.otherwise == JsonObject()
    assert response["output"][0]["content"][0]["text"] == '{"a":1}'


async def test_a_forced_call_wins_over_a_format() -> None:
    text = call_text('{"city":"Rome"}')
    schema = {"type": "json_schema", "name": "Person", "schema": PERSON, "strict": True}
    body = {"input": "Hi", "tools": [WEATHER], "tool_choice": "required", "text": {"format": schema}}
    async with serve(engine=wide(Script([text]))) as server:
        response = await create(server, body)
        assert isinstance(server.engine.jobs[0].sampling.constraint, StructuralTag)
    assert response["output"][0]["type"] == "function_call" and response["text"]["format"] == schema


# ---------------------------------------------------------------- reasoning


async def test_reasoning_is_an_item_before_the_answer() -> None:
    async with serve(Script(("I thi", "nk.\n</thi", "nk>\n\nYes."))) as server:
        let_reason(server)
        response = await both(server, {"input": "Hi"})
        events = await stream(server, {"input": "Hi"})
    reasoning, message = response["output"]
    assert reasoning.pop("id").startswith("rs_")
    assert reasoning == {
        "type": "reasoning",
        "status": "completed",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "I think."}],
    }
    assert message["content"][0]["text"] == "Yes."
    assert response["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds[2:5] == ["output_item.added", "content_part.added", "reasoning_text.delta"]
    end = kinds.index("reasoning_text.done")
    assert kinds[end : end + 4] == [
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
    ]


async def test_an_answer_cut_in_its_reasoning_has_no_message() -> None:
    async with serve(Script(("I thi", "nk and think"))) as server:
        let_reason(server)
        response = await both(server, {"input": "Hi", "max_output_tokens": 8})
    assert [(item["type"], item["status"]) for item in response["output"]] == [("reasoning", "incomplete")]


# ---------------------------------------------------------------- formats and parameters


@pytest.mark.parametrize(
    ("fields", "constraint"),
    [
        ({"text": {"format": {"type": "text"}}}, None),
        ({"text": {"format": None, "verbosity": "medium"}}, None),
        ({"text": {"format": {"type": "json_object"}}}, JsonObject()),
        (
            {"text": {"format": {"type": "json_schema", "name": "P", "schema": PERSON, "strict": None}}},
            JsonSchema(msgspec.json.encode(PERSON).decode()),
        ),
        ({"regex": "[0-9]+"}, Regex("[0-9]+")),
        ({"text": {"format": {"type": "json_object"}}, "structured_outputs": {"json_object": True}}, JsonObject()),
    ],
)
async def test_formats_are_enforced(fields: dict[str, Any], constraint: Any) -> None:
    async with serve() as server:
        await create(server, {"input": "Hi", **fields})
        assert server.engine.jobs[0].sampling.constraint == constraint


async def test_extras_reach_the_engine() -> None:
    extras = {"seed": 3, "top_k": 5, "min_p": 0.1, "priority": 7, "explain_cache": True, "logit_bias": {"65": -1}}
    async with serve(Script(("ab",), stop_reason="\n")) as server:
        response = await create(server, {"input": "Hi", "stop": ["\n"], **extras})
        (job,) = server.engine.jobs
    assert (job.sampling.seed, job.sampling.top_k, job.sampling.min_p) == (3, 5, 0.1)
    assert (job.priority, job.sampling.stop, job.sampling.logit_bias) == (7, ("\n",), {65: -1.0})
    assert response["cache"]["reason"] == "never_seen" and response["matched_stop"] == "\n"


async def test_null_stands_for_a_field_that_is_not_there() -> None:
    from radixserve.server.openai.responses_fields import ResponsesRequest

    nothing = {field.name: None for field in msgspec.structs.fields(ResponsesRequest) if field.name != "input"}
    async with serve() as server:
        response = await create(server, {**nothing, "input": "Hi"})
        plain = await create(server, {"input": "Hi", "tools": [], "include": [], "metadata": {}, "stream": False})
    assert response["status"] == plain["status"] == "completed"
    assert response["store"] is True


async def test_what_concerns_openais_own_service_changes_nothing() -> None:
    inert = {
        "safety_identifier": "a",
        "prompt_cache_key": "b",
        "prompt_cache_retention": "24h",
        "service_tier": "auto",
        "include": ["reasoning.encrypted_content"],
        "reasoning": {"summary": "auto"},
        "truncation": "disabled",
        "background": False,
    }
    async with serve() as server:
        response = await create(server, {"input": "Hi", **inert})
        streamed = await stream(server, {"input": "Hi", "stream_options": {"include_obfuscation": True}})
    assert (response["safety_identifier"], response["prompt_cache_key"]) == ("a", "b")
    assert streamed[-1]["type"] == "response.completed"


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"nonsense": 1}, "nonsense", "unknown_parameter"),
        ({"model": "other"}, "model", "model_not_found"),
        ({"input": None}, "input", "missing_required_parameter"),
        ({"input": []}, "input", "invalid_value"),
        ({"input": 3}, "input", "invalid_type"),
        ({"input": "a" * 600}, "input", "context_length_exceeded"),
        ({"max_output_tokens": -1}, "max_output_tokens", "invalid_value"),
        ({"max_output_tokens": 512}, "input", "context_length_exceeded"),
        ({"temperature": 1e9}, "temperature", "invalid_value"),
        ({"top_logprobs": 3}, "top_logprobs", "invalid_value"),
        (
            {"top_logprobs": 300, "include": ["message.output_text.logprobs"]},
            "top_logprobs",
            "invalid_value",
        ),
        ({"include": ["file_search_call.results"]}, "include[0]", "unsupported_feature"),
        ({"text": {"verbosity": "low"}}, "text.verbosity", "unsupported_feature"),
        ({"text": {"format": {"type": "poem"}}}, "text.format.type", "invalid_value"),
        (
            {"text": {"format": {"type": "json_schema", "name": "P"}}},
            "text.format.schema",
            "missing_required_parameter",
        ),
        ({"text": {"fromat": {}}}, "text.fromat", "unknown_parameter"),
        (
            {"text": {"format": {"type": "structural_tag", **TAGS}}, "tools": [WEATHER]},
            "text.format",
            "unsupported_feature",
        ),
        ({"text": {"format": {"type": "json_object"}}, "regex": "a"}, "text.format", "invalid_value"),
        ({"response_format": {"type": "json_object"}}, "response_format", "unsupported_feature"),
        ({"reasoning": {"effort": "high"}}, "reasoning.effort", "unsupported_feature"),
        ({"reasoning": {"summary": "detailed"}}, "reasoning.summary", "unsupported_feature"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "unsupported_feature"),
        ({"tools": [{"type": "function"}]}, "tools[0].name", "invalid_type"),
        ({"tools": [WEATHER, WEATHER]}, "tools[1].name", "invalid_value"),
        ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
        ({"tools": [WEATHER], "tool_choice": {"type": "mcp"}}, "tool_choice.type", "unsupported_feature"),
        ({"truncation": "auto"}, "truncation", "unsupported_feature"),
        ({"background": True}, "background", "unsupported_feature"),
        ({"conversation": "conv_1"}, "conversation", "unsupported_feature"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt", "unsupported_feature"),
        ({"max_tool_calls": 3}, "max_tool_calls", "unsupported_feature"),
        ({"n": 2}, "n", "unsupported_feature"),
        ({"prompt_logprobs": 1}, "prompt_logprobs", "unsupported_feature"),
        ({"stream_options": {}}, "stream_options", "invalid_value"),
        ({"metadata": {"a": 1}}, "metadata[...]", "invalid_type"),
        ({"metadata": {"a": "b" * 513}}, "metadata.a", "invalid_value"),
        ({"metadata": {str(key): "" for key in range(17)}}, "metadata", "invalid_value"),
        ({"cache_salt": ""}, "cache_salt", "invalid_value"),
    ],
)
async def test_what_cannot_be_done_is_refused_by_name(fields: dict[str, Any], param: str, code: str) -> None:
    async with serve() as server:
        for streamed in ({}, {"stream": True}):
            if "stream_options" in fields and streamed:
                continue
            response = await server.post(PATH, {"input": "Hi", **fields, **streamed})
            error = error_of(response)
            assert (error["param"], error["code"]) == (param, code), error
            assert response.status_code == (404 if code.endswith("not_found") else 400)
        assert server.engine.jobs == [] and len(server.service.responses) == 0


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("refusal", "fields", "param"),
    [
        (InvalidRequest("constraint.schema", "no", "unsupported_schema"), {}, "text.format"),
        (InvalidRequest("constraint.tags[0].content", "no", "x"), {"tools": [WEATHER]}, "tools[0].parameters"),
        (
            InvalidRequest("constraint.otherwise.schema", "no", "unsupported_schema"),
            {"tools": [WEATHER], "text": {"format": {"type": "json_object"}}},
            "text.format",
        ),
        (InvalidRequest("constraint.pattern", "no", "unsupported_constraint"), {"regex": "a"}, "regex"),
        (PoolTooSmall(9, 3), {}, "max_output_tokens"),
    ],
)
async def test_what_the_engine_refuses_has_this_endpoints_names(
    refusal: InvalidRequest, fields: dict[str, Any], param: str, streamed: bool
) -> None:
    async with serve(engine=wide(Script(refusal=refusal))) as server:
        response = await server.post(PATH, {"input": "Hi", "stream": streamed, **fields})
        assert response.status_code == 400 and error_of(response)["param"] == param
        assert len(server.service.responses) == 0


# ---------------------------------------------------------------- failures


async def test_a_failure_has_a_status_of_its_own() -> None:
    async with serve(Script(("ab",), error="non-finite logits")) as server:
        assert (await server.post(PATH, {"input": "Hi"})).status_code == 500


async def test_a_failure_in_a_stream_is_an_error_and_the_end() -> None:
    async with serve(Script(("ab",), error="non-finite logits")) as server:
        events = await stream(server, {"input": "Hi"})
        assert len(server.service.responses) == 0
    told, end = events[-2:]
    assert told["type"] == "error" and "non-finite logits" in told["message"]
    assert told["error"]["message"] == told["message"] and told["error"]["type"] == "server_error"
    assert end["type"] == "response.failed" and end["response"]["status"] == "failed"
    assert end["response"]["error"]["code"] == "server_error"
    assert "non-finite logits" in end["response"]["error"]["message"]


async def test_a_client_that_leaves_ends_its_response() -> None:
    async with serve(Script(["x"] * 200, delay_s=0.01)) as server:
        body = msgspec.json.encode({"input": "Hi", "stream": True})
        incoming: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
        sent: list[Message] = []
        left = asyncio.Event()

        async def receive() -> Message:
            if incoming:
                return incoming.pop()
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            sent.append(message)
            if b"output_text.delta" in message.get("body", b""):
                left.set()

        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "path": PATH,
            "raw_path": PATH.encode(),
            "query_string": b"",
            "headers": headers,
            "client": ("127.0.0.1", 1),
            "server": ("server", 80),
            "scheme": "http",
            "root_path": "",
        }
        await asyncio.wait_for(build_app(server.service)(scope, receive, send), 10)
        assert server.engine.aborted == [job.rid for job in server.engine.jobs]
        assert len(server.service.responses) == 0
    assert not any(b"response.completed" in message.get("body", b"") for message in sent)


async def test_deltas_alone_give_the_answer() -> None:
    text = "".join(chr(0x4E00 + at) for at in range(20))
    async with serve(Script(list(text))) as server:
        events = await stream(server, {"input": "Hi"})
    assert followed(events)[0]["content"][0]["text"] == text
