"""The backend of OpenAI's API: against our own server, and against a server that answers oddly."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import pytest

from radixlang.backends.base import Call, Message, Output, Piece
from radixlang.backends.openai import OpenAI
from radixlang.backends.openai_fields import Dialect
from radixlang.constraints import Choice, Constraint, Grammar, JsonSchema, Regex
from radixlang.errors import BackendClosed, BackendError, InvalidProgram, Refused, Unsupported
from radixlang.sampling import Sampling
from radixserve import SamplingParams
from tests.chat.models import byte_level
from tests.chat.templates import CHATML
from tests.radixlang.backends.models import Served, model_of, served
from tests.radixlang.backends.scripted_server import Reply, ScriptedServer

pytestmark = pytest.mark.anyio

GREEDY = Sampling(max_tokens=12, temperature=0.0)
MESSAGES = (Message("system", "Say hello."), Message("user", "hello"))
SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}


Ours = Callable[..., OpenAI]


@pytest.fixture(scope="module")
def pair() -> Iterator[Served]:
    with served(model_of(byte_level(("<s>", "<|im_start|>", "<|im_end|>")), CHATML)) as made:
        yield made


@pytest.fixture
async def ours(pair: Served) -> AsyncIterator[Ours]:
    """Makes backends of our own server."""
    made: list[OpenAI] = []

    def make(dialect: Dialect = "openai", model: str = "tiny") -> OpenAI:
        made.append(OpenAI(model, base_url=f"{pair.url}/v1", api_key="none", dialect=dialect))
        return made[-1]

    yield make
    for backend in made:
        await backend.aclose()


async def collected(pieces: AsyncGenerator[Piece, None]) -> tuple[list[Piece], Output]:
    async with contextlib.aclosing(pieces):
        found = [piece async for piece in pieces]
    assert all(piece.output is None for piece in found[:-1])
    output = found[-1].output
    assert output is not None
    return found, output


async def output_of(pieces: AsyncGenerator[Piece, None]) -> Output:
    return (await collected(pieces))[1]


# ---------------------------------------------------------------- our own server


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_texts_and_conversations_are_continued(pair: Served, ours: Ours, stream: bool) -> None:
    sampling = Sampling(max_tokens=8, temperature=1.0, seed=5, n=2, stop=("zzz",), top_p=0.9)
    params = SamplingParams(max_tokens=8, temperature=1.0, seed=5, n=2, top_p=0.9)
    backend, call = ours(), Call(sampling, stream=stream)
    chat_ids = pair.engine.apply_chat_template([{"role": item.role, "content": item.content} for item in MESSAGES])
    for pieces, prompt in (
        (backend.complete("hello", call), pair.engine.tokenize("hello")),
        (backend.answer(MESSAGES, call), chat_ids),
    ):
        found, output = await collected(pieces)
        expected = pair.engine.generate(prompt, params)
        assert [sample.text for sample in output.samples] == [sample.text for sample in expected.samples]
        for index, (sample, other) in enumerate(zip(output.samples, expected.samples, strict=True)):
            assert (sample.rest, sample.token_ids, sample.kept) == (sample.text, (), 0)
            assert sample.finish_reason == other.finish_reason
            if stream:
                assert "".join(piece.text for piece in found if piece.index == index) == sample.text
        usage = output.usage
        assert usage.prompt == len(prompt)
        assert usage.generated == expected.completion_tokens
        assert usage.cached is not None and usage.computed == usage.prompt - usage.cached


async def test_logprobs_are_told(pair: Served, ours: Ours) -> None:
    backend = ours()
    call = Call(Sampling(max_tokens=4, temperature=0.0, logprobs=2))
    expected = pair.engine.generate("hello", SamplingParams(max_tokens=4, temperature=0, logprobs=2))
    assert expected.logprobs is not None
    for stream in (False, True):
        output = await output_of(backend.complete("hello", Call(call.sampling, stream=stream)))
        scores = output.samples[0].logprobs
        assert scores is not None
        assert [score.logprob for score in scores] == [entry.logprob for entry in expected.logprobs]
        answer = await output_of(backend.answer(MESSAGES, Call(call.sampling, stream=stream)))
        assert answer.samples[0].logprobs is not None
        assert len(answer.samples[0].logprobs) == answer.usage.generated
        assert len(answer.samples[0].logprobs[0].top) == 2


CONSTRAINTS: dict[str, tuple[Constraint, tuple[str, ...]]] = {
    "schema": (JsonSchema(SCHEMA), ('{"a":true}', '{"a":false}')),
    "regex": (Regex("ab|cd"), ("ab", "cd")),
    "grammar": (Grammar('root ::= "x" | "y"'), ("x", "y")),
    "choice": (Choice(("a|b", "c.")), ("a|b", "c.")),
}


@pytest.mark.parametrize("name", CONSTRAINTS)
@pytest.mark.parametrize("dialect", ["radixserve", "vllm", "sglang"])
async def test_servers_that_know_more_are_asked_for_more(ours: Ours, dialect: Dialect, name: str) -> None:
    backend = ours(dialect)
    constraint, possible = CONSTRAINTS[name]
    call = Call(Sampling(max_tokens=20, temperature=1.0, top_k=50, min_p=0.0, repetition_penalty=1.1), constraint)
    for pieces in (backend.complete("hello", call), backend.answer(MESSAGES, call)):
        assert (await output_of(pieces)).samples[0].text in possible


async def test_schemas_are_strict_where_that_is_all_there_is(ours: Ours) -> None:
    output = await output_of(ours().answer(MESSAGES, Call(GREEDY, JsonSchema(SCHEMA))))
    assert output.samples[0].text in CONSTRAINTS["schema"][1]


async def test_scores_are_those_of_the_tokens(pair: Served, ours: Ours) -> None:
    """The prompt's last token belongs to one of the choices: all are scored from before it."""
    prompt, choices = "say he", ["llo", "x", "llo hello"]
    result = await ours().score_texts(prompt, choices)
    own = pair.engine.tokenize(prompt)
    whole = [pair.engine.tokenize(prompt + choice) for choice in choices]
    start = next(at for at in range(len(own)) if any(ids[at] != own[at] for ids in whole))
    assert start < len(own)
    for ids, tokens, logprobs in zip(whole, result.token_ids, result.logprobs, strict=True):
        assert len(tokens) == len(logprobs) == len(ids) - start
        expected = pair.engine.score(ids[:start], [ids[start:]])[0].logprobs
        assert logprobs == pytest.approx(expected, abs=1e-12)
    assert result.token_ids[0][0] == result.token_ids[2][0] != result.token_ids[1][0]
    assert result.usage.prompt == len(own) + sum(map(len, whole))
    assert result.usage.generated == 0


