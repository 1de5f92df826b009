"""What every token-exact backend must do: the engine in this process and the same engine behind a server."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import itertools
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence

import pytest

from radixlang.backends.base import Call, Message, Output, Piece, Text, TokenBackend
from radixlang.backends.engine import EngineBackend
from radixlang.backends.http import RuntimeEndpoint
from radixlang.constraints import Choice, Grammar, JsonSchema, Regex
from radixlang.errors import BackendClosed, Refused, Unsupported
from radixlang.sampling import Sampling
from radixserve import Engine, SamplingParams
from tests.chat.models import byte_level
from tests.chat.templates import CHATML
from tests.radixlang.backends.live import serve
from tests.radixlang.backends.models import Both, Served, both, model_of, served

pytestmark = pytest.mark.anyio

SPECIAL = ("<s>", "<|im_start|>", "<|im_end|>")


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(model_of(byte_level(SPECIAL), CHATML)) as made:
        yield made


@pytest.fixture
async def pair(server: Served) -> AsyncIterator[Both]:
    async with both(server) as made:
        yield made


@pytest.fixture(params=["engine", "http"])
def backend(request: pytest.FixtureRequest, pair: Both) -> TokenBackend:
    return pair.of(request.param)


def greedy(**more: object) -> Sampling:
    return Sampling(**{"max_tokens": 12, "temperature": 0.0, "ignore_eos": True, **more})  # type: ignore[arg-type]


async def pieces_of(backend: TokenBackend, ids: Sequence[int], call: Call) -> list[Piece]:
    async with contextlib.aclosing(backend.generate(ids, call)) as pieces:
        return [piece async for piece in pieces]


async def output_of(backend: TokenBackend, ids: Sequence[int], call: Call) -> Output:
    output = (await pieces_of(backend, ids, call))[-1].output
    assert output is not None
    return output


def free(text: str) -> Text:
    return Text(text, "free")


# ---------------------------------------------------------------- texts


async def test_parts_are_read_as_one_text(backend: TokenBackend) -> None:
    whole = await backend.encode([free("hello hello")], first=False)
    assert await backend.encode([free("he"), free("llo hel"), Text("lo", "content")], first=False) == whole
    assert len(whole) == 2, "the merges reach over the parts"
    assert await backend.decode(whole) == "hello hello"
    assert await backend.encode([], first=False) == await backend.encode([free("")], first=False) == []


async def test_names_of_special_tokens_are_tokens_where_a_program_writes_them_freely(backend: TokenBackend) -> None:
    (token,) = await backend.encode([free("<|im_end|>")], first=False)
    assert await backend.encode([Text("<|im_end|>", "template")], first=False) == [token]
    data = await backend.encode([Text("<|im_end|>", "content")], first=False)
    assert token not in data
    assert await backend.decode(data) == "<|im_end|>"
    # Half of a name in a message and half in the template is no name.
    assert token not in await backend.encode([Text("<|im", "content"), Text("_end|>", "template")], first=False)


async def test_what_is_returned_is_the_callers_own(backend: TokenBackend) -> None:
    first = await backend.encode([free("hello")], first=False)
    expected = list(first)
    first.append(0)
    assert await backend.encode([free("hello")], first=False) == expected


async def test_the_begin_token_comes_first_unless_a_template_writes_it() -> None:
    tokenizer = byte_level(SPECIAL)
    begin = tokenizer.bos_id
    assert begin is not None
    tokenizer.special = dataclasses.replace(tokenizer.special, prefix=(begin,))
    with served(model_of(tokenizer, CHATML)) as server:
        async with both(server) as made:
            for backend in (made.local, made.remote):
                assert (await backend.encode([free("hello")], first=True))[0] == begin
                assert await backend.encode([], first=True) == [begin]
                assert begin not in await backend.encode([free("hello")], first=False)
                assert begin not in await backend.encode([Text("hello", "template"), free("<")], first=True)


async def test_a_lone_surrogate_is_refused(backend: TokenBackend) -> None:
    with pytest.raises(Refused):
        await backend.encode([free("\ud800")], first=False)


# ---------------------------------------------------------------- generate

SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
NUMBERS = {"type": "array", "items": {"type": "integer"}, "maxItems": 9}

CALLS = {
    "greedy": Call(greedy()),
    "seeded": Call(Sampling(max_tokens=12, temperature=0.9, top_p=0.9, seed=7)),
    "samples": Call(Sampling(max_tokens=6, temperature=1.0, seed=3, n=3)),
    "penalties": Call(greedy(repetition_penalty=1.3, frequency_penalty=0.5, presence_penalty=0.1, logit_bias={5: 2.0})),
    "filters": Call(Sampling(max_tokens=8, temperature=1.5, top_k=20, min_p=0.05, min_tokens=4, seed=-1)),
    "logprobs": Call(greedy(logprobs=3, n=2)),
    "own logprobs": Call(greedy(logprobs=0)),
    "stop token": Call(greedy(ignore_eos=False, stop_token_ids=tuple(range(0, 260, 2)))),
    "stop pattern": Call(greedy(max_tokens=40, stop_regex=("[0-9a-z]",))),
    "regex": Call(greedy(max_tokens=40, logprobs=0), Regex("(yes|no), hello [0-9]{2}")),
    "choice": Call(greedy(), Choice(("a|b", "c.d", "e"))),
    "schema": Call(greedy(max_tokens=60), JsonSchema(SCHEMA)),
    "finish": Call(greedy(max_tokens=6, finish_json=True), JsonSchema(NUMBERS)),
    "grammar": Call(greedy(max_tokens=30), Grammar('root ::= "x" [0-9] "y"')),
    "priority": Call(greedy(), priority=5),
    "heal": Call(greedy(), heal=True),
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("name", CALLS)
async def test_both_give_the_same(pair: Both, name: str, stream: bool) -> None:
    call = CALLS[name]
    call = Call(call.sampling, call.constraint, heal=call.heal, priority=call.priority, stream=stream)
    ids = await pair.local.encode([free("hello, hel")], first=True)
    here, there = [await output_of(backend, ids, call) for backend in (pair.local, pair.remote)]
    assert here.samples == there.samples
    assert here.healed == there.healed
    for output in (here, there):
        assert len(output.samples) == (call.sampling.n or 1)
        usage = output.usage
        assert usage.cached is not None and usage.computed is not None and usage.queue_s is not None
        assert usage.prompt == usage.cached + usage.computed == len(ids) - output.healed
        assert usage.generated == sum(len(sample.token_ids) for sample in output.samples)
        assert usage.first_token_s is not None and usage.wall_s >= usage.first_token_s
    assert here.usage.forced == there.usage.forced


async def test_constraints_are_kept(backend: TokenBackend) -> None:
    ids = await backend.encode([free("hello")], first=True)
    output = await output_of(backend, ids, CALLS["regex"])
    assert output.samples[0].text[:4] in ("yes,", "no, ")
    assert output.samples[0].finish_reason == "stop"
    assert output.usage.forced
    assert output.samples[0].logprobs is not None
    assert sum(score.forced for score in output.samples[0].logprobs) == output.usage.forced
    assert (await output_of(backend, ids, CALLS["choice"])).samples[0].text in ("a|b", "c.d", "e")


async def test_tokens_and_rest_are_the_text(backend: TokenBackend) -> None:
    """A stop string that begins inside a token leaves a rest; what was kept and the rest spell the text."""
    ids = await backend.encode([free("hello")], first=True)
    forced = await output_of(backend, ids, Call(greedy(stop=("llo",)), Regex("ab hello hello")))
    (sample,) = forced.samples
    assert (sample.text, sample.finish_reason, sample.matched) == ("ab he", "stop", "llo")
    assert await backend.decode(sample.token_ids[: sample.kept]) + sample.rest == sample.text
    assert sample.rest == " he"


async def test_healed_tokens_are_replaced(backend: TokenBackend) -> None:
    ids = await backend.encode([free("ab he")], first=True)
    output = await output_of(backend, ids, Call(greedy(), Regex("llo!"), heal=True))
    assert output.healed > 0
    (sample,) = output.samples
    whole = [*ids[: len(ids) - output.healed], *sample.token_ids[: sample.kept]]
    assert await backend.decode(whole) == "ab hello!"


async def test_pieces_of_a_stream_are_its_texts(backend: TokenBackend) -> None:
    ids = await backend.encode([free("hello")], first=True)
    call = Call(Sampling(max_tokens=10, temperature=1.0, seed=1, n=2, ignore_eos=True), stream=True)
    pieces = await pieces_of(backend, ids, call)
    output = pieces[-1].output
    assert output is not None
    assert all(piece.output is None for piece in pieces[:-1])
    for index, sample in enumerate(output.samples):
        assert "".join(piece.text for piece in pieces if piece.index == index) == sample.text
    assert len(pieces) > 4


async def test_without_a_stream_one_piece_comes(backend: TokenBackend) -> None:
    ids = await backend.encode([free("hello")], first=True)
    pieces = await pieces_of(backend, ids, Call(greedy(n=2)))
    assert len(pieces) == 1
    assert pieces[0].output is not None
    assert pieces[0].text == pieces[0].output.samples[0].text


async def test_what_was_generated_is_found_in_the_cache_to_the_token(backend: TokenBackend) -> None:
    await backend.flush()
    ids = await backend.encode([free("a prompt that nobody sent before")], first=True)
    output = await output_of(backend, ids, Call(greedy()))
    (sample,) = output.samples
    assert sample.kept == len(sample.token_ids)
    following = [*ids, *sample.token_ids, *await backend.encode([free(" and more")], first=False)]
    # The last token was drawn, and nothing was computed from it.
    assert (await output_of(backend, following, Call(greedy()))).usage.cached == len(ids) + len(sample.token_ids) - 1


# ---------------------------------------------------------------- ends


async def idle(engine: Engine) -> None:
    deadline = time.monotonic() + 20
    while (stats := engine.cache_stats())["running"] or stats["waiting"]:
        assert time.monotonic() < deadline, "it runs on"
        await asyncio.sleep(0.01)


LONG = Call(Sampling(max_tokens=3000, temperature=0.0, ignore_eos=True), stream=True)


async def test_closing_a_stream_ends_the_generation(pair: Both, backend: TokenBackend) -> None:
    ids = await backend.encode([free("hello")], first=True)
    pieces: AsyncGenerator[Piece, None] = backend.generate(ids, LONG)
    await anext(pieces)
    await pieces.aclose()
    await idle(pair.engine)


@pytest.mark.parametrize("stream", [False, True])
async def test_cancelling_ends_the_generation(pair: Both, backend: TokenBackend, stream: bool) -> None:
    ids = await backend.encode([free("hello")], first=True)
    task = asyncio.ensure_future(output_of(backend, ids, Call(LONG.sampling, stream=stream)))
    while not pair.engine.cache_stats()["running"]:
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await idle(pair.engine)


@pytest.mark.parametrize("kind", ["engine", "http"])
# What a loop leaves open when it is closed goes with it, and is told.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_one_backend_serves_several_event_loops(server: Served, kind: str) -> None:
    backend = EngineBackend(server.engine) if kind == "engine" else RuntimeEndpoint(server.url)

    async def ask() -> list[str]:
        ids = await backend.encode([free("hello")], first=True)
        outputs = await asyncio.gather(*(output_of(backend, ids, Call(greedy())) for _ in range(3)))
        return [output.samples[0].text for output in outputs]

    answers = [answer for _ in range(3) for answer in asyncio.run(ask())]
    assert len(set(answers)) == 1
    asyncio.run(backend.aclose())
    gc.collect()


async def test_closing_closes_what_other_loops_have_open(server: Served) -> None:
    backend = RuntimeEndpoint(server.url)
    async with RunningLoop() as other:
        there = asyncio.run_coroutine_threadsafe(backend.encode([free("hello")], first=True), other.loop)
        assert await asyncio.wrap_future(there) == await backend.encode([free("hello")], first=True)
        await backend.aclose()
        await backend.aclose()
        with pytest.raises(BackendClosed, match="was closed"):
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(backend.info(), other.loop))


class RunningLoop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)

    async def __aenter__(self) -> RunningLoop:
        self._thread.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        await asyncio.to_thread(self._thread.join)
        self.loop.close()


# ---------------------------------------------------------------- score


def by_hand(engine: Engine, ids: Sequence[int], continuation: Sequence[int]) -> tuple[float, ...]:
    """Read off the logprobs of the whole prompt."""
    output = engine.generate([*ids, *continuation], SamplingParams(max_tokens=0, temperature=0, prompt_logprobs=0))
    assert output.prompt_logprobs is not None
    return tuple(entry.logprob for entry in output.prompt_logprobs[len(ids) :] if entry is not None)


CONTINUATIONS = [[5], [5, 6], [5, 6, 7, 8], [5, 9, 1], [9], [10, 11], [5, 6, 7, 9]]


async def test_scores_are_those_of_full_logprobs(pair: Both, backend: TokenBackend) -> None:
    ids = await backend.encode([free("the answer is")], first=True)
    result = await backend.score(ids, CONTINUATIONS)
    assert result.token_ids == tuple(map(tuple, CONTINUATIONS))
    assert result.logprobs == tuple(by_hand(pair.engine, ids, continuation) for continuation in CONTINUATIONS)


async def test_scores_do_not_depend_on_order_or_company(backend: TokenBackend) -> None:
    ids = await backend.encode([free("the answer is")], first=True)
    whole = dict(zip(map(tuple, CONTINUATIONS), (await backend.score(ids, CONTINUATIONS)).logprobs, strict=True))
    turned = await backend.score(ids, CONTINUATIONS[::-1])
    assert turned.logprobs == tuple(whole[tuple(item)] for item in CONTINUATIONS[::-1])
    for continuation in CONTINUATIONS:
        assert (await backend.score(ids, [continuation])).logprobs == (whole[tuple(continuation)],)


async def test_the_prompt_is_computed_once_and_each_edge_too(backend: TokenBackend) -> None:
    await backend.flush()
    ids = await backend.encode([free("a question of about forty letters, or so")], first=True)
    usage = (await backend.score(ids, CONTINUATIONS)).usage
    inner = {tuple(item[:length]) for item in CONTINUATIONS for length in range(1, len(item))}
    assert usage.computed == len(ids) + len(inner)
    assert usage.generated == 0


async def test_many_choices_of_one_token_are_one_position(backend: TokenBackend) -> None:
    ids = await backend.encode([free("pick a letter: ")], first=True)
    await backend.score(ids, [[1]])
    usage = (await backend.score(ids, [[token] for token in range(100)])).usage
    assert (usage.prompt, usage.computed) == (len(ids), 1)


async def test_without_a_prompt_the_end_token_stands_for_what_was_before(pair: Both, backend: TokenBackend) -> None:
    end = pair.engine.info.eos_ids[0]
    result = await backend.score([], [[5, 6], [7]])
    assert result.logprobs == (by_hand(pair.engine, [end], [5, 6]), by_hand(pair.engine, [end], [7]))


async def test_more_choices_than_one_request_takes(pair: Both, backend: TokenBackend) -> None:
    ids = await backend.encode([free("any token: ")], first=True)
    result = await backend.score(ids, [[token] for token in range(200)])
    assert result.logprobs[199] == by_hand(pair.engine, ids, [199])


# ---------------------------------------------------------------- hold


@pytest.fixture(scope="module")
def small() -> Iterator[Served]:
    """A pool of two thousand tokens."""
    with served(model_of(byte_level(SPECIAL), CHATML), kv_memory_mb=1) as made:
        yield made


@pytest.fixture(params=["engine", "http"])
async def tight(request: pytest.FixtureRequest, small: Served) -> AsyncIterator[TokenBackend]:
    async with both(small) as made:
        yield made.of(request.param)


others = itertools.count(2)


async def cached_after_others(backend: TokenBackend, ids: Sequence[int]) -> int | None:
    """How much of a prompt is cached once others, none of them twice, have taken nearly all room that nobody holds."""
    for _ in range(2):  # the first may take the room of what is older
        await output_of(backend, [next(others), *[1] * 1900], Call(greedy(max_tokens=1)))
    return (await output_of(backend, ids, Call(greedy(max_tokens=1)))).usage.cached


async def test_what_is_held_stays_until_it_is_released(tight: TokenBackend) -> None:
    await tight.flush()
    ids = await tight.encode([free("a prefix that several branches will go on from")], first=True)
    held = await tight.hold(ids, seconds=60.0)
    assert held.held == len(ids)
    assert (held.usage.prompt, held.usage.cached, held.usage.computed) == (len(ids), 0, len(ids))
    assert held.seconds is not None and 0 < held.seconds <= 60.0
    again = await tight.hold(ids, seconds=60.0)
    assert again.usage.computed is not None and again.usage.computed <= 1
    assert await cached_after_others(tight, [*ids, 5]) == len(ids)
    await tight.release([held.id])
    assert await cached_after_others(tight, [*ids, 5]) == len(ids), "the other hold is there"
    await tight.release([again.id, held.id, "no such hold"])
    assert await cached_after_others(tight, [*ids, 5]) == 0
    await tight.release([])


async def test_a_hold_ends_by_itself(tight: TokenBackend) -> None:
    ids = await tight.encode([free("a prefix that nobody releases, as its client died")], first=True)
    await tight.hold(ids, seconds=0.05)
    deadline = time.monotonic() + 20
    while await cached_after_others(tight, [*ids, 5]):
        assert time.monotonic() < deadline, "it is held for ever"
        await asyncio.sleep(0.02)


async def test_a_hold_of_nothing_is_refused(backend: TokenBackend) -> None:
    for ids, seconds in (([], 1.0), ([1], 0.0)):
        with pytest.raises(Refused):
            await backend.hold(ids, seconds=seconds)


# ---------------------------------------------------------------- errors


async def refusal(backend: TokenBackend, call: Call) -> Refused:
    ids = await backend.encode([free("hello")], first=True)
    with pytest.raises(Refused) as refused:
        await output_of(backend, ids, call)
    return refused.value


REFUSED = {
    "temperature": Call(greedy(temperature=-1.0)),
    "min_p": Call(greedy(min_p=float("nan"))),
    "logit_bias": Call(greedy(logit_bias={1: float("inf")})),
    "top_p": Call(greedy(top_p=0.0)),
    "max_tokens": Call(greedy(max_tokens=-1)),
    "min_tokens": Call(greedy(min_tokens=50)),
    "seed": Call(greedy(seed=1 << 70)),
    "stop_token_ids": Call(greedy(stop_token_ids=(10_000,))),
    "logprobs": Call(greedy(logprobs=1000)),
    "stop_regex": Call(greedy(stop_regex=("(",))),
    "finish_json": Call(greedy(finish_json=True)),
    "regex": Call(greedy(), Regex("(")),
    "grammar": Call(greedy(), Grammar("root ::= missing")),
    "choices": Call(greedy(), Choice(("a", "a"))),
    "json_schema": Call(greedy(), JsonSchema({"type": "what"})),
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("param", REFUSED)
async def test_refusals_name_the_programs_own_field(pair: Both, param: str, stream: bool) -> None:
    call = Call(REFUSED[param].sampling, REFUSED[param].constraint, stream=stream)
    here, there = [await refusal(backend, call) for backend in (pair.local, pair.remote)]
    for refused in (here, there):
        assert (refused.param or "").partition(".")[0] == param
        assert not refused.message.startswith(param)
    assert here.code == there.code


async def test_a_context_that_is_too_small_is_told(pair: Both, backend: TokenBackend) -> None:
    refused = await refusal(backend, Call(greedy(max_tokens=5000)))
    assert refused.code == "context_length_exceeded"


async def test_a_closed_engine_is_told() -> None:
    engine = Engine.from_model(model_of(byte_level(SPECIAL), CHATML), kv_memory_mb=16)
    with serve(engine) as url:
        local, remote = EngineBackend(engine), RuntimeEndpoint(url, retries=0)
        ids = await local.encode([free("hello")], first=True)
        assert await remote.encode([free("hello")], first=True) == ids
        engine.close()
        for backend in (local, remote):
            with pytest.raises(BackendClosed):
                await output_of(backend, ids, Call(greedy()))
            with pytest.raises(BackendClosed):
                await backend.score(ids, [[1]])
        await remote.aclose()
    for closed in (RuntimeEndpoint(url, retries=0), remote):
        with pytest.raises(BackendClosed):
            await closed.info()


async def test_without_a_template_there_are_no_roles() -> None:
    with served(model_of(byte_level(SPECIAL), None)) as server:
        async with both(server) as made:
            for backend in (made.local, made.remote):
                with pytest.raises(Unsupported, match=r"roles: .* has no chat template"):
                    await backend.role("user", [])


async def test_a_role_that_nobody_knows_is_refused(backend: TokenBackend) -> None:
    with pytest.raises(Refused, match="'judge' is refused") as refused:
        await backend.role("judge", [Message("user", "hello")])
    assert refused.value.param == "role"
