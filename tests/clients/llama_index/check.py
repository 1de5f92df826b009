"""llama-index's OpenAILike: chat and completion models, structured output both ways, tools, logprobs."""

from __future__ import annotations

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
from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel, Field

SERVER = Server.from_environment()
MESSAGES = [ChatMessage(role="system", content=SYSTEM), ChatMessage(role="user", content=PROMPT)]


class Person(BaseModel):
    """A person."""

    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=150)


def model(**more: Any) -> OpenAILike:
    """A greedy chat model that writes at most 24 tokens."""
    asked = {
        "model": SERVER.model, "api_base": SERVER.url, "api_key": SERVER.key, "context_window": SERVER.context,
        "temperature": 0, "max_tokens": 24, "max_retries": 0, "timeout": 110, "is_chat_model": True,
    }  # fmt: skip
    return OpenAILike(**{**asked, **more})


@check
def chat_has_content_usage_and_finish_reason() -> None:
    answer = model().chat(MESSAGES)
    text = expect_text(answer.message.content)
    usage = answer.raw.usage
    expect(usage is not None, "usage is missing")
    expect_usage(usage.prompt_tokens, usage.completion_tokens, usage.total_tokens, most=24)
    expect_equal(
        answer.additional_kwargs.get("total_tokens"), usage.total_tokens, "total_tokens as llama-index hands it on"
    )
    expect_ended(answer.raw.choices[0].finish_reason, usage.completion_tokens, 24)
    again = model().chat(MESSAGES)
    expect_equal(again.message.content, text, "text of the same request")
    expect(again.raw.usage.prompt_tokens_details is not None, "prompt_tokens_details is missing")
    expect_cached(again.raw.usage.prompt_tokens_details.cached_tokens, usage.prompt_tokens)


@check
def streams_equal_chat() -> None:
    whole = model().chat(MESSAGES)
    steps = list(model(additional_kwargs={"stream_options": {"include_usage": True}}).stream_chat(MESSAGES))
    expect(len(steps) > 3, f"the stream has only {len(steps)} parts")
    expect_equal("".join(step.delta or "" for step in steps), whole.message.content, "text of the stream")
    expect_equal(steps[-1].message.content, whole.message.content, "text of the last step")
    reasons = [choice.finish_reason for step in steps for choice in step.raw.choices if choice.finish_reason]
    expect_equal(reasons, [whole.raw.choices[0].finish_reason], "finish reasons of the stream")
    usages = [step.raw.usage for step in steps if step.raw.usage is not None]
    expect_equal(
        [each.completion_tokens for each in usages], [whole.raw.usage.completion_tokens], "usage of the stream"
    )


@check
def completions_of_both_kinds() -> None:
    text = expect_text(model().complete(PROMPT).text)
    expect_equal("".join(step.delta or "" for step in model().stream_complete(PROMPT)), text, "text of the stream")
    plain = model(is_chat_model=False)
    answer = plain.complete("The sky is")
    expect_text(answer.text)
    expect(
        answer.raw.choices[0].finish_reason in ("stop", "length"),
        f"finish_reason: {answer.raw.choices[0].finish_reason!r}",
    )
    usage = answer.raw.usage
    expect_usage(usage.prompt_tokens, usage.completion_tokens, usage.total_tokens, most=24)
    expect_equal(list(plain.stream_complete("The sky is"))[-1].text, answer.text, "text of the stream")


@check
def stop_and_logprobs() -> None:
    whole = expect_text(model().chat(MESSAGES).message.content)
    word = middle_word(whole)
    cut = model(additional_kwargs={"stop": [word]}).chat(MESSAGES)
    expect_equal(cut.message.content, whole[: whole.index(word)], f"text before {word!r}")
    expect_equal(cut.raw.choices[0].finish_reason, "stop", "finish_reason")
    logprobs = model(logprobs=True, top_logprobs=2).chat(MESSAGES).logprobs
    expect(logprobs, "logprobs are missing")
    expect(
        all(len(token) == 2 and all(each.logprob <= 0 for each in token) for token in logprobs),
        f"logprobs: {logprobs!r}",
    )


@check
def structured_output_by_tool_and_by_schema() -> None:
    template = PromptTemplate("Invent a person who is a {job}.")
    for way in ({"is_function_calling_model": True}, {"should_use_structured_outputs": True}):
        llm = model(max_tokens=160, **way)
        person = llm.structured_predict(Person, template, job="sailor")
        expect(isinstance(person, Person), f"{way}: {person!r}")
        raw = llm.as_structured_llm(Person).chat(MESSAGES).raw
        expect(isinstance(raw, Person), f"{way}: {raw!r}")
    streamed = list(
        model(max_tokens=160, should_use_structured_outputs=True).as_structured_llm(Person).stream_chat(MESSAGES)
    )
    expect(len(streamed) > 1, "the structured stream has one part only")
    expect_equal(
        Person.model_validate(streamed[-1].raw.model_dump()).model_dump(), raw.model_dump(), "last part of the stream"
    )


@check
def forced_tool_calls() -> None:
    def multiply(first: int, second: int) -> int:
        """Multiply two whole numbers."""
        return first * second

    tool = FunctionTool.from_defaults(multiply)
    llm = model(max_tokens=120, is_function_calling_model=True)
    answer = llm.chat_with_tools([tool], user_msg="What is 6 times 7?", tool_required=True)
    calls = llm.get_tool_calls_from_response(answer, error_on_no_tool_call=True)
    expect_equal([call.tool_name for call in calls][:1], ["multiply"], "called tools")
    result = tool.call(**calls[0].tool_kwargs)
    expect(not result.is_error and isinstance(result.raw_output, int), f"result of the tool: {result!r}")
    expect_equal(answer.raw.choices[0].finish_reason, "tool_calls", "finish_reason")
    *_, streamed = llm.stream_chat_with_tools([tool], user_msg="What is 6 times 7?", tool_required=True)
    again = llm.get_tool_calls_from_response(streamed, error_on_no_tool_call=True)
    expect_equal([call.tool_kwargs for call in again], [call.tool_kwargs for call in calls], "streamed arguments")


@check
def errors_have_their_classes() -> None:
    long = [ChatMessage(role="user", content=too_long(SERVER))]
    error = expect_raises(openai.BadRequestError, lambda: model().chat(long))
    expect_equal(error.code, "context_length_exceeded", "code")
    expect_raises(openai.NotFoundError, lambda: model(model="nobody-knows-this").chat(MESSAGES))
    expect_raises(openai.AuthenticationError, lambda: model(api_key="not-the-key").chat(MESSAGES))


if __name__ == "__main__":
    run_checks()
