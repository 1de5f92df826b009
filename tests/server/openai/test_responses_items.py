from __future__ import annotations

from typing import Any

import pytest

from radixserve.chat.conversation import Message, PastCall
from radixserve.errors import InvalidRequest
from radixserve.server.openai.responses_items import Item, conversation_of, parse_items

CALL = {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": '{"a":1}'}
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "3"}
THOUGHT = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}


def said(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


def conversation(items: Any, instructions: str | None = None) -> list[Message]:
    parsed = parse_items(items)
    return list(conversation_of(instructions, [(f"input[{at}]", item) for at, item in enumerate(parsed)])[0])


def test_a_text_is_the_users() -> None:
    assert conversation("Hi", "Be nice.") == [Message("system", "Be nice."), Message("user", "Hi")]


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (said("user", "a"), Message("user", "a")),
        ({**said("user", "a"), "type": "message", "id": None, "status": None}, Message("user", "a")),
        (said("developer", "a"), Message("system", "a")),
        (said("system", [{"type": "input_text", "text": "a"}]), Message("system", "a")),
        (said("user", [{"type": "input_text", "text": "a"}, {"type": "text", "text": "b"}]), Message("user", "ab")),
        (
            said("assistant", [{"type": "output_text", "text": "a", "annotations": [], "logprobs": []}]),
            Message("assistant", "a"),
        ),
        (said("assistant", [{"type": "refusal", "refusal": "no"}]), Message("assistant", "no")),
    ],
)
def test_messages_come_in_several_spellings(item: dict[str, Any], message: Message) -> None:
    assert conversation([item]) == [message]


def test_what_an_assistant_did_in_one_turn_is_one_message() -> None:
    second = {**CALL, "call_id": "call_2"}
    items = [
        said("user", "Hi"),
        THOUGHT,
        said("assistant", "Let me see."),
        CALL,
        second,
        OUTPUT,
        {**OUTPUT, "call_id": "call_2", "output": [{"type": "input_text", "text": "4"}]},
        said("system", "Be brief."),
        said("assistant", "Done."),
        said("assistant", "Really."),
    ]
    calls = (PastCall("call_1", "f", '{"a":1}'), PastCall("call_2", "f", '{"a":1}'))
    assert conversation(items) == [
        Message("user", "Hi"),
        Message("assistant", "Let me see.", tool_calls=calls, reasoning="Hm."),
        Message("tool", "3", "f", tool_call_id="call_1"),
        Message("tool", "4", "f", tool_call_id="call_2"),
        Message("system", "Be brief."),
        Message("assistant", "Done."),
        Message("assistant", "Really."),
    ]


def test_calls_and_answers_keep_their_order() -> None:
    items = [CALL, OUTPUT, {**CALL, "call_id": "call_2"}, said("assistant", "a"), {**OUTPUT, "call_id": "call_2"}]
    roles = [(message.role, message.content, len(message.tool_calls)) for message in conversation(items)]
    assert roles == [
        ("assistant", None, 1),
        ("tool", "3", 0),
        ("assistant", None, 1),
        ("assistant", "a", 0),
        ("tool", "3", 0),
    ]


@pytest.mark.parametrize(
    ("items", "messages"),
    [
        ([THOUGHT, said("user", "Go on.")], [Message("assistant", "", reasoning="Hm."), Message("user", "Go on.")]),
        (
            [THOUGHT, CALL],
            [Message("assistant", None, tool_calls=(PastCall("call_1", "f", '{"a":1}'),), reasoning="Hm.")],
        ),
        (
            [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "S"}]}, said("assistant", "a")],
            [Message("assistant", "a", reasoning="S")],
        ),
        ([{"type": "reasoning", "id": "rs_1", "summary": []}, said("assistant", "a")], [Message("assistant", "a")]),
    ],
)
def test_reasoning_belongs_to_what_follows(items: list[Any], messages: list[Message]) -> None:
    assert conversation(items) == messages


def test_arguments_are_found_again_in_the_request() -> None:
    parsed = parse_items([said("user", "Hi"), said("assistant", "a"), CALL, {**CALL, "call_id": "call_2"}])
    _, places = conversation_of("Be nice.", [(f"input[{at}]", item) for at, item in enumerate(parsed)])
    assert places == {
        "messages[2].tool_calls[0].function.arguments": "input[2].arguments",
        "messages[2].tool_calls[1].function.arguments": "input[3].arguments",
    }


