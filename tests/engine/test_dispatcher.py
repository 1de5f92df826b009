"""Constraints are compiled beside the step loop: who has none overtakes, and an abort in the meantime is not lost."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from radixserve import Engine, SamplingParams
from radixserve.constraints import Choice, Regex
from radixserve.engine.local_client import LocalClient
from radixserve.errors import EngineClosed, InvalidRequest
from radixserve.grammar.compiler import Compiled, ConstraintCompiler
from radixserve.messages import FinishReason
from tests.engine.clients import PATIENCE, gather, job
from tests.tiny_model import tiny_model

CHOICE = SamplingParams(temperature=0, max_tokens=20, constraint=Choice(("yes", "no")))


class Held:
    """Compilations wait until ``go`` is set; ``begun`` tells that one waits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go = threading.Event()
        self.begun = threading.Event()
        prepare = ConstraintCompiler.prepare

        def held(compiler: ConstraintCompiler, sampling: SamplingParams) -> Compiled | None:
            self.begun.set()
            assert self.go.wait(PATIENCE)
            return prepare(compiler, sampling)

        monkeypatch.setattr(ConstraintCompiler, "prepare", held)


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine.from_model(tiny_model(), num_blocks=64, threads=1) as engine:
        yield engine


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(coroutine, PATIENCE))


async def started(engine: Engine) -> LocalClient:
    client = engine.client()
    await client.start()
    return client


def test_a_constraint_is_kept(engine: Engine) -> None:
    async def test() -> None:
        client = await started(engine)
        [*_, last] = await gather(client, job("a", sampling=CHOICE), job("b", sampling=CHOICE))
        assert last.output is not None and last.output.text in ("yes", "no")

    run(test())


def test_what_cannot_be_enforced_is_refused(engine: Engine) -> None:
    async def test() -> None:
        client = await started(engine)
        with pytest.raises(InvalidRequest) as error:
            await gather(client, job("a"), job("b", sampling=SamplingParams(constraint=Regex("(["))))
        assert error.value.param == "constraint"
        stats = await client.stats()
        assert stats["running"] == stats["waiting"] == 0

    run(test())


def test_nobody_else_waits_for_a_compilation(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch)

    async def test() -> None:
        client = await started(engine)
        waiting = asyncio.ensure_future(gather(client, job("slow", sampling=CHOICE)))
        await asyncio.to_thread(held.begun.wait, PATIENCE)
        assert (await gather(client, job("fast")))[-1].output is not None
        assert not waiting.done()
        held.go.set()
        assert (await waiting)[-1].finish_reason is FinishReason.STOP

    run(test())


def test_an_abort_during_a_compilation(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch)

    async def test() -> None:
        client = await started(engine)
        waiting = asyncio.ensure_future(gather(client, job("slow", sampling=CHOICE), job("other", sampling=CHOICE)))
        left = asyncio.ensure_future(gather(client, job("left", sampling=CHOICE)))
        await asyncio.to_thread(held.begun.wait, PATIENCE)
        await client.abort(["slow"])
        left.cancel()
        held.go.set()
        reasons = {chunk.rid: chunk.finish_reason for chunk in await waiting if chunk.finish_reason}
        assert reasons == {"slow": FinishReason.ABORT, "other": FinishReason.STOP}
        while (stats := await client.stats())["running"] or stats["waiting"]:
            await asyncio.sleep(0.001)
        assert stats["scheduler"]["finished"]["abort"] == 2

    run(test())


def test_an_engine_that_closes_during_a_compilation(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch)

    async def test() -> None:
        client = await started(engine)
        waiting = asyncio.ensure_future(gather(client, job("slow", sampling=CHOICE)))
        await asyncio.to_thread(held.begun.wait, PATIENCE)
        await client.close()
        with pytest.raises(EngineClosed):
            await waiting
        held.go.set()

    run(test())
