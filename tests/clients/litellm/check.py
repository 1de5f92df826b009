"""litellm: its `openai/` and `hosted_vllm/` providers, completions, responses and embeddings."""

from __future__ import annotations

import json
from typing import Any

import litellm
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
from pydantic import BaseModel, Field

SERVER = Server.from_environment()
litellm.suppress_debug_info = True
PROVIDERS = ("openai", "hosted_vllm")
MESSAGES = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": PROMPT}]
ACCESS: dict[str, Any] = {
    "api_base": SERVER.url,
    "api_key": SERVER.key,
    "timeout": 110,
    "max_retries": 0,
    "num_retries": 0,
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "set_lamp",
            "description": "Switch a lamp.",
            "parameters": {
                "type": "object",
                "properties": {"room": {"type": "string", "maxLength": 20}, "on": {"type": "boolean"}},
                "required": ["room", "on"],
                "additionalProperties": False,
            },
        },
    }
]


class Person(BaseModel):
    """A person."""

    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=150)


def ask(provider: str, **more: Any) -> Any:
    """A greedy answer of at most 24 tokens."""
    asked = {
        "model": f"{provider}/{SERVER.model}",
        "messages": MESSAGES,
        "temperature": 0,
        "max_tokens": 24,
        **ACCESS,
        **more,
    }
    return litellm.completion(**asked)


@check
def completion_has_content_usage_and_finish_reason() -> None:
    for provider in PROVIDERS:
        answer = ask(provider)
        text = expect_text(answer.choices[0].message.content)
        usage = answer.usage
        expect_usage(usage.prompt_tokens, usage.completion_tokens, usage.total_tokens, most=24)
        expect_ended(answer.choices[0].finish_reason, usage.completion_tokens, 24)
        again = ask(provider)
        expect_equal(again.choices[0].message.content, text, "text of the same request")
        expect(again.usage.prompt_tokens_details is not None, "prompt_tokens_details is missing")
        expect_cached(again.usage.prompt_tokens_details.cached_tokens, usage.prompt_tokens)


@check
def stream_equals_completion() -> None:
    for provider in PROVIDERS:
        whole = ask(provider)
        told = list(ask(provider, stream=True, stream_options={"include_usage": True}))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in told if chunk.choices)
        expect_equal(text, whole.choices[0].message.content, "text of the stream")
        reasons = [chunk.choices[0].finish_reason for chunk in told if chunk.choices and chunk.choices[0].finish_reason]
        expect_equal(reasons, [whole.choices[0].finish_reason], "finish reasons of the stream")
        usages = [chunk.usage for chunk in told if getattr(chunk, "usage", None)]
        expect(usages, "usage of the stream is missing")
        expect_equal(usages[-1].completion_tokens, whole.usage.completion_tokens, "generated tokens")
        expect_equal(usages[-1].prompt_tokens, whole.usage.prompt_tokens, "prompt tokens")


@check
def stop_seed_n_and_logprobs() -> None:
    for provider in PROVIDERS:
        whole = ask(provider).choices[0].message.content
        word = middle_word(expect_text(whole))
        cut = ask(provider, stop=[word]).choices[0]
        expect_equal(
            (cut.message.content, cut.finish_reason), (whole[: whole.index(word)], "stop"), f"text before {word!r}"
        )
        sampled = {"temperature": 1.2, "seed": 11, "n": 2, "logprobs": True, "top_logprobs": 2}
        one, two = (ask(provider, **sampled) for _ in range(2))
        texts = [choice.message.content for choice in one.choices]
        expect_equal((len(texts), len(set(texts))), (2, 2), "number of samples, and of different ones")
        expect_equal([choice.message.content for choice in two.choices], texts, "samples of the same seed")
        for choice in one.choices:
            expect(choice.logprobs is not None and choice.logprobs.content, "logprobs are missing")
            expect(all(len(token.top_logprobs) == 2 for token in choice.logprobs.content), "number of alternatives")


