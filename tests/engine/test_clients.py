"""The same contract for all three clients: an engine in this process, in its own, and the scripted fake."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator
from itertools import count

import msgspec
import pytest

from radixserve import SamplingParams
from radixserve.constraints import Choice, Regex
from radixserve.engine.client import CacheView, EngineInfo
from radixserve.errors import ContextLengthExceeded, EngineClosed, InvalidRequest, PoolTooSmall
from radixserve.messages import Explanation, FinishReason, GenerationChunk, GenerationOutput, Pooling
from tests.engine.clients import ENDLESS, GREEDY, KINDS, Harness, gather, idle, job, model_file, until
from tests.server.fake_client import FakeClient, fake_info

_names = (f"job-{number}" for number in count())


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return model_file(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module", params=KINDS)
def harness(request: pytest.FixtureRequest, model: str) -> Iterator[Harness]:
    harness = Harness(request.param, model)
    harness.run(harness.client.start())
    yield harness
    harness.close()


def rid() -> str:
    return next(_names)


def outputs(chunks: list[GenerationChunk]) -> list[GenerationOutput]:
    return [chunk.output for chunk in chunks if chunk.output is not None]


def test_what_it_says_of_the_engine(harness: Harness) -> None:
    info = harness.client.info
    assert isinstance(info, EngineInfo)
    assert (info.vocab_size, info.context_length, info.num_blocks) == (264, 16384, 1200)
    assert info.limits.max_running == info.max_running == 16
    assert harness.client.failure is None


def test_chunks_are_the_output_in_pieces(harness: Harness) -> None:
    sampling = msgspec.structs.replace(GREEDY, n=2, logprobs=2, prompt_logprobs=0)
    jobs = [job(rid(), b"once upon", sampling), job(rid(), b"a time there", sampling)]
    chunks = harness.run(gather(harness.client, *jobs))
    assert Counter((chunk.prompt_index, chunk.index) for chunk in chunks if chunk.finish_reason) == Counter(
        (prompt, index) for prompt in range(2) for index in range(2)
    )
    for prompt, asked in enumerate(jobs):
        mine = [chunk for chunk in chunks if chunk.prompt_index == prompt]
        assert {chunk.rid for chunk in mine} == {asked.rid}
        assert [chunk.output is not None for chunk in mine] == [False] * (len(mine) - 1) + [True]
        [output] = outputs(mine)
        assert output.prompt_token_ids == asked.token_ids and output.prompt_tokens == len(asked.token_ids)
        for sample in output.samples:
            own = [chunk for chunk in mine if chunk.index == sample.index]
            assert "".join(chunk.text for chunk in own) == sample.text
            assert [token for chunk in own for token in chunk.token_ids] == sample.token_ids
            assert [entry for chunk in own for entry in chunk.logprobs] == sample.logprobs
            assert len(sample.token_ids) == 8 and sample.finish_reason is FinishReason.LENGTH
        assert mine[0].prompt_logprobs == output.prompt_logprobs and mine[0].prompt_logprobs is not None
        assert len(mine[0].prompt_logprobs) == len(asked.token_ids)
        assert all(chunk.prompt_logprobs is None for chunk in mine[1:])


def test_many_streams_at_once(harness: Harness) -> None:
    async def run() -> None:
        prompts = [b"once upon a time", b"there was", b"x" * 40, b"the end"] * 6
        alone = [outputs(await gather(harness.client, job(rid(), prompt)))[0] for prompt in prompts[:4]]
        together = await asyncio.gather(*(gather(harness.client, job(rid(), prompt)) for prompt in prompts))
        for index, chunks in enumerate(together):
            [output] = outputs(chunks)
            assert output.token_ids == alone[index % 4].token_ids

    harness.run(run())


def test_what_is_refused_is_refused_whole(harness: Harness) -> None:
    client = harness.client

    async def run() -> None:
        with pytest.raises(InvalidRequest, match="outside the vocabulary") as invalid:
            await gather(client, job(rid(), sampling=ENDLESS), msgspec.structs.replace(job(rid()), token_ids=[1, 999]))
        assert (invalid.value.param, invalid.value.code) == ("prompt", "invalid_value")
        with pytest.raises(ContextLengthExceeded) as context:
            await gather(client, job(rid(), b"x" * 100, SamplingParams(max_tokens=16300)))
        error = context.value
        assert (error.limit, error.prompt_tokens, error.max_tokens) == (16384, 100, 16300)
        assert (error.param, error.code) == ("prompt", "context_length_exceeded")
        with pytest.raises(InvalidRequest) as sampling:
            await gather(client, job(rid(), sampling=SamplingParams(temperature=-1)))
        assert sampling.value.param == "temperature" and "between 0 and 100" in sampling.value.message
        await until(lambda: idle(client))

    harness.run(run())


def test_a_request_that_the_pool_cannot_hold() -> None:
    async def run() -> None:
        client = FakeClient(info=fake_info(num_blocks=4))
        await client.start()
        with pytest.raises(PoolTooSmall):
            await gather(client, job(rid(), b"x" * 60))

    asyncio.run(run())


def test_a_name_is_used_once_at_a_time(harness: Harness) -> None:
    client = harness.client

    async def run() -> None:
        name = rid()
        with pytest.raises(InvalidRequest, match="in use"):
            await gather(client, job(name), job(name))
        stream = client.generate([job(name, sampling=ENDLESS)])
        await anext(stream)
        with pytest.raises(InvalidRequest, match="in use"):
            await gather(client, job(name))
        await stream.aclose()
        await until(lambda: idle(client))
        assert outputs(await gather(client, job(name)))

    harness.run(run())


def test_nothing_to_do_is_nothing_done(harness: Harness) -> None:
    assert harness.run(gather(harness.client)) == []


def test_closing_the_iterator_aborts(harness: Harness) -> None:
    client = harness.client

    async def run() -> None:
        stream = client.generate([job(rid(), sampling=ENDLESS), job(rid(), sampling=ENDLESS)])
        async for chunk in stream:
            if chunk.prompt_index == 1:
                break
        await stream.aclose()
        await until(lambda: idle(client))

    harness.run(run())
    assert not client._streams and not client._rids


def test_what_is_cancelled_leaves_nothing(harness: Harness) -> None:
    client = harness.client

    async def run() -> None:
        reading = asyncio.ensure_future(gather(client, job(rid(), sampling=ENDLESS)))
        await until(lambda: asyncio.sleep(0, result=bool(client._streams)))
        reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reading
        questions = [asyncio.ensure_future(client.stats()) for _ in range(4)]
        await asyncio.sleep(0)
        for question in questions:
            question.cancel()
        await asyncio.gather(*questions, return_exceptions=True)
        await until(lambda: idle(client))

    harness.run(run())
    assert not client._streams and not client._rids and not client._questions


def test_abort_gives_a_last_chunk(harness: Harness) -> None:
    client = harness.client

    async def run() -> None:
        first, second = rid(), rid()
        chunks: list[GenerationChunk] = []
        async for chunk in client.generate([job(first, sampling=ENDLESS), job(second, sampling=ENDLESS)]):
            if not chunks:
                await client.abort(["nobody", first, second])
            chunks.append(chunk)
        assert [output.finish_reason for output in outputs(chunks)] == [FinishReason.ABORT] * 2
        await client.abort([first])

    harness.run(run())


def test_questions(harness: Harness) -> None:
    client = harness.client

    async def run() -> None:
        await gather(client, job(rid(), b"y" * 64, salt=b"mine"))
        explanation = await client.explain(list(b"y" * 64), salt=b"mine")
        assert explanation.prompt_tokens == 64
        stats = await client.stats()
        for name in ("step_seconds", "batch_rows", "batch_tokens"):
            histogram = stats["steps"][name]
            assert len(histogram["counts"]) == len(histogram["edges"]) + 1
        view = await client.cache_view(salt=b"mine", max_nodes=2, max_tokens=3)
        assert view.num_nodes <= 2
        assert await client.check() == []
        blocks = await client.flush(b"mine")
        assert (type(explanation), type(view), type(blocks)) == (Explanation, CacheView, int)
        if harness.kind != "fake":
            assert explanation.cached_tokens == 63 and explanation.reason == "capped"
            assert stats["steps"]["count"] == stats["scheduler"]["steps"] > 0
            [node] = view.nodes
            assert node.token_ids == list(b"yyy") and node.num_tokens >= 64 and node.salt is None
            assert blocks == node.num_blocks + sum(child.num_blocks for child in node.children)
            assert (await client.explain(list(b"y" * 64), salt=b"mine")).reason == "never_seen"

    harness.run(run())


def test_constraints(harness: Harness) -> None:
    if harness.kind == "fake":
        pytest.skip("the fake plays its script whatever is wanted")
    client = harness.client

    async def run() -> None:
        sampling = msgspec.structs.replace(GREEDY, max_tokens=20, constraint=Choice(("yes", "no")))
        [output] = outputs(await gather(client, job(rid(), sampling=sampling)))
        assert output.text in ("yes", "no") and output.finish_reason is FinishReason.STOP
        with pytest.raises(InvalidRequest) as error:
            await gather(client, job(rid(), sampling=SamplingParams(constraint=Regex("(["))), job(rid()))
        assert error.value.param == "constraint" and error.value.code != "invalid_value"
        await until(lambda: idle(client))

    harness.run(run())


def test_holds(harness: Harness) -> None:
    client = harness.client
    nothing = SamplingParams(max_tokens=0, temperature=0)

    async def run() -> None:
        await client.flush()
        names = [rid(), rid()]
        jobs = [job(name, b"z" * 45, nothing, hold_s=30.0, salt=b"mine") for name in names]
        for asked in jobs:
            [output] = outputs(await gather(client, asked))
            assert output.hold is not None and output.finish_reason is FinishReason.LENGTH
            assert output.hold.tokens == 45 and 0 < output.hold.expires_in_s <= 30
            assert output.hold.computed_tokens == 45 - output.cached_tokens
        assert await client.check() == []
        if harness.kind != "fake":
            assert output.cached_tokens == 45 and (await client.stats())["holds"]["count"] == 2
            view = await client.cache_view(salt=b"mine")
            assert view.nodes[0].holds == view.nodes[0].locks == 2
            assert (await client.explain([*b"z" * 46], salt=b"mine")).held_tokens == 45
            with pytest.raises(InvalidRequest, match="names a hold"):
                await gather(client, jobs[0])
        assert await client.release([names[0], "unknown"]) == 1
        assert await client.release(names) == 1 and await client.release([]) == 0
        for fields, param in (({"hold_s": 0}, "hold_s"), ({"hold_s": 1.0, "sampling": GREEDY}, "max_tokens")):
            with pytest.raises(InvalidRequest) as error:
                await gather(client, job(rid(), **{"sampling": nothing, **fields}))  # type: ignore[arg-type]
            assert error.value.param == param

    harness.run(run())


def test_an_abort_ends_a_hold_that_nobody_heard_of(harness: Harness) -> None:
    if harness.kind == "fake":
        pytest.skip("the fake holds what its scripts hold")
    client = harness.client

    async def run() -> None:
        name = rid()
        asked = job(name, b"q" * 40, SamplingParams(max_tokens=0, temperature=0), hold_s=30.0)
        stream = client.generate([asked])
        first = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        first.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await first
        await stream.aclose()

        async def released() -> bool:
            return (await client.stats())["holds"]["count"] == 0 and await idle(client)

        await until(released)

    harness.run(run())


def test_healing_is_passed_on(harness: Harness) -> None:
    [output] = outputs(harness.run(gather(harness.client, job(rid(), heal=True))))
    # A vocabulary of bytes has nothing to heal.
    assert output.healed_tokens == 0 and output.kept_tokens <= len(output.token_ids)


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_embeddings(harness: Harness, pooling: Pooling) -> None:
    sampling = SamplingParams(max_tokens=0)
    chunks = harness.run(gather(harness.client, job(rid(), b"once upon", sampling, pooling=pooling)))
    [output] = outputs(chunks)
    assert output.embedding is not None and len(output.embedding) == harness.client.info.hidden_size
    assert sum(value * value for value in output.embedding) == pytest.approx(1)
    assert output.token_ids == [] and output.completion_tokens == 0


@pytest.mark.parametrize("kind", KINDS)
def test_an_engine_that_dies(kind: str, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness(kind, model)
    client = harness.client

    async def run() -> None:
        with pytest.raises(EngineClosed, match="not started"):
            await gather(client, job("early"))
        await client.start()
        failed = asyncio.ensure_future(client.wait_failed())
        streams = [client.generate([job(f"s{index}", sampling=ENDLESS)]) for index in range(4)]
        for stream in streams:
            await anext(stream)
        told = harness.kill(monkeypatch)
        question = asyncio.ensure_future(client.stats())
        for stream in streams:
            with pytest.raises(EngineClosed, match=told):
                async for _ in stream:
                    pass
        assert told in await failed
        assert client.failure is not None and told in client.failure
        with contextlib.suppress(EngineClosed):
            await question
        with pytest.raises(EngineClosed, match=told):
            await gather(client, job("late"))
        with pytest.raises(EngineClosed, match=told):
            await client.stats()
        await client.close()
        assert client.failure is not None

    harness.run(run())
    assert not client._streams and not client._questions
    harness.close()


@pytest.mark.parametrize("kind", KINDS)
def test_close_ends_what_runs(kind: str, model: str) -> None:
    harness = Harness(kind, model)
    client = harness.client

    async def run() -> None:
        await client.start()
        stream = client.generate([job("open", sampling=ENDLESS)])
        await anext(stream)
        await client.close()
        with pytest.raises(EngineClosed):
            async for _ in stream:
                pass
        await client.close()
        assert client.failure is None
        with pytest.raises(EngineClosed):
            await client.stats()

    harness.run(run())
    harness.close()
