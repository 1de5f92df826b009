"""smolagents: its OpenAI model, whole and streamed, tools, structured output, a tool calling agent."""

from __future__ import annotations

import json
from typing import Any

import openai
from checking import (
    PROMPT,
    SYSTEM,
    Server,
    check,
    expect,
    expect_cached,
    expect_ended,
    expect_equal,
    expect_raises,
    expect_text,
    expect_usage,
    middle_word,
    run_checks,
    too_long,
)
from smolagents import OpenAIModel, ToolCallingAgent, tool
from smolagents.models import agglomerate_stream_deltas
from smolagents.utils import AgentGenerationError

SERVER = Server.from_environment()
MESSAGES: Any = [
    {"role": "system", "content": [{"type": "text", "text": SYSTEM}]},
    {"role": "user", "content": [{"type": "text", "text": PROMPT}]},
]


@tool
def multiply(first: int, second: int) -> int:
    """Multiply two whole numbers.

    Args:
        first: One number.
        second: The other.

    """
    return first * second


def model(limit: int = 24, **more: Any) -> OpenAIModel:
    """A greedy model that writes at most that many tokens."""
    access = {"model_id": SERVER.model, "api_base": SERVER.url, "api_key": SERVER.key}
    settings = {
        "client_kwargs": {"max_retries": 0, "timeout": 110},
        "retry": False,
        "max_tokens": limit,
        "temperature": 0,
    }
    return OpenAIModel(**{**access, **settings, **more})


@check
def generate_has_content_usage_and_finish_reason() -> None:
    answer = model().generate(MESSAGES)
    text = expect_text(answer.content)
    usage = answer.token_usage
    expect_usage(usage.input_tokens, usage.output_tokens, usage.total_tokens, most=24)
    expect_ended(answer.raw.choices[0].finish_reason, usage.output_tokens, 24)
    again = model().generate(MESSAGES)
    expect_equal(again.content, text, "text of the same request")
    expect(again.raw.usage.prompt_tokens_details is not None, "prompt_tokens_details is missing")
    expect_cached(again.raw.usage.prompt_tokens_details.cached_tokens, usage.input_tokens)


@check
def stream_equals_generate() -> None:
    whole = model().generate(MESSAGES)
    deltas = list(model().generate_stream(MESSAGES))
    expect(len(deltas) > 3, f"the stream has only {len(deltas)} parts")
    expect_equal(agglomerate_stream_deltas(deltas).content, whole.content, "text of the stream")
    usages = [delta.token_usage for delta in deltas if delta.token_usage is not None]
    expect_equal([each.output_tokens for each in usages], [whole.token_usage.output_tokens], "usage of the stream")


@check
def stop_sequences() -> None:
    whole = expect_text(model().generate(MESSAGES).content)
    word = middle_word(whole)
    cut = model().generate(MESSAGES, stop_sequences=[word])
    expect_equal(cut.raw.choices[0].finish_reason, "stop", "finish_reason")
    expect_equal(cut.content, whole[: whole.index(word)], f"text before {word!r}")


@check
def structured_output() -> None:
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 20},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema, "strict": True}}
    answer = model(160).generate(MESSAGES, response_format=form)
    person = json.loads(answer.content)
    expect(sorted(person) == ["age", "name"] and 0 <= person["age"] <= 150, f"person: {person!r}")
    expect_equal(answer.raw.choices[0].finish_reason, "stop", "finish_reason")


@check
def tool_calls_fit_the_tool() -> None:
    answer = model(120).generate(MESSAGES, tools_to_call_from=[multiply])
    expect(answer.tool_calls, f"no tool was called: {answer.content!r}")
    call = answer.tool_calls[0].function
    expect_equal(call.name, "multiply", "called tool")
    arguments = json.loads(call.arguments)
    expect(isinstance(multiply(arguments["first"], arguments["second"]), int), f"arguments: {call.arguments!r}")
    expect_equal(answer.raw.choices[0].finish_reason, "tool_calls", "finish_reason")
    streamed = agglomerate_stream_deltas(list(model(120).generate_stream(MESSAGES, tools_to_call_from=[multiply])))
    expect(streamed.tool_calls, "no tool call in the stream")
    expect_equal(streamed.tool_calls[0].function.arguments, call.arguments, "streamed arguments")


@check
def agent_takes_a_step() -> None:
    """The agent may or may not solve its task with so small a model; its step must hold a call it could parse and run."""
    for stream in (False, True):
        agent = ToolCallingAgent(
            tools=[multiply], model=model(120), max_steps=1, verbosity_level=0, stream_outputs=stream
        )
        agent.run("What is 6 times 7?")
        step = agent.memory.steps[1]
        expect(step.tool_calls, f"stream={stream}: the step has no tool call, error: {step.error}")
        expect(
            step.tool_calls[0].name in ("multiply", "final_answer"),
            f"stream={stream}: called {step.tool_calls[0].name!r}",
        )
        expect(step.token_usage.output_tokens > 0, f"stream={stream}: usage of the step")


@check
def errors_have_their_classes() -> None:
    long = [{"role": "user", "content": [{"type": "text", "text": too_long(SERVER)}]}]
    error = expect_raises(openai.BadRequestError, lambda: model().generate(long))
    expect_equal(error.code, "context_length_exceeded", "code")
    expect_raises(openai.NotFoundError, lambda: model(model_id="nobody-knows-this").generate(MESSAGES))
    expect_raises(openai.AuthenticationError, lambda: model(api_key="not-the-key").generate(MESSAGES))
    agent = ToolCallingAgent(tools=[], model=model(api_key="not-the-key"), max_steps=1, verbosity_level=0)
    expect_raises(AgentGenerationError, lambda: agent.run("hi"))


if __name__ == "__main__":
    run_checks()
