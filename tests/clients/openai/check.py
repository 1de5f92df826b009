"""The official openai SDK: chat, streams, parsing, tools, completions, responses, embeddings, errors."""

from __future__ import annotations

import asyncio
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
    expect_match,
    expect_raises,
    expect_text,
    expect_usage,
    middle_word,
    run_checks,
    too_long,
)
from pydantic import BaseModel, Field
from tool_calls import MAX_TOKENS, Call, calls, functions

SERVER = Server.from_environment()
CLIENT = openai.OpenAI(base_url=SERVER.url, api_key=SERVER.key, max_retries=0, timeout=110)
MESSAGES: Any = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": PROMPT}]
GREEDY: dict[str, Any] = {"model": SERVER.model, "messages": MESSAGES, "temperature": 0, "max_tokens": 24}
RESPONSE: dict[str, Any] = {"model": SERVER.model, "input": MESSAGES, "temperature": 0, "max_output_tokens": 24}


class City(BaseModel):
    """A city."""

    name: str = Field(max_length=20)
    inhabitants: int = Field(ge=0, le=99_999_999)
    harbour: bool


WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 20},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            },
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}


def expect_weather(name: str, arguments: str) -> None:
    """The call is one of the tool, with arguments of its schema."""
    expect_equal(name, "get_weather", "name of the called tool")
    parsed = json.loads(arguments)
    expect_equal(sorted(parsed), ["city", "unit"], "arguments")
    expect(isinstance(parsed["city"], str), f"city: got {parsed['city']!r}")
    expect(parsed["unit"] in ("celsius", "fahrenheit"), f"unit: got {parsed['unit']!r}")


@check
def chat_has_content_usage_and_finish_reason() -> None:
    answer = CLIENT.chat.completions.create(**GREEDY)
    expect_equal(len(answer.choices), 1, "number of choices")
    expect_text(answer.choices[0].message.content)
    expect_equal(answer.choices[0].message.role, "assistant", "role")
    expect_equal((answer.object, answer.model), ("chat.completion", SERVER.model), "object and model")
    usage = answer.usage
    expect(usage is not None, "usage is missing")
    expect_usage(usage.prompt_tokens, usage.completion_tokens, usage.total_tokens, most=24)
    expect_ended(answer.choices[0].finish_reason, usage.completion_tokens, 24)


@check
def greedy_text_is_repeatable_and_its_prompt_is_cached() -> None:
    first, again = (CLIENT.chat.completions.create(**{**GREEDY, "max_tokens": 48}) for _ in range(2))
    expect_equal(again.choices[0].message.content, first.choices[0].message.content, "text of the same request")
    expect_cached(again.usage.prompt_tokens_details.cached_tokens, again.usage.prompt_tokens)


@check
def seeded_sampling_is_repeatable() -> None:
    one, two, other = (
        CLIENT.chat.completions.create(**{**GREEDY, "temperature": 1.5, "seed": seed}).choices[0].message.content
        for seed in (7, 7, 8)
    )
    expect_equal(two, one, "text of the same seed")
    expect(other != one, f"another seed gave the same text {one!r}")


@check
def stream_equals_the_whole_answer() -> None:
    whole = CLIENT.chat.completions.create(**GREEDY)
    chunks = list(CLIENT.chat.completions.create(**GREEDY, stream=True, stream_options={"include_usage": True}))
    told = [chunk for chunk in chunks if chunk.choices]
    expect(len(told) > 3, f"the stream has only {len(told)} chunks")
    expect_equal(told[0].choices[0].delta.role, "assistant", "role of the first chunk")
    text = "".join(chunk.choices[0].delta.content or "" for chunk in told)
    expect_equal(text, whole.choices[0].message.content, "text of the stream")
    reasons = [chunk.choices[0].finish_reason for chunk in told if chunk.choices[0].finish_reason is not None]
    expect_equal(reasons, [whole.choices[0].finish_reason], "finish reasons of the stream")
    expect_equal({chunk.object for chunk in chunks}, {"chat.completion.chunk"}, "object")
    expect_equal(len({chunk.id for chunk in chunks}), 1, "number of ids in one stream")
    usages = [chunk.usage for chunk in chunks if chunk.usage is not None]
    expect_equal(len(usages), 1, "number of chunks with usage")
    expect(chunks[-1].usage is not None and not chunks[-1].choices, "usage does not come in a last chunk of its own")
    expect_equal(usages[0].completion_tokens, whole.usage.completion_tokens, "generated tokens")
    expect_cached(usages[0].prompt_tokens_details.cached_tokens, usages[0].prompt_tokens)


