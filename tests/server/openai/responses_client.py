"""What the tests of ``/v1/responses`` share: requests, and a reader of streams as strict as the official client's."""

from __future__ import annotations

from typing import Any

import msgspec

from radixserve.chat.format import ChatFormat
from radixserve.chat.tools import parse_tools
from radixserve.model.chat_template import ChatTemplate
from tests.server.fake_client import FakeClient, Script, fake_info, text_model
from tests.server.harness import Harness
from tests.tiny_model import TEMPLATE

PATH = "/v1/responses"
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}
PERSON = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}


def wide(script: Script) -> FakeClient:
    """An engine with room for prompts that show tools."""
    return FakeClient(script, info=fake_info(context_length=8192, num_blocks=1024))


def call_text(arguments: str) -> str:
    """A call as the model of these tests writes it."""
    text = text_model()
    syntax = ChatFormat(text.chat_template, text.tokenizer).traits.syntax
    return syntax.example(parse_tools([WEATHER]).tools[0], arguments)


def let_reason(server: Harness) -> None:
    """From now on the template opens a block of reasoning."""
    text = text_model()
    template = TEMPLATE.replace("<|im_start|>assistant\n", "<|im_start|>assistant\n<think>\n")
    assert template != TEMPLATE
    server.service.chat = ChatFormat(ChatTemplate(template + "{# </think> #}"), text.tokenizer)


async def create(server: Harness, body: dict[str, Any]) -> dict[str, Any]:
    """The response to a request that is not refused."""
    response = await server.post(PATH, body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def stream(server: Harness, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of a stream: each is named as its type says, and they are numbered from 0."""
    response = await server.post(PATH, {**body, "stream": True})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    events = []
    for number, block in enumerate(block for block in response.text.split("\n\n") if block):
        name, data = block.split("\n")
        event = msgspec.json.decode(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event["sequence_number"] == number
        events.append(event)
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    assert all(event["response"]["status"] == "in_progress" for event in events[:2])
    return events


def followed(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The output items put together from deltas alone, checked against what the events say themselves."""
    items: list[dict[str, Any]] = []
    done: list[dict[str, Any]] = []
    for event in events:
        kind = event["type"]
        if kind == "response.output_item.added":
            assert event["output_index"] == len(items) == len(done), "one item at a time"
            item = event["item"]
            assert item["status"] == "in_progress" and not item.get("content") and not item.get("arguments")
            items.append(item)
        elif kind == "response.content_part.added":
            place_of(event, items)["content"].append(event["part"])
        elif kind in ("response.output_text.delta", "response.reasoning_text.delta"):
            part = place_of(event, items)["content"][event["content_index"]]
            part["text"] += event["delta"]
            if part["type"] == "output_text":
                part["logprobs"] += event["logprobs"]
        elif kind == "response.function_call_arguments.delta":
            place_of(event, items)["arguments"] += event["delta"]
        elif kind in ("response.output_text.done", "response.reasoning_text.done"):
            assert place_of(event, items)["content"][event["content_index"]]["text"] == event["text"]
        elif kind == "response.content_part.done":
            assert place_of(event, items)["content"][event["content_index"]] == event["part"]
        elif kind == "response.function_call_arguments.done":
            assert place_of(event, items)["arguments"] == event["arguments"]
        elif kind == "response.output_item.done":
            assert {**items[event["output_index"]], "status": event["item"]["status"]} == event["item"]
            done.append(event["item"])
    assert len(done) == len(items)
    return done


def place_of(event: dict[str, Any], items: list[dict[str, Any]]) -> dict[str, Any]:
    """The item that an event is about, which must be the one that is written."""
    assert event["output_index"] == len(items) - 1
    item = items[-1]
    assert event["item_id"] == item["id"]
    return item


def without_ids(value: Any) -> Any:
    """``value`` without what differs between two runs."""
    if isinstance(value, dict):
        varying = ("id", "call_id", "created_at", "completed_at", "timings")
        return {key: without_ids(item) for key, item in value.items() if key not in varying}
    return [without_ids(item) for item in value] if isinstance(value, list) else value


async def both(server: Harness, body: dict[str, Any]) -> dict[str, Any]:
    """The response, after it was made sure that a stream says the same."""
    whole = await create(server, body)
    events = await stream(server, body)
    last = events[-1]["response"]
    assert followed(events) == last["output"]
    assert without_ids(last) == without_ids(whole)
    return whole
