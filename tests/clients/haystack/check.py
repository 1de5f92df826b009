"""haystack: chat and responses generators, embedders, tools, structured output, a pipeline."""

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
from haystack import Document, Pipeline
from haystack.components.builders import ChatPromptBuilder
from haystack.components.embedders import OpenAIDocumentEmbedder, OpenAITextEmbedder
from haystack.components.generators.chat import OpenAIChatGenerator, OpenAIResponsesChatGenerator
from haystack.core.errors import PipelineRuntimeError
from haystack.dataclasses import ChatMessage, StreamingChunk
from haystack.tools import create_tool_from_function
from haystack.utils import Secret
from pydantic import BaseModel, Field

SERVER = Server.from_environment()
MESSAGES = [ChatMessage.from_system(SYSTEM), ChatMessage.from_user(PROMPT)]


class Person(BaseModel):
    """A person."""

    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=150)


def multiply(first: int, second: int) -> int:
    """Multiply two whole numbers."""
    return first * second


TOOL = create_tool_from_function(multiply)


def access(key: str = SERVER.key, name: str = SERVER.model) -> dict[str, Any]:
    """What every component is built with."""
    return {
        "model": name,
        "api_base_url": SERVER.url,
        "api_key": Secret.from_token(key),
        "max_retries": 0,
        "timeout": 110,
    }


def chat(limit: int = 24, **more: Any) -> OpenAIChatGenerator:
    """A greedy generator."""
    return OpenAIChatGenerator(**access(), generation_kwargs={"temperature": 0, "max_completion_tokens": limit, **more})