@check
def stream_without_usage_ends_with_done() -> None:
    with CLIENT.chat.completions.with_streaming_response.create(**GREEDY, stream=True) as response:
        lines = [line for line in response.iter_lines() if line]
    expect_equal(lines[-1], "data: [DONE]", "last line of the stream")
    events = [json.loads(line.removeprefix("data: ")) for line in lines[:-1] if line.startswith("data: ")]
    expect(all(event.get("usage") is None for event in events), "usage was sent although nobody asked for it")
    expect(all(event["choices"] for event in events), "a chunk has no choices")


@check
def stream_helper_accumulates() -> None:
    whole = expect_text(CLIENT.chat.completions.create(**GREEDY).choices[0].message.content)
    word = middle_word(whole)
    with CLIENT.chat.completions.stream(**GREEDY, stop=[word]) as stream:
        kinds = [event.type for event in stream]
        choice = stream.get_final_completion().choices[0]
    expect("content.delta" in kinds and "content.done" in kinds, f"events: {set(kinds)}")
    expect_equal(
        (choice.message.content, choice.finish_reason), (whole[: whole.index(word)], "stop"), "accumulated answer"
    )


@check
def async_client_shares_the_prompt() -> None:
    async def four() -> list[str | None]:
        async with openai.AsyncOpenAI(base_url=SERVER.url, api_key=SERVER.key, max_retries=0, timeout=110) as client:
            answers = await asyncio.gather(*(client.chat.completions.create(**GREEDY) for _ in range(4)))
        return [answer.choices[0].message.content for answer in answers]

    texts = asyncio.run(four())
    expect_equal(
        set(texts), {CLIENT.chat.completions.create(**GREEDY).choices[0].message.content}, "texts of equal requests"
    )


@check
def stop_strings_end_the_text() -> None:
    whole = CLIENT.chat.completions.create(**GREEDY).choices[0].message.content
    word = middle_word(expect_text(whole))
    for stream in (False, True):
        if stream:
            told = [chunk.choices[0] for chunk in CLIENT.chat.completions.create(**GREEDY, stop=[word], stream=True)]
            text = "".join(choice.delta.content or "" for choice in told)
            reason = [choice.finish_reason for choice in told if choice.finish_reason][-1]
        else:
            answer = CLIENT.chat.completions.create(**GREEDY, stop=word).choices[0]
            text, reason = answer.message.content, answer.finish_reason
        expect_equal(text, whole[: whole.index(word)], f"text before {word!r}, stream={stream}")
        expect_equal(reason, "stop", "finish_reason")


