"""langchain-openai: chat models, structured output, tools, completions, embeddings, the responses API."""

from __future__ import annotations

import asyncio
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
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel, Field
from tool_calls import MAX_TOKENS, Call, calls, functions

SERVER = Server.from_environment()
ACCESS: dict[str, Any] = {
    "model": SERVER.model,
    "base_url": SERVER.url,
    "api_key": SERVER.key,
    "max_retries": 0,
    "timeout": 110,
}
CHAT = ChatOpenAI(**ACCESS, temperature=0, max_tokens=24)
LONGER = ChatOpenAI(**ACCESS, temperature=0, max_tokens=160)
RESPONSES = ChatOpenAI(**ACCESS, temperature=0, max_tokens=24, use_responses_api=True)
MESSAGES = [SystemMessage(SYSTEM), HumanMessage(PROMPT)]


class Person(BaseModel):
    """A person."""

    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=150)


@tool
def multiply(first: int, second: int) -> int:
    """Multiply two whole numbers."""
    return first * second


@check
def invoke_has_content_usage_and_finish_reason() -> None:
    answer = CHAT.invoke(MESSAGES)
    expect_text(answer.content)
    usage = answer.usage_metadata
    expect(usage is not None, "usage_metadata is missing")
    expect_usage(usage["input_tokens"], usage["output_tokens"], usage["total_tokens"], most=24)
    expect_ended(answer.response_metadata.get("finish_reason"), usage["output_tokens"], 24)
    expect_equal(answer.response_metadata["model_name"], SERVER.model, "model_name")
    again = CHAT.invoke(MESSAGES)
    expect_equal(again.content, answer.content, "text of the same request")
    expect_cached(again.usage_metadata["input_token_details"].get("cache_read"), usage["input_tokens"])


@check
def stream_equals_invoke() -> None:
    whole = CHAT.invoke(MESSAGES)
    told = list(CHAT.stream(MESSAGES, stream_usage=True))
    expect(len(told) > 3, f"the stream has only {len(told)} chunks")
    total = told[0]
    for chunk in told[1:]:
        total += chunk
    expect_equal(total.content, whole.content, "text of the stream")
    expect_equal(
        total.response_metadata.get("finish_reason"), whole.response_metadata["finish_reason"], "finish_reason"
    )
    expect(total.usage_metadata is not None, "usage of the stream is missing")
    expect_equal(total.usage_metadata["output_tokens"], whole.usage_metadata["output_tokens"], "generated tokens")


@check
def batch_and_stop() -> None:
    whole = expect_text(CHAT.invoke(MESSAGES).content)
    expect_equal([answer.content for answer in CHAT.batch([MESSAGES] * 3)], [whole] * 3, "texts of a batch")
    word = middle_word(whole)
    cut = CHAT.invoke(MESSAGES, stop=[word])
    expect_equal(cut.content, whole[: whole.index(word)], f"text before {word!r}")
    expect_equal(cut.response_metadata["finish_reason"], "stop", "finish_reason")


@check
def several_generations() -> None:
    sampled = ChatOpenAI(**ACCESS, temperature=1.2, max_tokens=16, n=3, seed=3)
    result = sampled.generate([MESSAGES])
    texts = [expect_text(generation.text) for generation in result.generations[0]]
    expect_equal(len(texts), 3, "number of generations")
    expect(len(set(texts)) > 1, f"three samples are all {texts[0]!r}")
    expect_equal([each.text for each in sampled.generate([MESSAGES]).generations[0]], texts, "samples of the same seed")


@check
def logprobs_come_along() -> None:
    answer = CHAT.bind(logprobs=True, top_logprobs=2).invoke(MESSAGES)
    content = (answer.response_metadata.get("logprobs") or {}).get("content")
    expect(content, "logprobs are missing")
    expect(
        all(token["logprob"] <= 0 and len(token["top_logprobs"]) == 2 for token in content), "logprobs are not in order"
    )


@check
def structured_output_by_every_method() -> None:
    for method in ("json_schema", "function_calling"):
        for strict in (None, True):
            model = LONGER.with_structured_output(Person, method=method, strict=strict, include_raw=True)
            result = model.invoke("Invent a person.")
            expect(result["parsing_error"] is None, f"{method}, strict={strict}: {result['parsing_error']}")
            expect(isinstance(result["parsed"], Person), f"{method}, strict={strict}: {result['parsed']!r}")
    asked = 'Reply with this JSON object and nothing else: {"name": "Ada", "age": 36}'
    answer = LONGER.bind(response_format={"type": "json_object"}).invoke(asked)
    expect_equal(expect_text(answer.content).lstrip()[:1], "{", "first character in JSON mode")