async def test_the_model_is_described(ours: Ours) -> None:
    assert await ours().info() == {"model": "tiny", "context_length": 4096}


async def test_refusals_name_the_field(ours: Ours) -> None:
    backend = ours()
    with pytest.raises(Refused) as refused:
        await output_of(backend.complete("hello", Call(Sampling(max_tokens=4, temperature=-1.0))))
    assert refused.value.param == "temperature"
    with pytest.raises(Refused) as refused:
        await output_of(ours(model="other").complete("hello", Call(GREEDY)))
    assert (refused.value.param, refused.value.code) == ("model", "model_not_found")


# ---------------------------------------------------------------- what the API cannot do


@pytest.mark.parametrize(
    ("call", "primitive"),
    [
        (Call(GREEDY, heal=True), "heal"),
        (Call(GREEDY, Regex("a")), "regex"),
        (Call(GREEDY, Grammar('root ::= "a"')), "grammar"),
        (Call(GREEDY, Choice(("a",))), "choices"),
        (Call(GREEDY, JsonSchema(True)), "json_schema"),
        (Call(Sampling(top_k=5)), "top_k"),
        (Call(Sampling(stop_regex=("a",))), "stop_regex"),
        (Call(Sampling(min_tokens=5)), "min_tokens"),
        (Call(Sampling(finish_json=True), JsonSchema(SCHEMA)), "finish_json"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_what_no_field_asks_for_is_unsupported_by_name(call: Call, primitive: str) -> None:
    server = ScriptedServer(Reply({}))
    backend = OpenAI("m", base_url="http://server/v1", transport=server)
    for pieces in (backend.answer(MESSAGES, call), backend.complete("hello", call)):
        with pytest.raises(Unsupported) as unsupported:
            await output_of(pieces)
        assert unsupported.value.primitive == primitive
    assert server.seen == [], "nothing weaker was asked for"


async def test_a_schema_is_unsupported_where_texts_are_continued() -> None:
    backend = OpenAI("m", base_url="http://server/v1", transport=ScriptedServer(Reply({})))
    with pytest.raises(Unsupported, match="json_schema"):
        await output_of(backend.complete("hello", Call(GREEDY, JsonSchema(SCHEMA))))


async def test_the_cache_of_a_server_is_not_known() -> None:
    with pytest.raises(Unsupported, match="flush"):
        await OpenAI("m", base_url="http://server/v1").flush()


async def test_a_server_is_told_to_do_one_thing_only() -> None:
    chat = OpenAI("m", base_url="http://server/v1", chat=True)
    for asked in (output_of(chat.complete("hello", Call(GREEDY))), chat.score_texts("hello", ["a"])):
        with pytest.raises(Unsupported, match=r"chat=True"):
            await asked
    with pytest.raises(Unsupported, match=r"^messages: .*chat=False"):
        await output_of(OpenAI("m", base_url="http://server/v1", chat=False).answer(MESSAGES, Call(GREEDY)))


def test_what_is_no_dialect_or_url_is_refused() -> None:
    with pytest.raises(InvalidProgram, match="dialect"):
        OpenAI("m", dialect="other")  # type: ignore[arg-type]
    with pytest.raises(InvalidProgram, match="url"):
        OpenAI("m", base_url="server:8000")


# ---------------------------------------------------------------- odd servers


def text_answer(text: str = "hi", **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": text, "finish_reason": "stop", **more}]}


def chat_answer(text: str | None = "hi", reason: str | None = "stop", **more: Any) -> dict[str, Any]:
    return {
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text, **more}, "finish_reason": reason}]
    }


def backend_of(*replies: Reply | Exception, **options: Any) -> tuple[OpenAI, ScriptedServer]:
    server = ScriptedServer(*replies)
    return OpenAI("m", base_url="http://server/v1/", api_key="key", transport=server, **options), server


@pytest.mark.parametrize(
    "reply",
    [
        Reply({"detail": "Not Found"}, 404),
        Reply({"error": {"message": "Invalid URL", "type": "invalid_request_error", "param": None, "code": None}}, 404),
        Reply(b"nothing here", 405),
    ],
    ids=["detail", "error", "text"],
)
async def test_an_endpoint_that_is_not_there_is_unsupported(reply: Reply) -> None:
    backend, _ = backend_of(reply)
    with pytest.raises(Unsupported, match=r"^text outside of messages: .* it has no /completions"):
        await output_of(backend.complete("hello", Call(GREEDY)))
    with pytest.raises(Unsupported, match=r"^messages: .* it has no /chat/completions"):
        await output_of(backend.answer(MESSAGES, Call(GREEDY)))
    with pytest.raises(Unsupported):
        await backend.score_texts("hello", ["a"])


async def test_a_model_that_is_not_there_is_a_refusal() -> None:
    backend, _ = backend_of(Reply({"object": "error", "message": "The model `m` does not exist.", "code": 404}, 404))
    with pytest.raises(Refused, match="does not exist"):
        await output_of(backend.complete("hello", Call(GREEDY)))


@pytest.mark.parametrize(
    ("options", "base_url", "field"),
    [
        ({}, "http://server/v1", "max_tokens"),
        ({}, "https://api.openai.com/v1", "max_completion_tokens"),
        ({"limit_field": "max_completion_tokens"}, "http://server/v1", "max_completion_tokens"),
    ],
)
async def test_the_limit_is_called_as_the_server_calls_it(options: dict[str, Any], base_url: str, field: str) -> None:
    server = ScriptedServer(Reply(chat_answer()))
    backend = OpenAI("m", base_url=base_url, api_key="key", transport=server, **options)
    await output_of(backend.answer(MESSAGES, Call(GREEDY)))
    (seen,) = server.seen
    assert seen.body == {
        "model": "m",
        "messages": [{"role": "system", "content": "Say hello."}, {"role": "user", "content": "hello"}],
        field: 12,
        "temperature": 0.0,
    }
    assert seen.headers["Authorization"] == "Bearer key"


async def test_where_nothing_is_said_the_environment_says_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://elsewhere/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    server = ScriptedServer(Reply(text_answer()))
    backend = OpenAI("m", transport=server)
    await output_of(backend.complete("hello", Call(GREEDY)))
    assert server.seen[0].headers["Authorization"] == "Bearer secret"
    assert server.seen[0].headers["Host"] == "elsewhere"
    assert "secret" not in backend.name


async def test_a_stream_without_usage_or_end_marks() -> None:
    events = [
        {"choices": [{"index": 0, "delta": {"role": "assistant"}}]},
        {"choices": [{"index": 0, "delta": {"content": "he"}, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {"content": "llo"}, "finish_reason": "eos"}]},
    ]
    backend, server = backend_of(Reply(events=events))
    found, output = await collected(backend.answer(MESSAGES, Call(GREEDY, stream=True)))
    assert [piece.text for piece in found] == ["he", "llo", ""]
    assert (output.samples[0].text, output.samples[0].finish_reason) == ("hello", "stop")
    assert (output.usage.cached, output.usage.computed) == (None, None)
    assert server.closed_streams == 1


async def test_leaving_a_stream_closes_it() -> None:
    backend, server = backend_of(Reply(events=[{"choices": [{"index": 0, "text": "a"}]}] * 5))
    pieces = backend.complete("hello", Call(GREEDY, stream=True))
    await anext(pieces)
    await pieces.aclose()
    assert server.closed_streams == 1


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (chat_answer("hi", "content_filter"), "content_filter"),
        (chat_answer(None, "tool_calls"), "tool_calls"),
        (chat_answer("hi", None), "finish_reason None"),
        (chat_answer(None, "stop", refusal="I will not."), "I will not"),
        ({"choices": []}, "finish_reason None"),
        ({"choices": [{"index": 3, "message": {"content": "hi"}, "finish_reason": "stop"}]}, "a choice 3"),
        ({"choices": "what"}, "not what was asked for"),
        (b"<html>", "not what was asked for"),
    ],
)
async def test_an_answer_that_is_none_is_an_error(answer: Any, message: str) -> None:
    backend, _ = backend_of(Reply(answer))
    with pytest.raises(BackendError, match=message):
        await output_of(backend.answer(MESSAGES, Call(GREEDY)))


