"""Messages: what is taken, in which shape, and what is refused by which name."""

from __future__ import annotations

from typing import Any

import pytest

from radixserve.chat.conversation import Message, PastCall, parse_conversation
from radixserve.errors import InvalidRequest, UnsupportedFeature

CALL: dict[str, Any] = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}


def test_roles_and_contents() -> None:
    conversation = parse_conversation(
        [
            {"role": "system", "content": "s"},
            {"role": "developer", "content": "d"},
            {"role": "user", "content": "u", "name": "ann"},
            {"role": "assistant", "content": "a", "reasoning_content": "r"},
        ]
    )
    assert conversation == (
        Message("system", "s"),
        Message("system", "d"),
        Message("user", "u", "ann"),
        Message("assistant", "a", reasoning="r"),
    )


def test_parts_are_joined() -> None:
    parts = [
        {"type": "text", "text": "a"},
        {"type": "input_text", "text": " b"},
        "c",
        {"type": "output_text", "text": "d", "annotations": [], "logprobs": None},
        {"type": "refusal", "refusal": "e"},
    ]
    (message,) = parse_conversation([{"role": "assistant", "content": parts}])
    assert message.content == "a bcde"
    assert parse_conversation([{"role": "user", "content": []}])[0].content == ""


def test_calls_and_results() -> None:
    conversation = parse_conversation(
        [
            {"role": "user", "content": "u"},
            {"role": "assistant", "content": None, "tool_calls": [CALL, {**CALL, "id": "call_2", "index": 1}]},
            {"role": "tool", "tool_call_id": "call_1", "content": "one"},
            {"role": "tool", "tool_call_id": "unknown", "content": [{"type": "text", "text": "two"}], "name": "g"},
        ]
    )
    assert conversation[1] == Message(
        "assistant", None, tool_calls=(PastCall("call_1", "f", '{"a": 1}'), PastCall("call_2", "f", '{"a": 1}'))
    )
    assert conversation[2] == Message("tool", "one", "f", tool_call_id="call_1"), "the name is the call's"
    assert conversation[3] == Message("tool", "two", "g", tool_call_id="unknown")