@check
def several_choices() -> None:
    sampled = {**GREEDY, "temperature": 1.2, "seed": 1, "n": 3}
    answer = CLIENT.chat.completions.create(**sampled)
    expect_equal([choice.index for choice in answer.choices], [0, 1, 2], "indexes")
    texts = [expect_text(choice.message.content) for choice in answer.choices]
    expect(len(set(texts)) > 1, f"three samples are all {texts[0]!r}")
    streamed = ["", "", ""]
    reasons: list[list[str]] = [[], [], []]
    for chunk in CLIENT.chat.completions.create(**sampled, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
            reasons[choice.index] += [choice.finish_reason] if choice.finish_reason else []
    expect_equal(streamed, texts, "streamed samples of the same seed")
    expect_equal(reasons, [[choice.finish_reason] for choice in answer.choices], "finish reasons")


@check
def logprobs_describe_the_text() -> None:
    asked = {**GREEDY, "logprobs": True, "top_logprobs": 3}
    answer = CLIENT.chat.completions.create(**asked)
    logprobs = answer.choices[0].logprobs
    expect(logprobs is not None and logprobs.content, "logprobs are missing")
    tokens = logprobs.content
    if answer.choices[0].finish_reason == "length":
        expect_equal(len(tokens), answer.usage.completion_tokens, "number of tokens with logprobs")
    spelled = b"".join(bytes(token.bytes) for token in tokens)
    expect(spelled.startswith((answer.choices[0].message.content or "").encode()), f"bytes of the tokens: {spelled!r}")
    for token in tokens:
        expect(token.logprob <= 0, f"logprob of {token.token!r}: {token.logprob}")
        expect_equal(len(token.top_logprobs), 3, f"alternatives of {token.token!r}")
        best = max(token.top_logprobs, key=lambda each: each.logprob)
        expect_equal((best.token, best.logprob), (token.token, token.logprob), "greedy token and the best alternative")
    streamed = [
        token
        for chunk in CLIENT.chat.completions.create(**asked, stream=True)
        if chunk.choices and chunk.choices[0].logprobs is not None
        for token in chunk.choices[0].logprobs.content or []
    ]
    expect_equal([(t.token, t.logprob) for t in streamed], [(t.token, t.logprob) for t in tokens], "streamed logprobs")


@check
def logit_bias_and_penalties_act() -> None:
    plain = CLIENT.chat.completions.create(**GREEDY, logprobs=True, top_logprobs=1).choices[0]
    token = SERVER.token_ids(plain.logprobs.content[0].token)[0]
    biased = CLIENT.chat.completions.create(**GREEDY, logit_bias={str(token): -100}).choices[0]
    expect(biased.message.content != plain.message.content, "a banned first token did not change the text")
    held = CLIENT.chat.completions.create(**GREEDY, presence_penalty=2, frequency_penalty=2).choices[0]
    expect_text(held.message.content)


@check
def several_turns_reuse_the_conversation() -> None:
    turn = CLIENT.chat.completions.create(**GREEDY)
    messages = [
        *MESSAGES,
        {"role": "assistant", "content": turn.choices[0].message.content},
        {
            "role": "user",
            "content": [{"type": "text", "text": "And which of them "}, {"type": "text", "text": "is the best?"}],
        },
    ]
    second = CLIENT.chat.completions.create(**{**GREEDY, "messages": messages})
    expect_text(second.choices[0].message.content)
    cached = second.usage.prompt_tokens_details.cached_tokens
    expect(
        cached >= turn.usage.prompt_tokens,
        f"cached tokens of turn two: {cached}, turn one had {turn.usage.prompt_tokens}",
    )


@check
def parse_returns_the_model() -> None:
    asked = {**GREEDY, "max_tokens": 160}
    answer = CLIENT.chat.completions.parse(**asked, response_format=City)
    expect(isinstance(answer.choices[0].message.parsed, City), f"parsed: {answer.choices[0].message.parsed!r}")
    expect_equal(answer.choices[0].finish_reason, "stop", "finish_reason")
    expect_usage(answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens, most=160)
    with CLIENT.chat.completions.stream(**asked, response_format=City) as stream:
        streamed = stream.get_final_completion().choices[0].message
    expect_equal(streamed.content, answer.choices[0].message.content, "text of the stream")
    expect_equal(streamed.parsed, answer.choices[0].message.parsed, "parsed")


@check
def parse_refuses_a_document_cut_by_length() -> None:
    expect_raises(
        openai.LengthFinishReasonError,
        lambda: CLIENT.chat.completions.parse(**{**GREEDY, "max_tokens": 3}, response_format=City),
    )


@check
def json_object_is_json() -> None:
    answer = CLIENT.chat.completions.create(
        **{
            **GREEDY,
            "max_tokens": 400,
            "messages": [{"role": "user", "content": 'Reply with the JSON object {"ok": true} only.'}],
        },
        response_format={"type": "json_object"},
    ).choices[0]
    if answer.finish_reason == "stop":
        expect(isinstance(json.loads(answer.message.content), dict), f"got {answer.message.content!r}")
    else:
        expect_equal((answer.finish_reason, answer.message.content.lstrip()[:1]), ("length", "{"), "cut JSON")


@check
def extra_body_constraints_hold() -> None:
    for body, pattern in (
        ({"structured_outputs": {"choice": ["red", "green"]}}, "red|green"),
        ({"structured_outputs": {"regex": "[0-9]{3}-[0-9]{2}"}}, "[0-9]{3}-[0-9]{2}"),
        ({"guided_choice": ["up", "down"]}, "up|down"),
        ({"guided_regex": "v[0-9]\\.[0-9]"}, "v[0-9]\\.[0-9]"),
        ({"regex": "(yes|no)!"}, "(yes|no)!"),
        ({"ebnf": 'root ::= "a" [0-9] "z"'}, "a[0-9]z"),
    ):
        answer = CLIENT.chat.completions.create(**GREEDY, extra_body=body).choices[0]
        expect_match(pattern, answer.message.content, f"text under {body}")
        expect_equal(answer.finish_reason, "stop", "finish_reason")


@check
def forced_tool_calls_fit_the_schema() -> None:
    for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
        asked: dict[str, Any] = {**GREEDY, "max_tokens": 160, "tools": [WEATHER], "tool_choice": choice}
        answer = CLIENT.chat.completions.create(**asked).choices[0]
        expect(answer.message.tool_calls, f"no tool was called with tool_choice {choice}: {answer.message.content!r}")
        call = answer.message.tool_calls[0]
        expect_weather(call.function.name, call.function.arguments)
        expect_equal((call.type, bool(call.id)), ("function", True), "type and id")
        expect_equal(answer.finish_reason, "tool_calls", "finish_reason")
        name, arguments, ids, reasons = "", "", [], []
        for chunk in CLIENT.chat.completions.create(**asked, stream=True):
            delta = chunk.choices[0].delta
            reasons += [chunk.choices[0].finish_reason] if chunk.choices[0].finish_reason else []
            for part in delta.tool_calls or []:
                if part.index == 0:
                    name += part.function.name or ""
                    arguments += part.function.arguments or ""
                    ids += [part.id] if part.id else []
        expect_equal((name, arguments), (call.function.name, call.function.arguments), "streamed call")
        expect_equal((len(ids), reasons), (1, ["tool_calls"]), "ids and finish reasons of the stream")


@check
def tool_calls_at_temperature_one() -> None:
    async def one(client: openai.AsyncOpenAI, call: Call) -> None:
        named: Any = {"type": "function", "function": {"name": call.tool}}
        asked: dict[str, Any] = {
            "model": SERVER.model,
            "messages": [{"role": "user", "content": call.question}],
            "temperature": 1,
            "seed": call.number,
            "max_tokens": MAX_TOKENS,
            "tools": functions(),
            "tool_choice": named if call.named else "required",
            "parallel_tool_calls": False,
        }
        if call.stream:
            async with client.chat.completions.stream(**asked) as stream:
                choice = (await stream.get_final_completion()).choices[0]
        else:
            choice = (await client.chat.completions.create(**asked)).choices[0]
        expect_equal(choice.finish_reason, "tool_calls", f"call {call.number}: finish_reason")
        told = [(each.function.name, each.function.arguments) for each in choice.message.tool_calls or []]
        call.expect_tools(told)

    async def all_of_them() -> None:
        async with openai.AsyncOpenAI(base_url=SERVER.url, api_key=SERVER.key, max_retries=0, timeout=110) as client:
            await asyncio.gather(*(one(client, call) for call in calls()))

    asyncio.run(all_of_them())


@check
def tool_results_continue_the_conversation() -> None:
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city":"Oslo","unit":"celsius"}'},
    }
    messages = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "4 degrees, rain"},
    ]
    with_tools = CLIENT.chat.completions.create(**{**GREEDY, "messages": messages}, tools=[WEATHER], tool_choice="none")
    expect_text(with_tools.choices[0].message.content)
    expect(not with_tools.choices[0].message.tool_calls, "a tool was called although tool_choice is none")
    without = CLIENT.chat.completions.create(**GREEDY)
    told = CLIENT.chat.completions.create(**GREEDY, tools=[WEATHER], tool_choice="auto")
    expect(told.usage.prompt_tokens > without.usage.prompt_tokens, "the tools are not in the prompt")