@check
def replies_have_content_usage_and_finish_reason() -> None:
    reply = chat().run(MESSAGES)["replies"][0]
    text = expect_text(reply.text)
    usage = reply.meta["usage"]
    expect(usage, "usage is missing")
    expect_usage(usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"], most=24)
    expect_ended(reply.meta["finish_reason"], usage["completion_tokens"], 24)
    again = chat().run(MESSAGES)["replies"][0]
    expect_equal(again.text, text, "text of the same request")
    details = again.meta["usage"].get("prompt_tokens_details") or {}
    expect_cached(details.get("cached_tokens"), usage["prompt_tokens"])


@check
def streams_equal_replies() -> None:
    whole = chat().run(MESSAGES)["replies"][0]
    chunks: list[StreamingChunk] = []
    streaming = chat(stream_options={"include_usage": True})
    reply = streaming.run(MESSAGES, streaming_callback=chunks.append)["replies"][0]
    expect(len(chunks) > 3, f"the stream has only {len(chunks)} chunks")
    expect_equal(
        ("".join(chunk.content for chunk in chunks), reply.text), (whole.text, whole.text), "text of the stream"
    )
    expect_equal(reply.meta["finish_reason"], whole.meta["finish_reason"], "finish_reason")
    expect(reply.meta["usage"], "usage of the stream is missing")
    expect_equal(reply.meta["usage"]["completion_tokens"], whole.meta["usage"]["completion_tokens"], "generated tokens")


@check
def stop_seed_n_and_logprobs() -> None:
    whole = expect_text(chat().run(MESSAGES)["replies"][0].text)
    word = middle_word(whole)
    cut = chat(stop=[word]).run(MESSAGES)["replies"][0]
    expect_equal((cut.text, cut.meta["finish_reason"]), (whole[: whole.index(word)], "stop"), f"text before {word!r}")
    sampled = chat(temperature=1.2, seed=5, n=3, logprobs=True, top_logprobs=2)
    one, two = (sampled.run(MESSAGES)["replies"] for _ in range(2))
    expect_equal([reply.text for reply in two], [reply.text for reply in one], "samples of the same seed")
    expect_equal(len(one), 3, "number of replies")
    expect(len({reply.text for reply in one}) > 1, f"three samples are all {one[0].text!r}")
    for reply in one:
        expect((reply.meta.get("logprobs") or {}).get("content"), "logprobs are missing")


@check
def structured_output() -> None:
    reply = chat(160).run(MESSAGES, generation_kwargs={"response_format": Person})["replies"][0]
    Person.model_validate(json.loads(expect_text(reply.text)))
    expect_equal(reply.meta["finish_reason"], "stop", "finish_reason")


@check
def forced_tools_run() -> None:
    for strict in (False, True):
        generator = OpenAIChatGenerator(
            **access(),
            tools=[TOOL],
            tools_strict=strict,
            generation_kwargs={"temperature": 0, "max_completion_tokens": 120, "tool_choice": "required"},
        )
        question = [ChatMessage.from_user("What is 6 times 7?")]
        reply = generator.run(question)["replies"][0]
        expect(reply.tool_calls, f"strict={strict}: no tool was called: {reply.text!r}")
        expect_equal(reply.meta["finish_reason"], "tool_calls", "finish_reason")
        call = reply.tool_calls[0]
        result = TOOL.invoke(**call.arguments)
        expect(isinstance(result, int), f"strict={strict}: result of the tool {result!r}")
        streamed = generator.run(question, streaming_callback=lambda chunk: None)["replies"][0]
        expect_equal(
            [(call.tool_name, call.arguments) for call in streamed.tool_calls],
            [(call.tool_name, call.arguments) for call in reply.tool_calls],
            f"strict={strict}: streamed calls",
        )
        history = [*question, reply, ChatMessage.from_tool(str(result), origin=call)]
        expect_text(chat().run(history)["replies"][0].text)


@check
def responses_generator() -> None:
    asked = {"temperature": 0, "max_output_tokens": 24}
    generator = OpenAIResponsesChatGenerator(**access(), generation_kwargs=asked)
    reply = generator.run(MESSAGES)["replies"][0]
    text = expect_text(reply.text)
    expect(reply.meta["status"] in ("completed", "incomplete"), f"status: {reply.meta['status']!r}")
    usage = reply.meta["usage"]
    expect_usage(usage["input_tokens"], usage["output_tokens"], usage["total_tokens"], most=24)
    streamed = generator.run(MESSAGES, streaming_callback=lambda chunk: None)["replies"][0]
    expect_equal(streamed.text, text, "text of the stream")
    longer = OpenAIResponsesChatGenerator(**access(), generation_kwargs={**asked, "max_output_tokens": 160})
    person = longer.run(MESSAGES, generation_kwargs={"text_format": Person})["replies"][0]
    Person.model_validate(json.loads(expect_text(person.text)))
    called = longer.run(MESSAGES, tools=[TOOL], generation_kwargs={"tool_choice": "required"})["replies"][0]
    expect_equal([call.tool_name for call in called.tool_calls][:1], ["multiply"], "called tools")
    expect(isinstance(multiply(**called.tool_calls[0].arguments), int), "the arguments do not fit the tool")


@check
def embedders() -> None:
    texts = ["A cat sat on the mat.", "A cat was sitting on a mat.", "Interest rates rose again."]
    documents = OpenAIDocumentEmbedder(**access(), progress_bar=False).run([Document(content=text) for text in texts])
    vectors = [document.embedding for document in documents["documents"]]
    expect(all(len(vector) > 100 for vector in vectors), f"sizes: {[len(vector) for vector in vectors]}")
    query = OpenAITextEmbedder(**access()).run(texts[0])
    expect(
        max(abs(a - b) for a, b in zip(query["embedding"], vectors[0], strict=True)) < 1e-5, "query and document differ"
    )
    expect(query["meta"]["usage"]["prompt_tokens"] > 0, "usage")


@check
def pipeline_and_errors() -> None:
    pipeline = Pipeline()
    pipeline.add_component("prompt", ChatPromptBuilder(template=[ChatMessage.from_user("Say hello to {{ name }}.")]))
    pipeline.add_component("model", chat())
    pipeline.connect("prompt.prompt", "model.messages")
    expect_text(pipeline.run({"prompt": {"name": "Ada"}})["model"]["replies"][0].text)
    error = expect_raises(PipelineRuntimeError, lambda: pipeline.run({"prompt": {"name": too_long(SERVER)}}))
    expect("maximum context length" in str(error), f"message: {error}")
    expect_raises(openai.NotFoundError, lambda: OpenAIChatGenerator(**access(name="nobody-knows-this")).run(MESSAGES))
    expect_raises(openai.AuthenticationError, lambda: OpenAIChatGenerator(**access(key="not-the-key")).run(MESSAGES))


if __name__ == "__main__":
    run_checks()
