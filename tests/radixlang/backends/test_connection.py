"""Bounds, keys, salts and the form of requests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from radixlang.backends.base import Call, Text
from radixlang.backends.connection import Connection, Limits
from radixlang.backends.engine import EngineBackend
from radixlang.backends.http import RuntimeEndpoint
from radixlang.errors import BackendError, InvalidProgram, Refused
from radixlang.sampling import Sampling
from tests.chat.models import byte_level
from tests.chat.templates import CHATML
from tests.radixlang.backends.live import serve
from tests.radixlang.backends.models import Served, model_of, served
from tests.radixlang.backends.scripted_server import Reply, ScriptedServer

pytestmark = pytest.mark.anyio

MODEL = model_of(byte_level(("<s>", "<|im_start|>", "<|im_end|>")), CHATML)


class SlowServer(httpx.AsyncBaseTransport):
    """Answers calls when it is let; tells how many there are at a time."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.running = self.most = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/call":
            self.running += 1
            self.most = max(self.most, self.running)
            await self.go.wait()
            self.running -= 1
        return httpx.Response(200, content=b"{}", request=request)


async def test_calls_are_bounded_and_questions_do_not_wait_for_them() -> None:
    server = SlowServer()
    connection = Connection("http://server", limits=Limits(concurrency=2), transport=server)
    calls = [asyncio.ensure_future(connection.call("/call", {})) for _ in range(6)]
    while server.running < 2:
        await asyncio.sleep(0)
    assert await connection.ask("/question", {}) == b"{}"
    assert server.most == 2
    server.go.set()
    assert await asyncio.gather(*calls) == [b"{}"] * 6
    assert server.most == 2
    await connection.aclose()


async def test_a_cancelled_call_makes_room() -> None:
    server = SlowServer()
    connection = Connection("http://server", limits=Limits(concurrency=1), transport=server)
    first = asyncio.ensure_future(connection.call("/call", {}))
    while not server.running:
        await asyncio.sleep(0)
    second = asyncio.ensure_future(connection.call("/call", {}))
    first.cancel()
    server.go.set()
    assert await second == b"{}"
    await connection.aclose()


async def test_what_has_no_form_in_json_is_refused_before_it_is_sent() -> None:
    server = ScriptedServer(Reply({}))
    for field in (object(), [1 << 80, object()]):
        with pytest.raises(Refused, match="cannot be sent"):
            await Connection("http://server", transport=server).ask("/question", {"field": field})
    assert server.seen == []


@pytest.mark.parametrize(
    ("limits", "param"),
    [({"timeout_s": -1}, "timeout_s"), ({"concurrency": 0}, "concurrency"), ({"retries": -1}, "retries")],
)
def test_limits_that_are_none_are_refused(limits: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidProgram, match=f"^{param}:"):
        RuntimeEndpoint("http://server", **limits)


async def test_an_answer_of_another_server_is_an_error() -> None:
    # SGLang's own server does not say which tokens of an output are kept.
    meta = {"prompt_tokens": 1, "completion_tokens": 1, "cached_tokens": 0, "finish_reason": {"type": "length"}}
    server = ScriptedServer(Reply({"text": "a", "output_ids": [1], "meta_info": meta}))
    backend = RuntimeEndpoint("http://server", transport=server)
    with pytest.raises(BackendError, match="which of its tokens are kept"):
        async for _ in backend.generate([1], Call(Sampling(max_tokens=1))):
            pass


async def test_a_stream_that_ends_too_early_is_an_error() -> None:
    backend = RuntimeEndpoint("http://server", transport=ScriptedServer(Reply(events=[b"[DONE]"])))
    with pytest.raises(BackendError, match="ended before the output"):
        async for _ in backend.generate([1], Call(Sampling(max_tokens=1), stream=True)):
            pass


# ---------------------------------------------------------------- keys and salts


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(MODEL) as made:
        yield made


async def cached(backend: EngineBackend | RuntimeEndpoint, text: str) -> int | None:
    ids = await backend.encode([Text(text, "free")], first=True)
    async for piece in backend.generate(ids, Call(Sampling(max_tokens=1, temperature=0.0))):
        if piece.output is not None:
            return piece.output.usage.cached
    raise AssertionError("there is an output")


@pytest.mark.parametrize("kind", ["engine", "http"])
async def test_prefixes_are_shared_under_the_same_salt_only(server: Served, kind: str) -> None:
    def make(salt: str | None) -> EngineBackend | RuntimeEndpoint:
        if kind == "engine":
            return EngineBackend(server.engine, cache_salt=salt)
        return RuntimeEndpoint(server.url, cache_salt=salt)

    text = f"a prompt by {kind} that is long enough to be found again"
    backends = [make("a"), make("a"), make("b"), make(None)]
    length = len(server.engine.tokenize(text))
    assert [await cached(backend, text) for backend in backends] == [0, length - 1, 0, 0]
    await backends[0].flush()
    assert await cached(backends[0], text) == 0
    for backend in backends:
        await backend.aclose()


async def test_a_key_is_sent_and_its_lack_refused() -> None:
    from radixserve import Engine

    with serve(Engine.from_model(MODEL, kv_memory_mb=16), api_key=("secret",)) as url:
        keyed, bare = RuntimeEndpoint(url, api_key="secret"), RuntimeEndpoint(url)
        assert (await keyed.info())["model"] == "tiny"
        with pytest.raises(Refused) as refused:
            await bare.info()
        assert refused.value.code == "invalid_api_key"
        for backend in (keyed, bare):
            await backend.aclose()
    assert "secret" not in keyed.name