@check
def completions_of_texts_and_token_ids() -> None:
    asked: dict[str, Any] = {"model": SERVER.model, "temperature": 0, "max_tokens": 12}
    texts = ["The sky is", "One, two, three,"]
    answer = CLIENT.completions.create(**asked, prompt=texts)
    expect_equal([choice.index for choice in answer.choices], [0, 1], "indexes")
    for text, choice in zip(texts, answer.choices, strict=True):
        alone = CLIENT.completions.create(**asked, prompt=text)
        expect_equal(choice.text, expect_text(alone.choices[0].text), "text alone and in a batch")
        expect(choice.finish_reason in ("stop", "length"), f"finish_reason: {choice.finish_reason!r}")
        expect_usage(alone.usage.prompt_tokens, alone.usage.completion_tokens, alone.usage.total_tokens, most=12)
        streamed = list(CLIENT.completions.create(**asked, prompt=text, stream=True))
        expect_equal("".join(chunk.choices[0].text for chunk in streamed), choice.text, "text of the stream")
        expect_equal(
            [c.choices[0].finish_reason for c in streamed if c.choices[0].finish_reason],
            [choice.finish_reason],
            "reasons",
        )
    echoed = CLIENT.completions.create(**asked, prompt=texts[0], echo=True, logprobs=2)
    expect(echoed.choices[0].text.startswith(texts[0]), f"echo: {echoed.choices[0].text!r}")
    logprobs = echoed.choices[0].logprobs
    expect_equal(len(logprobs.tokens), len(logprobs.token_logprobs), "tokens and logprobs")
    expect_equal("".join(logprobs.tokens), echoed.choices[0].text, "tokens put together")
    expect(logprobs.token_logprobs[0] is None and all(value <= 0 for value in logprobs.token_logprobs[1:]), "logprobs")
    ids = SERVER.token_ids(texts[0])
    expect_equal(
        CLIENT.completions.create(**asked, prompt=ids).choices[0].text, answer.choices[0].text, "text after token ids"
    )


