"""dspy: its native route to a declared provider, and the plain `openai/` one with completions, responses and embeddings."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import dspy
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
    run_checks,
    too_long,
)
from dspy.lm15 import AccessPolicy, ModelSupport, OpenAIChatCompat, ProviderDefinition, register_provider
from dspy.utils.exceptions import ContextWindowExceededError, LMAuthError, LMError
from proxy import Proxy
from pydantic import BaseModel, ConfigDict, Field

SERVER = Server.from_environment()
MESSAGES = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": PROMPT}]
ACCESS: dict[str, Any] = {
    "api_base": SERVER.url,
    "api_key": SERVER.key,
    "temperature": 0,
    "cache": False,
    "num_retries": 0,
}
# dspy sends a response format only to models that are said to honour it: this one says so.
register_provider(
    ProviderDefinition.chat(
        AccessPolicy(provider="radixserve", env_keys=("RADIXSERVE_KEY",), base_url=SERVER.url),
        compat=OpenAIChatCompat(instruction_role="system", max_tokens_field="max_tokens", stream_usage="include"),
    ),
    supports=ModelSupport(function_calling=True, response_schema=True),
)
GENERIC = dspy.LM(f"openai/{SERVER.model}", **ACCESS, max_tokens=24)


class Person(BaseModel):
    """A person."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=150)


class Invent(dspy.Signature):
    """Invent a person with that job."""

    job: str = dspy.InputField()
    person: Person = dspy.OutputField()


def last(lm: Any) -> Any:
    """The normalized response of the last call."""
    response = lm.history[-1]["response"]
    return response[0] if isinstance(response, tuple) else response


@check
def calls_have_content_usage_and_finish_reason() -> None:
    """Where the server gives no finish reason dspy fills one in, so a proxy reads it off the wire as well."""
    for route in ("radixserve", "openai"):
        with Proxy(SERVER.root) as proxy:
            lm = dspy.LM(f"{route}/{SERVER.model}", **{**ACCESS, "api_base": f"{proxy.root}/v1"}, max_tokens=24)
            text = expect_text(lm(messages=MESSAGES)[0])
            usage = last(lm).usage
            expect(usage is not None, f"{lm.model}: usage is missing")
            expect_usage(usage.input_tokens, usage.output_tokens, usage.total_tokens, most=24)
            expect_ended(last(lm).finish_reason, usage.output_tokens, 24)
            expect_equal(lm(messages=MESSAGES)[0], text, f"{lm.model}: text of the same request")
            expect_cached(last(lm).usage.cache_read_tokens, usage.input_tokens)
        for exchange in proxy.exchanges:
            sent = exchange.documents[0]["choices"][0].get("finish_reason")
            expect_equal(sent, last(lm).finish_reason, f"{lm.model}: finish_reason on the wire")


@check
def several_answers_with_logprobs() -> None:
    answers = GENERIC(messages=MESSAGES, n=2, logprobs=True, temperature=1.2)
    expect_equal(len(answers), 2, "number of answers")
    for answer in answers:
        expect_text(answer["text"])
        content = (answer.get("logprobs") or {}).get("content")
        expect(content and all(token["logprob"] <= 0 for token in content), f"logprobs: {answer.get('logprobs')!r}")


@check
def signatures_give_models() -> None:
    lm = dspy.LM(f"radixserve/{SERVER.model}", **ACCESS, max_tokens=160)
    with dspy.context(lm=lm, adapter=dspy.JSONAdapter()):
        result = dspy.Predict(Invent)(job="sailor")
        expect(isinstance(result.person, Person), f"person: {result.person!r}")
        again = dspy.Predict(Invent)(job="sailor")
        expect_equal(again.person, result.person, "the same request")
        thought = dspy.LM(f"radixserve/{SERVER.model}", **ACCESS, max_tokens=700)
        with dspy.context(lm=thought):

            class Sum(dspy.Signature):
                """Add up."""

                question: str = dspy.InputField()
                small: bool = dspy.OutputField()
                total: int = dspy.OutputField()

            answer = dspy.Predict(Sum)(question="two plus three")
            expect(isinstance(answer.total, int) and isinstance(answer.small, bool), f"fields: {answer!r}")