@check
def structured_output() -> None:
    for provider in PROVIDERS:
        answer = ask(provider, response_format=Person, max_tokens=160).choices[0]
        Person.model_validate_json(answer.message.content)
        expect_equal(answer.finish_reason, "stop", "finish_reason")
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 5, "maximum": 9}}, "required": ["n"]}
    chosen = ask("hosted_vllm", extra_body={"structured_outputs": {"json": schema}}, max_tokens=60).choices[0]
    expect(5 <= json.loads(chosen.message.content)["n"] <= 9, f"structured_outputs: {chosen.message.content!r}")


@check
def forced_tool_calls() -> None:
    for provider in PROVIDERS:
        asked: dict[str, Any] = {"tools": TOOLS, "tool_choice": "required", "max_tokens": 120}
        answer = ask(provider, **asked).choices[0]
        expect(answer.message.tool_calls, f"no tool was called: {answer.message.content!r}")
        call = answer.message.tool_calls[0].function
        arguments = json.loads(call.arguments)
        expect_equal((call.name, sorted(arguments)), ("set_lamp", ["on", "room"]), "call")
        expect(isinstance(arguments["on"], bool), f"on: {arguments['on']!r}")
        expect_equal(answer.finish_reason, "tool_calls", "finish_reason")
        rebuilt = litellm.stream_chunk_builder(list(ask(provider, **asked, stream=True)), messages=MESSAGES).choices[0]
        expect(rebuilt.message.tool_calls, "no tool call in the stream")
        expect_equal(rebuilt.message.tool_calls[0].function.arguments, call.arguments, "streamed arguments")


@check
def completions_responses_and_embeddings() -> None:
    text = litellm.text_completion(
        model=f"text-completion-openai/{SERVER.model}",
        prompt="The sky is",
        temperature=0,
        max_tokens=12,
        logprobs=1,
        **ACCESS,
    )
    expect_text(text.choices[0].text)
    expect(text.choices[0].finish_reason in ("stop", "length"), f"finish_reason: {text.choices[0].finish_reason!r}")
    expect_usage(text.usage.prompt_tokens, text.usage.completion_tokens, text.usage.total_tokens, most=12)
    expect(text.choices[0].logprobs is not None, "logprobs are missing")
    answer = litellm.responses(
        model=f"openai/{SERVER.model}", input=PROMPT, temperature=0, max_output_tokens=24, **ACCESS
    )
    expect_text(answer.output_text)
    expect(answer.status in ("completed", "incomplete"), f"status: {answer.status!r}")
    expect_usage(answer.usage.input_tokens, answer.usage.output_tokens, answer.usage.total_tokens, most=24)
    vectors = litellm.embedding(model=f"openai/{SERVER.model}", input=["A cat.", "A dog."], **ACCESS)
    expect_equal([item["index"] for item in vectors.data], [0, 1], "indexes")
    expect(len(vectors.data[0]["embedding"]) > 100, f"size: {len(vectors.data[0]['embedding'])}")
    expect(vectors.usage.prompt_tokens > 0, "usage of embeddings")


@check
def errors_have_their_classes() -> None:
    for provider in PROVIDERS:
        long = [{"role": "user", "content": too_long(SERVER)}]
        expect_raises(
            litellm.ContextWindowExceededError, lambda provider=provider, long=long: ask(provider, messages=long)
        )
        expect_raises(
            litellm.NotFoundError, lambda provider=provider: ask(provider, model=f"{provider}/nobody-knows-this")
        )
        expect_raises(litellm.AuthenticationError, lambda provider=provider: ask(provider, api_key="not-the-key"))
        error = expect_raises(litellm.BadRequestError, lambda provider=provider: ask(provider, temperature=-1))
        expect("temperature" in str(error), f"message: {error}")


if __name__ == "__main__":
    run_checks()
