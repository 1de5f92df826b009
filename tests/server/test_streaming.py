from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from starlette.types import Message

from radixserve.errors import InvalidRequest
from radixserve.server.bodies import ClientGone
from radixserve.server.streaming import event, start, while_connected


class Wire:
    """Both ends of one response: what was sent, and when the client leaves."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.left = asyncio.Event()

    async def receive(self) -> Message:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)


@pytest.mark.anyio
async def test_events_go_out_in_order_and_the_body_ends() -> None:
    async def events() -> AsyncIterator[bytes]:
        for number in range(3):
            yield event(number)

    wire = Wire()
    response = await start(events(), wire.receive, 60)
    await response({"type": "http"}, wire.receive, wire.send)
    assert wire.body == b"data: 0\n\ndata: 1\n\ndata: 2\n\n"
    assert [message.get("more_body") for message in wire.sent[1:]] == [True, True, True, False]
    headers = dict(wire.sent[0]["headers"])
    assert headers[b"content-type"].startswith(b"text/event-stream")
    assert b"content-length" not in headers


@pytest.mark.anyio
async def test_what_is_refused_at_once_is_raised_before_the_response() -> None:
    closed = asyncio.Event()

    async def events() -> AsyncIterator[bytes]:
        try:
            raise InvalidRequest("prompt", "is bad")
            yield b""
        finally:
            closed.set()

    with pytest.raises(InvalidRequest):
        await start(events(), Wire().receive, 60)
    assert closed.is_set()


@pytest.mark.anyio
async def test_an_error_on_the_way_is_the_last_event() -> None:
    async def events() -> AsyncIterator[bytes]:
        yield event("one")
        raise InvalidRequest(None, "time is up", "request_timeout")

    wire = Wire()
    response = await start(events(), wire.receive, 60)
    await response({"type": "http"}, wire.receive, wire.send)
    first, last, end = wire.body.split(b"\n\n")
    assert first == b'data: "one"' and end == b""
    assert b'"code":"request_timeout"' in last


@pytest.mark.anyio
async def test_a_client_that_leaves_closes_the_source() -> None:
    closed = asyncio.Event()

    async def events() -> AsyncIterator[bytes]:
        try:
            yield event(1)
            await asyncio.sleep(3600)
        finally:
            closed.set()

    wire = Wire()
    response = await start(events(), wire.receive, 60)
    running = asyncio.ensure_future(response({"type": "http"}, wire.receive, wire.send))
    while not wire.body:
        await asyncio.sleep(0)
    wire.left.set()
    await running
    assert closed.is_set()


@pytest.mark.anyio
async def test_a_client_that_leaves_before_the_first_event_closes_the_source() -> None:
    closed = asyncio.Event()

    async def events() -> AsyncIterator[bytes]:
        try:
            await asyncio.sleep(3600)
            yield b""
        finally:
            closed.set()

    wire = Wire()
    wire.left.set()
    with pytest.raises(ClientGone):
        await start(events(), wire.receive, 60)
    assert closed.is_set()


@pytest.mark.anyio
async def test_silence_is_filled_with_comments() -> None:
    speak = asyncio.Event()

    async def events() -> AsyncIterator[bytes]:
        yield event(1)
        await speak.wait()
        yield event(2)

    wire = Wire()
    response = await start(events(), wire.receive, 0.001)
    running = asyncio.ensure_future(response({"type": "http"}, wire.receive, wire.send))
    while b": keep-alive" not in wire.body:
        await asyncio.sleep(0.001)
    speak.set()
    await running
    pieces = [piece for piece in wire.body.split(b"\n\n") if piece and piece != b": keep-alive"]
    assert pieces == [b"data: 1", b"data: 2"]


@pytest.mark.anyio
async def test_work_is_cancelled_with_its_client_and_not_otherwise() -> None:
    async def work() -> int:
        return 7

    assert await while_connected(Wire().receive, work()) == 7
    cancelled = asyncio.Event()

    async def endless() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            cancelled.set()

    wire = Wire()
    wire.left.set()
    with pytest.raises(ClientGone):
        await while_connected(wire.receive, endless())
    assert cancelled.is_set()