@check
def schema_in_the_call_is_enforced() -> None:
    schema = Person.model_json_schema()
    lm = dspy.LM(f"openai/{SERVER.model}", **ACCESS, max_tokens=160)
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema, "strict": True}}
    text = lm(messages=MESSAGES, response_format=form)[0]
    Person.model_validate(json.loads(text))
    expect_equal(last(lm).finish_reason, "stop", "finish_reason")


@check
def forced_tool_calls() -> None:
    def multiply(first: int, second: int) -> int:
        """Multiply two whole numbers."""
        return first * second

    class Plan(dspy.Signature):
        """Call the tools that answer the question."""

        question: str = dspy.InputField()
        tools: list[dspy.Tool] = dspy.InputField()
        calls: dspy.ToolCalls = dspy.OutputField()

    lm = dspy.LM(f"radixserve/{SERVER.model}", **ACCESS, max_tokens=120)
    forced = {"tool_choice": "required", "parallel_tool_calls": False}
    with dspy.context(lm=lm, adapter=dspy.JSONAdapter(use_native_function_calling=True)):
        plan = dspy.Predict(Plan)(question="What is 6 times 7?", tools=[dspy.Tool(multiply)], config=forced)
    expect(plan.calls and plan.calls.tool_calls, f"no tool was called: {plan!r}")
    call = plan.calls.tool_calls[0]
    expect_equal(call.name, "multiply", "called tool")
    expect(isinstance(multiply(call.args["first"], call.args["second"]), int), f"arguments: {call.args!r}")
    expect_equal(last(lm).finish_reason, "tool_call", "finish_reason")


@check
def streams_equal_calls() -> None:
    class Answer(dspy.Signature):
        """Answer the question."""

        question: str = dspy.InputField()
        answer: Person = dspy.OutputField()

    lm = dspy.LM(f"radixserve/{SERVER.model}", **ACCESS, max_tokens=160)

    async def stream() -> tuple[list[Any], Any]:
        program = dspy.streamify(dspy.Predict(Answer))
        seen = [item async for item in program(question="Who is that?")]
        return [item for item in seen if not isinstance(item, dspy.Prediction)], seen[-1]

    with dspy.context(lm=lm, adapter=dspy.JSONAdapter()):
        whole = dspy.Predict(Answer)(question="Who is that?")
        parts, final = asyncio.run(stream())
    expect(len(parts) > 3, f"the stream has only {len(parts)} parts")
    expect_equal(final.answer, whole.answer, "answer of the stream")


@check
def completions_responses_and_embeddings() -> None:
    for kind in ("text", "responses"):
        lm = dspy.LM(f"openai/{SERVER.model}", **ACCESS, max_tokens=24, model_type=kind)
        answer = lm(PROMPT)[0]
        expect_text(answer["text"] if isinstance(answer, dict) else answer, kind)
        usage = lm.history[-1]["usage"]
        counts = [usage.get(name) for name in ("prompt_tokens", "completion_tokens", "input_tokens", "output_tokens")]
        expect(len([count for count in counts if count]) >= 2, f"{kind}: usage {usage!r}")
    vectors = dspy.Embedder(f"openai/{SERVER.model}", api_base=SERVER.url, api_key=SERVER.key, caching=False)(
        ["A cat.", "A dog."]
    )
    expect(len(vectors) == 2 and len(vectors[0]) > 100, f"sizes: {[len(vector) for vector in vectors]}")


@check
def errors_have_their_classes() -> None:
    long = [{"role": "user", "content": too_long(SERVER)}]
    for route in ("radixserve", "openai"):
        lm = dspy.LM(f"{route}/{SERVER.model}", **ACCESS, max_tokens=8)
        expect_raises(ContextWindowExceededError, lambda lm=lm: lm(messages=long))
        unknown = dspy.LM(f"{route}/nobody-knows-this", **ACCESS, max_tokens=8)
        error = expect_raises(LMError, lambda unknown=unknown: unknown(messages=MESSAGES))
        expect("nobody-knows-this" in str(error), f"message: {error}")
        stranger = dspy.LM(f"{route}/{SERVER.model}", **{**ACCESS, "api_key": "not-the-key"}, max_tokens=8)
        expect_raises(LMAuthError, lambda stranger=stranger: stranger(messages=MESSAGES))


if __name__ == "__main__":
    run_checks()