@check
def responses_with_text_and_stream() -> None:
    answer = CLIENT.responses.create(**RESPONSE)
    text = expect_text(answer.output_text)
    usage = answer.usage
    expect(usage is not None, "usage is missing")
    expect_usage(usage.input_tokens, usage.output_tokens, usage.total_tokens, most=24)
    wanted = "incomplete" if answer.incomplete_details else "completed"
    expect_equal(answer.status, wanted, "status")
    if usage.output_tokens == 24:
        expect(
            answer.incomplete_details is None or answer.incomplete_details.reason == "max_output_tokens",
            "incomplete_details",
        )
    expect_equal(answer.output[0].type, "message", "type of the first item")
    again = CLIENT.responses.create(**RESPONSE)
    expect_equal(again.output_text, text, "text of the same request")
    expect_cached(again.usage.input_tokens_details.cached_tokens, again.usage.input_tokens)
    events = list(CLIENT.responses.create(**RESPONSE, stream=True))
    expect_equal([event.sequence_number for event in events], list(range(len(events))), "sequence numbers")
    kinds = [event.type for event in events]
    expect_equal(kinds[:4], [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
    ], "first events")  # fmt: skip
    expect_equal(kinds[-1], f"response.{answer.status}", "last event")
    streamed = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    expect_equal(streamed, text, "text of the stream")
    expect_equal(events[-1].response.output_text, text, "text in the last event")
    expect_equal(events[-1].response.usage.output_tokens, usage.output_tokens, "usage in the last event")