def test_lists_show_what_was_sent_with_ids() -> None:
    text, message, call = parse_items([said("user", "a"), {**said("assistant", "b"), "id": "msg_1"}, CALL])
    assert text.id.startswith("msg_") and message.id == "msg_1" and call.id.startswith("fc_")
    assert text.shown["content"] == [{"type": "input_text", "text": "a"}]
    assert message.shown == {
        "type": "message",
        "id": "msg_1",
        "status": "completed",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "b", "annotations": []}],
    }
    assert call.shown == {**CALL, "id": call.id, "status": "completed"}


def test_references_are_looked_up() -> None:
    stored = parse_items([{**CALL, "id": "fc_1"}])
    known = {item.id: item for item in stored}
    items = parse_items([{"type": "item_reference", "id": "fc_1"}, OUTPUT, {"id": "fc_1"}], find=known.get)
    assert items[0] is stored[0] is items[2]
    for reference in ({"type": "item_reference", "id": "fc_2"}, {"id": "fc_2", "type": None}):
        with pytest.raises(InvalidRequest) as refused:
            parse_items([reference], find=known.get)
        assert (refused.value.param, refused.value.code) == ("input[0].id", "not_found")


def test_an_output_may_belong_to_a_call_of_before() -> None:
    before: list[Item] = parse_items([CALL])
    (item,) = parse_items([OUTPUT], before=before)
    assert item.message.name == "f"


@pytest.mark.parametrize(
    ("item", "param", "code"),
    [
        ("hello", "input[1]", "invalid_type"),
        ({}, "input[1].type", "missing_required_parameter"),
        ({"type": 3}, "input[1].type", "missing_required_parameter"),
        ({"type": "image_generation_call", "id": "a"}, "input[1].type", "unsupported_feature"),
        ({"type": "item_reference"}, "input[1].id", "invalid_type"),
        ({"type": "item_reference", "id": "a", "role": "user"}, "input[1].role", "unknown_parameter"),
        (said("robot", "a"), "input[1].role", "invalid_value"),
        (said("tool", "a"), "input[1].role", "invalid_value"),
        (said("user", None), "input[1].content", "missing_required_parameter"),
        (said("user", 3), "input[1].content", "invalid_type"),
        ({**said("user", "a"), "mood": "good"}, "input[1].mood", "unknown_parameter"),
        ({**said("user", "a"), "status": "lost"}, "input[1].status", "invalid_value"),
        ({**said("user", "a"), "id": 3}, "input[1].id", "invalid_type"),
        (
            said("user", [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": "data:"}]),
            "input[1].content[1]",
            "unsupported_feature",
        ),
        (said("user", [{"type": "input_file", "file_id": "f"}]), "input[1].content[0]", "unsupported_feature"),
        (said("user", [{"type": "input_text", "text": 3}]), "input[1].content[0].text", "invalid_type"),
        ({**CALL, "name": ""}, "input[1].name", "invalid_value"),
        ({**CALL, "arguments": {"a": 1}}, "input[1].arguments", "invalid_type"),
        ({**CALL, "arguments": None}, "input[1].arguments", "missing_required_parameter"),
        ({**CALL, "call_id": None}, "input[1].call_id", "missing_required_parameter"),
        (OUTPUT, "input[1].call_id", "invalid_value"),
        ({**THOUGHT, "content": "a"}, "input[1].content", "invalid_type"),
        ({**THOUGHT, "content": [{"type": "text", "text": "a"}]}, "input[1].content[0]", "invalid_type"),
        ({"type": "reasoning", "encrypted_content": "x"}, "input[1].encrypted_content", "unsupported_feature"),
    ],
)
def test_wrong_items_are_refused_by_their_place(item: Any, param: str, code: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_items([said("user", "Hi"), item])
    assert (refused.value.param, refused.value.code) == (param, code)


def test_an_output_needs_one() -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_items([CALL, {**OUTPUT, "output": None}])
    assert refused.value.param == "input[1].output"
    with pytest.raises(InvalidRequest) as refused:
        parse_items([CALL, {**OUTPUT, "output": [{"type": "input_image", "image_url": "data:"}]}])
    assert refused.value.param == "input[1].output[0]"