async def test_logprobs_that_are_left_out_are_missed() -> None:
    backend, _ = backend_of(Reply(chat_answer()))
    with pytest.raises(BackendError, match="tells no logprobs"):
        await output_of(backend.answer(MESSAGES, Call(Sampling(max_tokens=4, logprobs=1))))


async def test_errors_in_a_stream_are_raised() -> None:
    begun = {"choices": [{"index": 0, "text": "a"}]}
    for detail, kind in (
        ({"message": "too long", "type": "invalid_request_error", "param": "prompt"}, Refused),
        ({"message": "it broke", "type": "server_error"}, BackendError),
        ({"message": "gone", "type": "server_error", "code": "engine_gone"}, BackendClosed),
    ):
        backend, _ = backend_of(Reply(events=[begun, {"error": detail}]))
        with pytest.raises(kind, match=str(detail["message"])) as error:
            await output_of(backend.complete("hello", Call(GREEDY, stream=True)))
        assert type(error.value) is kind


ECHO = {"tokens": ["a", "b", "c"], "token_logprobs": [None, -1.0, -2.0], "text_offset": [0, 1, 2]}


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"text": "abc"}, "no logprobs of the prompt"),
        ({"text": "x", "logprobs": ECHO}, "not echoed"),
        ({"text": "abc", "logprobs": {**ECHO, "text_offset": None}}, "where tokens stand"),
    ],
)
async def test_select_needs_an_echo_with_logprobs(choice: dict[str, Any], message: str) -> None:
    answer = {"choices": [{"index": index, **choice} for index in range(2)]}
    backend, _ = backend_of(Reply(answer))
    with pytest.raises(Unsupported, match=f"^select: .*{message}"):
        await backend.score_texts("a", ["b"])


