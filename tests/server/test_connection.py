from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from radixserve.server.connection import Connection

pytestmark = pytest.mark.anyio
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"8")]})
    await send({"type": "http.response.body", "body": b"%08d" % len(body)})


@contextlib.asynccontextmanager
async def connect() -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection to a server of nothing but `app`."""
    config, state = uvicorn.Config(app, lifespan="off", log_config=None), ServerState()
    config.load()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(config, state, {}), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
    yield reader, writer
    writer.close()
    server.close()


async def answer(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Status line and body of the next answer."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    return head.partition(b"\r\n")[0], await reader.readexactly(int(length.partition(b":")[2]))


def error_of(body: bytes) -> dict[str, Any]:
    error: dict[str, Any] = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


@pytest.mark.parametrize("line", [b"X: " + b"a" * 1000 + b"\r\n", b"a" * 1000])
async def test_headers_without_end_are_refused(line: bytes) -> None:
    async with connect() as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n" + (b"" if line.endswith(b"\n") else b"X: "))
        with contextlib.suppress(ConnectionError):
            for _ in range(2000):
                writer.write(line)
                await writer.drain()
        status, body = await answer(reader)
        assert b"400" in status and error_of(body)["code"] == "invalid_http"


async def test_usual_requests_are_not_counted_together() -> None:
    async with connect() as (reader, writer):
        large = b"GET / HTTP/1.1\r\nHost: x\r\nX: %b\r\n\r\n" % (b"a" * 30_000)
        for _ in range(4):
            writer.write(large[:20_000])
            await writer.drain()
            await asyncio.sleep(0.01)
            writer.write(large[20_000:])
            assert await answer(reader) == (b"HTTP/1.1 200 OK", b"00000000")
        # A long body is no head.
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 300000\r\n\r\n")
        for _ in range(300):
            writer.write(b"a" * 1000)
            await writer.drain()
        assert await answer(reader) == (b"HTTP/1.1 200 OK", b"00300000")
        for _ in range(3):
            writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 700000\r\n\r\n" + b"a" * 700_000)
            assert await answer(reader) == (b"HTTP/1.1 200 OK", b"00700000")
        writer.write(GET + GET)
        assert [await answer(reader) for _ in range(2)] == [(b"HTTP/1.1 200 OK", b"00000000")] * 2


@pytest.mark.parametrize("data", [b"GARBAGE\r\n\r\n", b"POST / HTTP/1.1\r\nContent-Length: -5\r\n\r\n"])
async def test_what_is_no_http_gets_an_error_body_too(data: bytes) -> None:
    async with connect() as (reader, writer):
        writer.write(data)
        status, body = await answer(reader)
        assert b"400" in status and error_of(body)["type"] == "invalid_request_error"
        assert await reader.read() == b""
