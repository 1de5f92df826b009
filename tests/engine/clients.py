"""The three forms of an engine's client over the same kind of model, each on an event loop that outlives a test."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

from radixserve import Engine, SamplingParams
from radixserve.engine.client import Job
from radixserve.engine.core import EngineCore
from radixserve.engine.local_client import LocalClient
from radixserve.engine.socket_client import SocketClient
from radixserve.engine.stream_client import StreamClient
from radixserve.messages import GenerationChunk
from tests.model.gguf_files import write_model
from tests.server.fake_client import FakeClient, Script, fake_info
from tests.tiny_decoder import tiny_decoder

T = TypeVar("T")

KINDS = ("local", "socket", "fake")
OPTIONS: dict[str, Any] = {
    "num_blocks": 1200,
    "max_batch_tokens": 512,
    "max_running": 16,
    "threads": 1,
    "dtype": "float32",
}
PATIENCE = 60.0
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
ENDLESS = SamplingParams(temperature=0, max_tokens=4000, ignore_eos=True)


def job(rid: str, prompt: bytes = b"once upon a time", sampling: SamplingParams = GREEDY, **more: Any) -> Job:
    """A job whose prompt is bytes, which are tokens here."""
    return Job(rid=rid, token_ids=list(prompt), sampling=sampling, salt=more.pop("salt", b"common"), **more)


def model_file(directory: Path) -> str:
    """A tiny random model with a context long enough for prompts of thousands of tokens."""
    model = tiny_decoder(vocab_size=264, intermediate_size=64, context_length=16384)
    return str(write_model(directory / "tiny.gguf", model))


def perform(job: Job) -> Script:
    """What the fake plays: as many pieces as there may be, slowly if they are many."""
    count = job.sampling.max_tokens or 0
    return Script(pieces="once upon a time there was"[:count] if count <= 26 else "x" * count, delay_s=0.001)


class Harness:
    """A client that was started, and the event loop it lives on."""

    def __init__(self, kind: str, model: str) -> None:
        self.kind = kind
        self.model = model
        self.runner = asyncio.Runner()
        self.client = self._make()

    def _make(self) -> StreamClient:
        if self.kind == "local":
            return Engine(self.model, **OPTIONS).client()
        if self.kind == "socket":
            return SocketClient({"model": self.model, **OPTIONS})
        return FakeClient(perform, info=fake_info(num_blocks=1200, context_length=16384))

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The result, or `TimeoutError` where it never comes."""

        async def bounded() -> T:
            return await asyncio.wait_for(coroutine, PATIENCE)

        return self.runner.run(bounded())

    def kill(self, monkeypatch: pytest.MonkeyPatch) -> str:
        """End the engine as a crash would; a part of the reason that must be told."""
        match self.client:
            case SocketClient():
                assert self.client.pid is not None
                os.kill(self.client.pid, signal.SIGKILL)
                return "killed by SIGKILL"
            case LocalClient():

                def broken(core: EngineCore) -> list[GenerationChunk]:
                    raise RuntimeError("the loop is broken")

                monkeypatch.setattr(EngineCore, "step", broken)
                return "the loop is broken"
            case FakeClient():
                self.client.die("it fell over")
                return "it fell over"
        raise AssertionError

    def close(self) -> None:
        """Close client and event loop."""
        self.run(self.client.close())
        self.runner.close()


async def gather(client: StreamClient, *jobs: Job) -> list[GenerationChunk]:
    """All chunks of jobs that are queued together."""
    return [chunk async for chunk in client.generate(jobs)]


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait for what must come true."""
    while not await condition():
        await asyncio.sleep(0.002)


async def idle(client: StreamClient) -> bool:
    """Whether the engine has nothing to do."""
    stats = await client.stats()
    return not stats["running"] and not stats["waiting"]
