"""openai-agents: chat and responses models, structured output, forced tools, streams, previous responses.

The SDK does not hand out finish reasons, so a proxy reads them off the wire.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import openai
from agents import (
    Agent,
    FunctionTool,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from checking import (
    SYSTEM,
    Server,
    check,
    expect,
    expect_cached,
    expect_equal,
    expect_raises,
    expect_text,
    expect_usage,
    run_checks,
    too_long,
)
from proxy import Exchange, Proxy
from pydantic import BaseModel, Field
from tool_calls import MAX_TOKENS, TOOLS, Call, calls

SERVER = Server.from_environment()
KINDS = (OpenAIChatCompletionsModel, OpenAIResponsesModel)
# The SDK takes an answer cut by length for a failure, so it gets room for one that ends by itself.
LIMIT = 200
GREEDY = ModelSettings(temperature=0, max_tokens=LIMIT)
PROMPT = "Say hello to Ada."
set_tracing_disabled(True)
CALLS: list[tuple[int, int]] = []


class Person(BaseModel):
    """A person."""

    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=150)


@function_tool
def multiply(first: int, second: int) -> int:
    """Multiply two whole numbers."""
    CALLS.append((first, second))
    return first * second


def with_model(
    kind: Any, use: Callable[[Any], Awaitable[Any]], *, name: str = SERVER.model, key: str = SERVER.key
) -> Any:
    """What ``use`` makes of a model of that kind, and the exchanges it took."""

    async def run(proxy: Proxy) -> Any:
        async with openai.AsyncOpenAI(base_url=f"{proxy.root}/v1", api_key=key, max_retries=0, timeout=110) as client:
            return await use(kind(model=name, openai_client=client))

    with Proxy(SERVER.root) as proxy:
        return asyncio.run(run(proxy)), proxy.exchanges


def finish(kind: Any, exchange: Exchange) -> Any:
    """How an answer ended: the finish reason of chat, the status of a response."""
    documents = [document for document in exchange.documents if isinstance(document, dict)]
    if kind is OpenAIChatCompletionsModel:
        reasons = [choice.get("finish_reason") for document in documents for choice in document["choices"]]
        return [reason for reason in reasons if reason is not None]
    final = documents[-1].get("response", documents[-1])
    return [final.get("status")]


def agent(model: Any, settings: ModelSettings = GREEDY, **more: Any) -> Agent[Any]:
    """An agent on that model."""
    return Agent(name="checker", instructions=SYSTEM, model=model, model_settings=settings, **more)


def ask(kind: Any) -> Any:
    """One greedy run and its exchanges."""
    return with_model(kind, lambda model: Runner.run(agent(model), PROMPT))


@check
def runs_have_content_usage_and_finish_reason() -> None:
    for kind in KINDS:
        result, exchanges = ask(kind)
        expect_text(result.final_output)
        usage = result.context_wrapper.usage
        expect_usage(usage.input_tokens, usage.output_tokens, usage.total_tokens, most=LIMIT)
        wanted = ["stop" if kind is OpenAIChatCompletionsModel else "completed"]
        expect_equal(finish(kind, exchanges[-1]), wanted, f"{kind.__name__}: finish reasons")
        again, _ = ask(kind)
        expect_equal(again.final_output, result.final_output, f"{kind.__name__}: text of the same request")
        expect_cached(again.context_wrapper.usage.input_tokens_details.cached_tokens, usage.input_tokens)


@check
def streams_equal_runs() -> None:
    async def stream(model: Any) -> Any:
        settings = ModelSettings(temperature=0, max_tokens=LIMIT, include_usage=True)
        result = Runner.run_streamed(agent(model, settings), PROMPT)
        deltas = [
            event.data.delta
            async for event in result.stream_events()
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
        ]
        return "".join(deltas), len(deltas), result

    for kind in KINDS:
        whole, _ = ask(kind)
        (text, parts, result), exchanges = with_model(kind, stream)
        expect_equal(
            (text, result.final_output),
            (whole.final_output, whole.final_output),
            f"{kind.__name__}: text of the stream",
        )
        expect(parts > 3, f"{kind.__name__}: the stream has only {parts} parts")
        usage = result.context_wrapper.usage
        expect_equal(
            usage.output_tokens, whole.context_wrapper.usage.output_tokens, f"{kind.__name__}: generated tokens"
        )
        expect_equal(len(finish(kind, exchanges[-1])), 1, f"{kind.__name__}: number of finish reasons in the stream")


@check
def structured_output() -> None:
    for kind in KINDS:
        settings = ModelSettings(temperature=0, max_tokens=200)
        result, _ = with_model(
            kind,
            lambda model, settings=settings: Runner.run(agent(model, settings, output_type=Person), "Invent a person."),
        )
        expect(isinstance(result.final_output, Person), f"{kind.__name__}: {result.final_output!r}")


@check
def forced_tools_run_and_the_agent_goes_on() -> None:
    for kind in KINDS:
        for choice in ("required", "multiply"):
            CALLS.clear()
            settings = ModelSettings(temperature=0, max_tokens=120, tool_choice=choice, parallel_tool_calls=False)
            result, exchanges = with_model(
                kind,
                lambda model, settings=settings: Runner.run(
                    agent(model, settings, tools=[multiply], tool_use_behavior="stop_on_first_tool"),
                    "What is 6 times 7?",
                ),
            )
            expect_equal(len(CALLS), 1, f"{kind.__name__}, tool_choice={choice}: number of calls")
            expect_equal(result.final_output, str(CALLS[0][0] * CALLS[0][1]), "result of the tool")
            if kind is OpenAIChatCompletionsModel:
                expect_equal(finish(kind, exchanges[0]), ["tool_calls"], "finish_reason")
        history = result.to_input_list()
        answer, _ = with_model(kind, lambda model, history=history: Runner.run(agent(model), history))
        expect_text(answer.final_output)


@check
def forced_tools_stream() -> None:
    async def stream(model: Any) -> Any:
        settings = ModelSettings(temperature=0, max_tokens=120, tool_choice="multiply", parallel_tool_calls=False)
        told = agent(model, settings, tools=[multiply], tool_use_behavior="stop_on_first_tool")
        result = Runner.run_streamed(told, "What is 6 times 7?")
        async for _ in result.stream_events():
            pass
        return result.final_output

    for kind in KINDS:
        CALLS.clear()
        output, _ = with_model(kind, stream)
        expect_equal(len(CALLS), 1, f"{kind.__name__}: number of calls")
        expect_equal(output, str(CALLS[0][0] * CALLS[0][1]), f"{kind.__name__}: result of the tool")


@check
def tool_calls_at_temperature_one() -> None:
    async def one(model: Any, call: Call) -> None:
        called: list[tuple[str, str | dict[str, Any]]] = []

        def tool(name: str) -> FunctionTool:
            async def invoke(context: Any, arguments: str) -> str:
                called.append((name, arguments))
                return "done"

            about, schema = TOOLS[name].__doc__ or "", TOOLS[name].model_json_schema()
            return FunctionTool(name, about, schema, invoke, strict_json_schema=False)

        settings = ModelSettings(
            temperature=1,
            max_tokens=MAX_TOKENS,
            tool_choice=call.tool if call.named else "required",
            parallel_tool_calls=False,
            extra_body={"seed": call.number},
        )
        asked = agent(model, settings, tools=[tool(name) for name in TOOLS], tool_use_behavior="stop_on_first_tool")
        if call.stream:
            async for _ in Runner.run_streamed(asked, call.question).stream_events():
                pass
        else:
            await Runner.run(asked, call.question)
        call.expect_tools(called)

    for kind in KINDS:
        chosen = [call for call in calls() if (call.number // 2 % 2 == 0) is (kind is OpenAIChatCompletionsModel)]

        async def some(model: Any, *, chosen: list[Call] = chosen) -> None:
            await asyncio.gather(*(one(model, call) for call in chosen))

        with_model(kind, some)


@check
def previous_responses_are_kept() -> None:
    async def two_turns(model: Any) -> Any:
        first = await Runner.run(agent(model), PROMPT)
        second = await Runner.run(agent(model), "And which is the best?", previous_response_id=first.last_response_id)
        return first, second

    (first, second), _ = with_model(OpenAIResponsesModel, two_turns)
    expect_text(second.final_output)
    one, two = (each.context_wrapper.usage for each in (first, second))
    expect(
        two.input_tokens >= one.total_tokens,
        f"turn one had {one.total_tokens} tokens, turn two only {two.input_tokens}",
    )


@check
def errors_have_their_classes() -> None:
    for kind in KINDS:

        def run(text: str = "hi", *, kind: Any = kind, **access: str) -> Any:
            return with_model(kind, lambda model: Runner.run(agent(model), text), **access)

        error = expect_raises(openai.BadRequestError, lambda run=run: run(too_long(SERVER)))
        expect_equal(error.code, "context_length_exceeded", "code")
        expect_raises(openai.NotFoundError, lambda run=run: run(name="nobody-knows-this"))
        expect_raises(openai.AuthenticationError, lambda run=run: run(key="not-the-key"))


if __name__ == "__main__":
    run_checks()
