"""pydantic-ai: chat and responses models, every kind of structured output, tools, streams."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from checking import (
    PROMPT,
    SYSTEM,
    Server,
    check,
    expect,
    expect_cached,
    expect_equal,
    expect_raises,
    expect_text,
    expect_usage,
    middle_word,
    run_checks,
    too_long,
)
from openai import AsyncOpenAI
from pydantic import BaseModel, Field
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.exceptions import ModelAuthenticationError, ModelContextWindowExceededError, ModelNotFoundError
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, ToolReturnPart, UserPromptPart
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition
from tool_calls import MAX_TOKENS, TOOLS, Call, calls

SERVER = Server.from_environment()
MODELS = (OpenAIChatModel, OpenAIResponsesModel)
GREEDY = ModelSettings(temperature=0, max_tokens=24)
LONGER = ModelSettings(temperature=0, max_tokens=200, parallel_tool_calls=False)


class Person(BaseModel):
    """A person."""

    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=150)


def with_model(
    kind: Any, use: Callable[[Any], Awaitable[Any]], *, name: str = SERVER.model, key: str = SERVER.key
) -> Any:
    """What ``use`` makes of a model of that kind; its connections live in one event loop and end with it."""

    async def run() -> Any:
        async with AsyncOpenAI(base_url=SERVER.url, api_key=key, max_retries=0, timeout=110) as client:
            return await use(kind(name, provider=OpenAIProvider(openai_client=client)))

    return asyncio.run(run())


def last_response(result: Any) -> ModelResponse:
    """The last answer of the model in a run."""
    return [message for message in result.all_messages() if isinstance(message, ModelResponse)][-1]


def ask(kind: Any, settings: ModelSettings = GREEDY) -> Any:
    """The result of one greedy run."""
    return with_model(kind, lambda model: Agent(model, system_prompt=SYSTEM, model_settings=settings).run(PROMPT))


@check
def runs_have_content_usage_and_finish_reason() -> None:
    for kind in MODELS:
        result = ask(kind)
        expect_text(result.output)
        usage = last_response(result).usage
        expect_usage(usage.input_tokens, usage.output_tokens, usage.input_tokens + usage.output_tokens, most=24)
        reason = last_response(result).finish_reason
        expect(
            reason == "length" if usage.output_tokens == 24 else reason == "stop",
            f"{kind.__name__}: finish_reason {reason!r}",
        )
        again = ask(kind)
        expect_equal(again.output, result.output, f"{kind.__name__}: text of the same request")
        expect_cached(last_response(again).usage.cache_read_tokens, usage.input_tokens)


@check
def streams_equal_runs() -> None:
    async def stream(model: Any) -> tuple[str, Any, Any]:
        async with Agent(model, system_prompt=SYSTEM, model_settings=GREEDY).run_stream(PROMPT) as run:
            parts = [part async for part in run.stream_text(delta=True, debounce_by=None)]
        return "".join(parts), last_response(run), len(parts)

    for kind in MODELS:
        whole = ask(kind)
        text, response, parts = with_model(kind, stream)
        expect_equal(text, whole.output, f"{kind.__name__}: text of the stream")
        expect(parts > 3, f"{kind.__name__}: the stream has only {parts} parts")
        expect_equal(response.usage.output_tokens, last_response(whole).usage.output_tokens, "generated tokens")
        expect_equal(response.finish_reason, last_response(whole).finish_reason, "finish_reason of the stream")


@check
def settings_reach_the_model() -> None:
    whole = ask(OpenAIChatModel).output
    word = middle_word(whole)
    cut = ask(OpenAIChatModel, ModelSettings(temperature=0, max_tokens=24, stop_sequences=[word]))
    expect_equal(
        (cut.output, last_response(cut).finish_reason), (whole[: whole.index(word)], "stop"), f"text before {word!r}"
    )
    one, two, other = (
        ask(OpenAIChatModel, ModelSettings(temperature=1.3, max_tokens=16, seed=seed)).output for seed in (1, 1, 2)
    )
    expect_equal(two, one, "text of the same seed")
    expect(other != one, f"another seed gave the same text {one!r}")


@check
def structured_output_of_every_kind() -> None:
    for kind in MODELS:
        for output in (ToolOutput(Person), NativeOutput(Person)):
            result = with_model(
                kind,
                lambda model, output=output: Agent(model, output_type=output, model_settings=LONGER, retries=0).run(
                    "Invent a person."
                ),
            )
            expect(isinstance(result.output, Person), f"{kind.__name__}, {type(output).__name__}: {result.output!r}")


@check
def forced_tool_calls_fit_the_schema_and_are_answered() -> None:
    tool = ToolDefinition(
        name="multiply",
        description="Multiply two whole numbers.",
        parameters_json_schema={
            "type": "object",
            "properties": {"first": {"type": "integer"}, "second": {"type": "integer", "minimum": 1, "maximum": 9}},
            "required": ["first", "second"],
            "additionalProperties": False,
        },
    )
    forced = ModelRequestParameters(function_tools=[tool], allow_text_output=False)
    question = ModelRequest([UserPromptPart("What is 6 times 7?")])

    async def two_turns(model: Any) -> Any:
        first = await model_request(model, [question], model_settings=LONGER, model_request_parameters=forced)
        call = first.tool_calls[0]
        answer = ModelRequest([ToolReturnPart(call.tool_name, "42", call.tool_call_id)])
        second = await model_request(model, [question, first, answer], model_settings=GREEDY)
        return first, second

    async def stream(model: Any) -> Any:
        async with model_request_stream(
            model, [question], model_settings=LONGER, model_request_parameters=forced
        ) as parts:
            async for _ in parts:
                pass
            return parts.get()

    for kind in MODELS:
        first, second = with_model(kind, two_turns)
        call = first.tool_calls[0]
        arguments = call.args_as_dict()
        expect_equal((call.tool_name, sorted(arguments)), ("multiply", ["first", "second"]), f"{kind.__name__}: call")
        expect(isinstance(arguments["first"], int) and 1 <= arguments["second"] <= 9, f"{kind.__name__}: {arguments}")
        if kind is OpenAIChatModel:
            expect_equal(first.finish_reason, "tool_call", "finish_reason")
        expect_text("".join(part.content for part in second.parts if isinstance(part, TextPart)), "second turn")
        streamed = with_model(kind, stream).tool_calls[0]
        expect_equal(
            (streamed.tool_name, streamed.args_as_dict()),
            (call.tool_name, arguments),
            f"{kind.__name__}: streamed call",
        )


@check
def tool_calls_at_temperature_one() -> None:
    definitions = {
        name: ToolDefinition(name=name, description=model.__doc__, parameters_json_schema=model.model_json_schema())
        for name, model in TOOLS.items()
    }

    async def one(model: Any, call: Call) -> None:
        offered = [definitions[call.tool]] if call.named else list(definitions.values())
        parameters = ModelRequestParameters(function_tools=offered, allow_text_output=False)
        settings = ModelSettings(temperature=1, seed=call.number, max_tokens=MAX_TOKENS, parallel_tool_calls=False)
        question: Any = [ModelRequest([UserPromptPart(call.question)])]
        if call.stream:
            async with model_request_stream(
                model, question, model_settings=settings, model_request_parameters=parameters
            ) as parts:
                async for _ in parts:
                    pass
                answer = parts.get()
        else:
            answer = await model_request(model, question, model_settings=settings, model_request_parameters=parameters)
        call.expect_tools([(each.tool_name, each.args_as_json_str()) for each in answer.tool_calls])

    for kind in MODELS:
        chosen = [call for call in calls() if (call.number // 2 % 2 == 0) is (kind is OpenAIChatModel)]

        async def some(model: Any, *, chosen: list[Call] = chosen) -> None:
            await asyncio.gather(*(one(model, call) for call in chosen))

        with_model(kind, some)


@check
def errors_have_their_classes() -> None:
    for kind in MODELS:

        def run(text: str = "hi", *, kind: Any = kind, **access: str) -> Any:
            return with_model(kind, lambda model: Agent(model, model_settings=GREEDY).run(text), **access)

        expect_raises(ModelContextWindowExceededError, lambda run=run: run(too_long(SERVER)))
        expect_raises(ModelNotFoundError, lambda run=run: run(name="nobody-knows-this"))
        expect_raises(ModelAuthenticationError, lambda run=run: run(key="not-the-key"))


if __name__ == "__main__":
    run_checks()