def test_the_old_function_fields() -> None:
    conversation = parse_conversation(
        [
            {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
            {"role": "function", "name": "f", "content": "result"},
        ]
    )
    assert conversation[0].tool_calls == (PastCall("", "f", "{}"),)
    assert conversation[1] == Message("tool", "result", "f")


def test_arguments_as_an_object_become_text() -> None:
    call = {**CALL, "function": {"name": "f", "arguments": {"ä": [1, None]}}}
    (message,) = parse_conversation([{"role": "assistant", "tool_calls": [call]}])
    assert message.tool_calls[0].arguments == '{"ä": [1, null]}'


def test_an_echoed_answer_is_taken() -> None:
    """What the official client sends back of an answer: every field there is, most of them null."""
    echoed: dict[str, Any] = {
        "role": "assistant",
        "content": "hello",
        "refusal": None,
        "annotations": [],
        "audio": None,
        "function_call": None,
        "tool_calls": None,
        "reasoning": None,
        "name": None,
    }
    assert parse_conversation([echoed]) == (Message("assistant", "hello"),)
    assert parse_conversation([{"role": "user", "content": "x", "tool_calls": None, "name": None}])
    assert parse_conversation([{"role": "assistant", "content": None, "refusal": "no"}])[0].content == "no"


@pytest.mark.parametrize(
    ("message", "param", "code"),
    [
        (3, "", "invalid_type"),
        ({"content": "x"}, ".role", "missing_required_parameter"),
        ({"role": None, "content": "x"}, ".role", "missing_required_parameter"),
        ({"role": "robot", "content": "x"}, ".role", "invalid_value"),
        ({"role": "user"}, ".content", "missing_required_parameter"),
        ({"role": "user", "content": None}, ".content", "missing_required_parameter"),
        ({"role": "user", "content": 3}, ".content", "invalid_type"),
        ({"role": "user", "content": "\ud800"}, ".content", "invalid_type"),
        ({"role": "user", "content": "x", "colour": "red"}, ".colour", "unknown_parameter"),
        ({"role": "user", "content": "x", "colour": None}, ".colour", "unknown_parameter"),
        ({"role": "user", "content": "x", "tool_calls": [CALL]}, ".tool_calls", "unknown_parameter"),
        ({"role": "user", "content": "x", "name": 3}, ".name", "invalid_type"),
        ({"role": "user", "content": [{"text": "x"}]}, ".content[0]", "invalid_type"),
        ({"role": "user", "content": [{"type": "text"}]}, ".content[0].text", "invalid_type"),
        ({"role": "user", "content": [{"type": "smell"}]}, ".content[0].type", "invalid_value"),
        ({"role": "user", "content": [{"type": "text", "text": "x", "y": 1}]}, ".content[0].y", "unknown_parameter"),
        ({"role": "assistant", "content": None}, ".content", "missing_required_parameter"),
        ({"role": "assistant", "content": None, "tool_calls": []}, ".content", "missing_required_parameter"),
        ({"role": "assistant", "tool_calls": {}}, ".tool_calls", "invalid_type"),
        ({"role": "assistant", "tool_calls": [3]}, ".tool_calls[0]", "invalid_type"),
        ({"role": "assistant", "tool_calls": [{**CALL, "id": None}]}, ".tool_calls[0].id", "invalid_type"),
        ({"role": "assistant", "tool_calls": [{**CALL, "type": "x"}]}, ".tool_calls[0].type", "invalid_value"),
        ({"role": "assistant", "tool_calls": [{**CALL, "x": 1}]}, ".tool_calls[0].x", "unknown_parameter"),
        ({"role": "assistant", "tool_calls": [{"id": "a"}]}, ".tool_calls[0].function", "invalid_type"),
        (
            {"role": "assistant", "tool_calls": [CALL, {"id": "a", "function": {"name": ""}}]},
            ".tool_calls[1].function.name",
            "invalid_value",
        ),
        (
            {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": 3}}]},
            ".tool_calls[0].function.arguments",
            "invalid_type",
        ),
        (
            {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": {"a": {1}}}}]},
            ".tool_calls[0].function.arguments",
            "invalid_json",
        ),
        (
            {"role": "assistant", "tool_calls": [CALL], "function_call": {"name": "f"}},
            ".function_call",
            "invalid_value",
        ),
        ({"role": "tool", "content": "x"}, ".tool_call_id", "invalid_type"),
        ({"role": "function", "content": "x"}, ".name", "missing_required_parameter"),
    ],
)
def test_what_is_wrong_is_named(message: Any, param: str, code: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_conversation([{"role": "user", "content": "fine"}, message])
    assert (caught.value.param, caught.value.code) == (f"messages[1]{param}", code)


@pytest.mark.parametrize("kind", ["image_url", "input_image", "input_audio", "file", "video_url"])
def test_other_media_are_refused_by_name(kind: str) -> None:
    parts = [{"type": "text", "text": "look"}, {"type": kind, kind: {"url": "x"}}]
    with pytest.raises(UnsupportedFeature, match=kind) as caught:
        parse_conversation([{"role": "user", "content": "a"}, {"role": "user", "content": parts}])
    assert caught.value.param == "messages[1].content[1]"
    with pytest.raises(UnsupportedFeature, match="audio"):
        parse_conversation([{"role": "assistant", "content": "x", "audio": {"id": "a"}}])
    with pytest.raises(UnsupportedFeature, match="custom"):
        parse_conversation([{"role": "assistant", "tool_calls": [{"id": "a", "type": "custom"}]}])


@pytest.mark.parametrize("messages", [None, [], "hello", {"role": "user"}, ()])
def test_there_must_be_messages(messages: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_conversation(messages, param="input")
    assert caught.value.param == "input"


def test_deep_arguments_are_refused() -> None:
    deep: Any = {}
    for _ in range(2000):
        deep = {"a": deep}
    call = {"id": "a", "function": {"name": "f", "arguments": deep}}
    with pytest.raises(InvalidRequest, match="levels deep"):
        parse_conversation([{"role": "assistant", "tool_calls": [call]}])