@check
def forced_tools_run_and_answer() -> None:
    for choice in ("multiply", "any"):
        bound = LONGER.bind_tools([multiply], tool_choice=choice, parallel_tool_calls=False)
        answer = bound.invoke("What is 6 times 7?")
        expect(
            answer.tool_calls and not answer.invalid_tool_calls, f"tool_choice={choice}: no valid call in {answer!r}"
        )
        expect_equal(answer.response_metadata["finish_reason"], "tool_calls", "finish_reason")
        call = answer.tool_calls[0]
        message = multiply.invoke(call)
        expect(isinstance(message, ToolMessage), f"tool result: {message!r}")
        total: Any = None
        for chunk in bound.stream("What is 6 times 7?"):
            total = chunk if total is None else total + chunk
        expect_equal(
            [(c["name"], c["args"]) for c in total.tool_calls], [(call["name"], call["args"])], "streamed calls"
        )
        history = [HumanMessage("What is 6 times 7?"), AIMessage("", tool_calls=[call]), message]
        expect_text(CHAT.bind_tools([multiply], tool_choice="none").invoke(history).content)


@check
def tool_calls_at_temperature_one() -> None:
    model = ChatOpenAI(**ACCESS, temperature=1, max_tokens=MAX_TOKENS)

    async def one(call: Call) -> None:
        choice = call.tool if call.named else "required"
        bound = model.bind_tools(functions(), tool_choice=choice, parallel_tool_calls=False, seed=call.number)
        answer: Any = None
        if call.stream:
            async for chunk in bound.astream(call.question):
                answer = chunk if answer is None else answer + chunk
        else:
            answer = await bound.ainvoke(call.question)
        expect(not answer.invalid_tool_calls, f"call {call.number}: invalid calls {answer.invalid_tool_calls}")
        expect_equal(answer.response_metadata["finish_reason"], "tool_calls", f"call {call.number}: finish_reason")
        call.expect_tools([(each["name"], each["args"]) for each in answer.tool_calls])

    async def all_of_them() -> None:
        await asyncio.gather(*map(one, calls()))

    asyncio.run(all_of_them())


@check
def completions_and_embeddings() -> None:
    model = OpenAI(**ACCESS, temperature=0, max_tokens=12)
    result = model.generate(["The sky is", "One, two, three,"])
    texts = [expect_text(generations[0].text) for generations in result.generations]
    usage = result.llm_output["token_usage"]
    expect_usage(usage.get("prompt_tokens"), usage.get("completion_tokens"), usage.get("total_tokens"), most=24)
    for generations in result.generations:
        reason = generations[0].generation_info["finish_reason"]
        expect(reason in ("stop", "length"), f"finish_reason: {reason!r}")
    expect_equal("".join(model.stream("The sky is")), texts[0], "text of the stream")
    embeddings = OpenAIEmbeddings(**ACCESS, check_embedding_ctx_length=False)
    vectors = embeddings.embed_documents(["A cat sat on the mat.", "Rates rose again."])
    expect(
        len(vectors) == 2 and len(vectors[0]) == len(vectors[1]) > 100, f"sizes: {[len(vector) for vector in vectors]}"
    )
    query = embeddings.embed_query("A cat sat on the mat.")
    expect(max(abs(a - b) for a, b in zip(query, vectors[0], strict=True)) < 1e-5, "query and document differ")


@check
def responses_api() -> None:
    answer = RESPONSES.invoke(MESSAGES)
    text = expect_text(answer.text)
    usage = answer.usage_metadata
    expect(usage is not None, "usage_metadata is missing")
    expect_usage(usage["input_tokens"], usage["output_tokens"], usage["total_tokens"], most=24)
    expect(
        answer.response_metadata["status"] in ("completed", "incomplete"),
        f"status: {answer.response_metadata['status']!r}",
    )
    total: Any = None
    for chunk in RESPONSES.stream(MESSAGES):
        total = chunk if total is None else total + chunk
    expect_equal(total.text, text, "text of the stream")
    expect_equal(total.usage_metadata["output_tokens"], usage["output_tokens"], "generated tokens of the stream")
    longer = ChatOpenAI(**ACCESS, temperature=0, max_tokens=160, use_responses_api=True)
    person = longer.with_structured_output(Person).invoke("Invent a person.")
    expect(isinstance(person, Person), f"structured output: {person!r}")
    called = longer.bind_tools([multiply], tool_choice="multiply").invoke("What is 6 times 7?")
    expect_equal([call["name"] for call in called.tool_calls], ["multiply"], "called tools")
    expect(isinstance(multiply.invoke(called.tool_calls[0]), ToolMessage), "the arguments do not fit the tool")


@check
def errors_have_their_classes() -> None:
    expect_raises(ContextOverflowError, lambda: CHAT.invoke(too_long(SERVER)))
    expect_raises(openai.NotFoundError, lambda: ChatOpenAI(**{**ACCESS, "model": "nobody-knows-this"}).invoke("hi"))
    expect_raises(openai.AuthenticationError, lambda: ChatOpenAI(**{**ACCESS, "api_key": "not-the-key"}).invoke("hi"))


if __name__ == "__main__":
    run_checks()