@check
def responses_parse_tools_and_history() -> None:
    parsed = CLIENT.responses.parse(**{**RESPONSE, "max_output_tokens": 160}, text_format=City)
    expect(isinstance(parsed.output_parsed, City), f"parsed: {parsed.output_parsed!r}")
    expect_equal(parsed.status, "completed", "status")
    tool = {"type": "function", **WEATHER["function"], "strict": True}
    asked: dict[str, Any] = {**RESPONSE, "max_output_tokens": 160, "tools": [tool], "tool_choice": "required"}
    called = CLIENT.responses.create(**asked)
    calls = [item for item in called.output if item.type == "function_call"]
    expect(calls, f"no tool was called: {called.output_text!r}")
    expect_weather(calls[0].name, calls[0].arguments)
    with CLIENT.responses.stream(**asked) as stream:
        final = stream.get_final_response()
    streamed = [item for item in final.output if item.type == "function_call"]
    expect_equal((streamed[0].name, streamed[0].arguments), (calls[0].name, calls[0].arguments), "streamed call")
    follow: Any = [{"type": "function_call_output", "call_id": calls[0].call_id, "output": "4 degrees, rain"}]
    second = CLIENT.responses.create(
        **{**RESPONSE, "input": follow}, previous_response_id=called.id, tools=[tool], tool_choice="none"
    )
    expect_text(second.output_text)
    expect(second.usage.input_tokens > called.usage.input_tokens, "the earlier turn is not in the prompt")
    expect_equal(second.previous_response_id, called.id, "previous_response_id")
    error = expect_raises(
        openai.APIStatusError, lambda: CLIENT.responses.create(**RESPONSE, previous_response_id="resp_nobody_knows")
    )
    expect(error.status_code in (400, 404), f"status of an unknown previous_response_id: {error.status_code}")


@check
def models_and_embeddings() -> None:
    expect(SERVER.model in [model.id for model in CLIENT.models.list()], "the model is not in the list")
    expect_equal(CLIENT.models.retrieve(SERVER.model).id, SERVER.model, "id")
    texts = ["A cat sat on the mat.", "A cat was sitting on a mat.", "Interest rates rose again."]
    answer = CLIENT.embeddings.create(model=SERVER.model, input=texts)
    vectors = [item.embedding for item in answer.data]
    expect_equal([item.index for item in answer.data], [0, 1, 2], "indexes")
    expect(
        len(vectors[0]) > 100 and len({len(vector) for vector in vectors}) == 1, f"sizes: {[len(v) for v in vectors]}"
    )
    near, far = (sum(a * b for a, b in zip(vectors[0], other, strict=True)) for other in vectors[1:])
    expect(near > far, f"similar sentences have {near}, others {far}")
    floats = CLIENT.embeddings.create(model=SERVER.model, input=texts[0], encoding_format="float")
    expect(
        max(abs(a - b) for a, b in zip(floats.data[0].embedding, vectors[0], strict=True)) < 1e-5,
        "float and base64 differ",
    )
    expect(answer.usage.prompt_tokens > 0 and answer.usage.total_tokens == answer.usage.prompt_tokens, "usage")


@check
def errors_have_their_classes() -> None:
    missing = expect_raises(
        openai.NotFoundError, lambda: CLIENT.chat.completions.create(**{**GREEDY, "model": "nobody-knows-this"})
    )
    expect_equal(missing.code, "model_not_found", "code")
    long: Any = [{"role": "user", "content": too_long(SERVER)}]
    error = expect_raises(
        openai.BadRequestError, lambda: CLIENT.chat.completions.create(**{**GREEDY, "messages": long})
    )
    expect_equal(error.code, "context_length_exceeded", "code")
    expect("maximum context length" in error.message, f"message: {error.message}")
    wrong = expect_raises(
        openai.BadRequestError, lambda: CLIENT.chat.completions.create(**{**GREEDY, "temperature": -1})
    )
    expect_equal((wrong.param, wrong.type), ("temperature", "invalid_request_error"), "param and type")
    unknown = expect_raises(
        openai.BadRequestError, lambda: CLIENT.chat.completions.create(**GREEDY, extra_body={"made_up_field": 1})
    )
    expect_equal(unknown.param, "made_up_field", "param")
    stranger = CLIENT.with_options(api_key="not-the-key")
    denied = expect_raises(openai.AuthenticationError, lambda: stranger.chat.completions.create(**GREEDY))
    expect_equal(denied.status_code, 401, "status")


if __name__ == "__main__":
    run_checks()
