"""Server-sent events, and work that ends when its client leaves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable
from typing import TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from radixserve.server.bodies import ClientGone
from radixserve.server.errors import ErrorBody, describe

T = TypeVar("T")

_COMMENT = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"

_encoder = msgspec.json.Encoder()


def event(data: object) -> bytes:
    """One event whose data is ``data`` as JSON."""
    return b"data: %b\n\n" % _encoder.encode(data)


def named_event(name: str, data: object) -> bytes:
    """One event with a type of its own."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _encoder.encode(data))


async def while_connected(receive: Receive, work: Awaitable[T]) -> T:
    """The result of ``work``, which is cancelled when the client leaves first. Raises `ClientGone` then.

    The request's body has been read.
    """
    task = asyncio.ensure_future(work)
    listener = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((task, listener), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return await task
        raise ClientGone
    finally:
        await _cancel(task, listener)


class EventStream(Response):
    """Sends ``events`` as they come, a comment whenever ``keepalive_s`` pass in silence, and stops when the client leaves.

    ``first`` was taken from ``events`` already, so that a request that is refused still gets its own status. An error
    on the way is one last event with OpenAI's error body.
    """

    media_type = "text/event-stream"

    def __init__(self, first: bytes, events: AsyncIterator[bytes], keepalive_s: float) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._first = first
        self._events = events
        self._keepalive_s = keepalive_s
        self._sent = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        with contextlib.suppress(ClientGone):
            await while_connected(receive, self._run(send))

    async def _run(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        alive = asyncio.ensure_future(self._keep_alive(send))
        try:
            await self._write(send, self._first)
            try:
                async for data in self._events:
                    await self._write(send, data)
            except Exception as error:
                _, detail = describe(error)
                await self._write(send, event(ErrorBody(error=detail)))
        finally:
            await _cancel(alive)
            await _close(self._events)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _write(self, send: Send, data: bytes) -> None:
        self._sent += 1
        await send({"type": "http.response.body", "body": data, "more_body": True})

    async def _keep_alive(self, send: Send) -> None:
        while True:
            before = self._sent
            await asyncio.sleep(self._keepalive_s)
            if self._sent == before:
                await self._write(send, _COMMENT)


async def start(events: AsyncIterator[bytes], receive: Receive, keepalive_s: float) -> EventStream:
    """The response for ``events``, once the first of them is there: what is refused is raised here.

    Raises `ClientGone` if the client leaves before.
    """
    try:
        first = await while_connected(receive, anext(events))
    except BaseException:
        await _close(events)
        raise
    return EventStream(first, events, keepalive_s)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _close(events: AsyncIterator[bytes]) -> None:
    close = getattr(events, "aclose", None)
    if close is not None:
        await close()


async def _cancel(*tasks: asyncio.Future[T] | asyncio.Future[None]) -> None:
    """Cancel and wait until they have cleaned up."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