async def test_a_server_that_refuses_to_echo_cannot_select() -> None:
    refusal = {"error": {"message": "echo is not supported with logprobs", "param": "echo", "code": None}}
    backend, _ = backend_of(Reply(refusal, 400))
    with pytest.raises(Unsupported, match=r"^select: .*does not echo"):
        await backend.score_texts("a", ["b"])


async def test_the_first_token_of_all_has_no_likelihood() -> None:
    answer = {"choices": [{"index": 0, "text": "ab", "logprobs": ECHO}]}
    backend, _ = backend_of(Reply(answer))
    with pytest.raises(Unsupported, match="first token of a text has no logprob"):
        await backend.score_texts("", ["ab"])


async def test_a_begin_token_is_what_the_first_token_comes_after() -> None:
    shown = {"tokens": ["<s>", "a", "b", "c"], "token_logprobs": [None, -1.0, -2.0, 0.0], "text_offset": [0, 0, 1, 2]}
    backend, _ = backend_of(Reply({"choices": [{"index": 0, "text": "abc", "logprobs": shown}]}))
    assert (await backend.score_texts("", ["ab"])).logprobs == ((-1.0, -2.0),)


async def test_tokens_that_all_choices_share_with_the_prompt_only_are_left_out() -> None:
    def echo(index: int, tokens: list[str], logprobs: list[float | None]) -> dict[str, Any]:
        offsets = [sum(map(len, tokens[:at])) for at in range(len(tokens))]
        shown = {"tokens": tokens, "token_logprobs": logprobs, "text_offset": offsets}
        return {"index": index, "text": "".join(tokens), "logprobs": shown, "finish_reason": "length"}

    # The last token of each was drawn and is dropped; answers come in any order.
    answer = {
        "choices": [
            echo(2, ["Q", ":", " n", "o", "?"], [None, -1.0, -5.0, -6.0, 0.0]),
            echo(0, ["Q", ":", " ", "x"], [None, -1.0, -2.0, 0.0]),
            echo(1, ["Q", ":", " yes", "!"], [None, -1.0, -3.0, 0.0]),
        ],
        "usage": {"prompt_tokens": 10, "completion_tokens": 3},
    }
    backend, server = backend_of(Reply(answer))
    result = await backend.score_texts("Q: ", ["yes", "no"])
    assert result.logprobs == ((-3.0,), (-5.0, -6.0))
    assert result.token_ids == ((0,), (1, 2))
    assert server.seen[0].body["prompt"] == ["Q: ", "Q: yes", "Q: no"]


