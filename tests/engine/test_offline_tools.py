"""Tools in the offline API: calls that match their schemas, whatever the model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from radixserve.chat.tools import parse_tools
from radixserve.engine.offline import Engine
from radixserve.errors import InvalidRequest
from radixserve.messages import FinishReason, SamplingParams
from tests.tiny_model import tiny_model

SCHEMA = {
    "type": "object",
    "properties": {"unit": {"enum": ["C", "F"]}, "day": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["unit"],
}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "weather", "description": "Weather.", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "noon"}},
]
MESSAGES: list[dict[str, Any]] = [{"role": "user", "content": "warm?"}]
WEATHER: dict[str, Any] = {"type": "function", "function": {"name": "weather"}}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine.from_model(tiny_model("llama"), threads=1) as engine:
        yield engine


def test_forced_calls_match_their_schema(engine: Engine) -> None:
    """A model of random weights calls as rightly as any."""
    for seed in range(5):
        params = SamplingParams(temperature=1.0, seed=seed, max_tokens=200)
        output = engine.chat(MESSAGES, params, tools=TOOLS, tool_choice=WEATHER)
        assert output.finish_reason is FinishReason.STOP
        message = engine.parse_chat(output, tools=TOOLS, tool_choice=WEATHER)
        (call,) = message.tool_calls
        assert (message.content, call.name) == (None, "weather")
        jsonschema.validate(json.loads(call.arguments), SCHEMA)


def test_tools_are_shown_and_choices_leave_the_prompt_alone(engine: Engine) -> None:
    shown = engine.apply_chat_template(MESSAGES, tools=TOOLS)
    text = engine.detokenize(shown)
    assert '"name": "weather"' in text and '"name": "noon"' in text
    assert engine.apply_chat_template(MESSAGES, tools=TOOLS, tool_choice=WEATHER) == shown
    assert engine.apply_chat_template(MESSAGES, tools=TOOLS, tool_choice="none") == shown
    assert len(engine.apply_chat_template(MESSAGES)) < len(shown)


def test_samples_are_parsed_one_by_one(engine: Engine) -> None:
    params = SamplingParams(temperature=1.0, seed=1, n=2, max_tokens=200)
    output = engine.chat(MESSAGES, params, tools=TOOLS, tool_choice=WEATHER)
    for sample in (0, 1):
        (call,) = engine.parse_chat(output, sample=sample, tools=TOOLS, tool_choice=WEATHER).tool_calls
        assert call.arguments in output.samples[sample].text


def test_what_cannot_be_enforced_is_named(engine: Engine) -> None:
    odd = {"name": "f", "parameters": {"properties": {"a": {"type": 3}}}}
    tools = [TOOLS[1], {"type": "function", "function": odd}]
    with pytest.raises(InvalidRequest) as caught:
        engine.chat(MESSAGES, SamplingParams(max_tokens=5), tools=tools)
    assert caught.value.param == "tools[1].function.parameters"
    constrained = SamplingParams(max_tokens=5, constraint=engine.chat_format.constraint(parse_tools(TOOLS)))
    with pytest.raises(InvalidRequest, match="another constraint"):
        engine.chat(MESSAGES, constrained, tools=TOOLS)