# ---------------------------------------------------------------- retries


async def test_a_busy_server_is_asked_again() -> None:
    busy = Reply({"error": {"message": "busy"}}, 429, {"Retry-After": "0"})
    backend, server = backend_of(busy, busy, Reply(text_answer()))
    assert (await output_of(backend.complete("hello", Call(GREEDY)))).samples[0].text == "hi"
    assert len(server.seen) == 3


async def test_retries_end() -> None:
    backend, server = backend_of(
        Reply({"error": {"message": "busy", "code": "rate"}}, 429, {"Retry-After": "0"}), retries=2
    )
    with pytest.raises(Refused, match="busy"):
        await output_of(backend.complete("hello", Call(GREEDY)))
    assert len(server.seen) == 3


async def test_what_did_not_reach_the_server_is_sent_again() -> None:
    backend, server = backend_of(httpx.ConnectError("refused"), Reply(text_answer()))
    assert (await output_of(backend.complete("hello", Call(GREEDY)))).samples[0].text == "hi"
    assert len(server.seen) == 2


async def test_a_generation_whose_answer_is_lost_is_not_asked_for_again() -> None:
    backend, server = backend_of(httpx.ReadError("reset"), Reply(text_answer()))
    with pytest.raises(BackendClosed):
        await output_of(backend.complete("hello", Call(GREEDY)))
    assert len(server.seen) == 1


async def test_a_question_whose_answer_is_lost_is_asked_again() -> None:
    backend, server = backend_of(httpx.RemoteProtocolError("gone"), Reply({"max_model_len": 7}))
    assert (await backend.info())["context_length"] == 7
    assert [seen.method for seen in server.seen] == ["GET", "GET"]


async def test_silence_is_an_error_of_its_own() -> None:
    backend, _ = backend_of(httpx.ReadTimeout("silence"))
    with pytest.raises(BackendError, match="no sign of the server") as error:
        await output_of(backend.complete("hello", Call(GREEDY)))
    assert not isinstance(error.value, BackendClosed)


async def test_a_stream_that_breaks_off_is_told() -> None:
    backend, _ = backend_of(Reply(events=[{"choices": [{"index": 0, "text": "a"}]}, httpx.ReadError("reset")]))
    with pytest.raises(BackendClosed):
        await output_of(backend.complete("hello", Call(GREEDY, stream=True)))


@pytest.mark.parametrize(
    ("status", "kind"), [(500, BackendError), (502, BackendClosed), (503, BackendClosed), (408, BackendError)]
)
async def test_failures_of_the_server_are_no_refusals(status: int, kind: type[Exception]) -> None:
    backend, _ = backend_of(Reply({"error": {"message": "it broke"}}, status))
    with pytest.raises(kind, match="it broke") as error:
        await output_of(backend.complete("hello", Call(GREEDY)))
    assert type(error.value) is kind
