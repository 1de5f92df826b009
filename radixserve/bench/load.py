"""A load generator that costs little: plain sockets, one connection a stream, no HTTP library.

On a machine of few cores the client takes its share from the server, so while tokens come it does no more than split a stream into its
events, in the event loop's own callback: no task is woken before an answer is complete. What the events say is read when the request has
ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import urlsplit

from radixserve.errors import RequestFailed

# Called at every event of a stream with the number of events so far.
Heard = Callable[[int], None]


@dataclass(slots=True)
class Timeline:
    """When a request was sent and its events came, in seconds of one clock; ``events``: their data, where they were kept."""

    sent: float
    pieces: list[float] = field(default_factory=list)
    done: float = 0.0
    events: list[bytes] = field(default_factory=list)


class Connection:
    """One keep-alive connection to a server."""

    def __init__(self, wire: _Wire, host: str) -> None:
        self._wire = wire
        self._host = host

    @classmethod
    async def open(cls, url: str) -> Connection:
        """Connect to ``http://host:port``."""
        parts = urlsplit(url)
        return cls(await _Wire.connected(parts.hostname or "", parts.port or 80), parts.netloc)

    @classmethod
    @contextlib.asynccontextmanager
    async def opened(cls, url: str) -> AsyncIterator[Connection]:
        """A connection for the length of a block."""
        connection = await cls.open(url)
        try:
            yield connection
        finally:
            await connection.close()

    async def renew(self) -> None:
        """Connect again if the server hung up on an idle connection."""
        if self._wire.hung_up:
            await self.close()
            self._wire = (await self.open(f"http://{self._host}"))._wire

    async def get(self, path: str) -> Timeline:
        """Fetch ``path``: its body is the only event."""
        return await self._send(f"GET {path} HTTP/1.1\r\nHost: {self._host}\r\n\r\n".encode(), True, None)

    async def post(
        self, path: str, body: dict[str, Any], *, keep: bool = False, heard: Heard | None = None
    ) -> Timeline:
        """Send a request; a stream's events are timed as they come, and kept with ``keep`` (a plain body always is).

        Raises `RequestFailed` for an answer other than 200 and for an error inside the stream.
        """
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: application/json\r\n"
        return await self._send(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data, keep, heard)

    async def close(self) -> None:
        """Hang up."""
        await self._wire.close()

    async def _send(self, request: bytes, keep: bool, heard: Heard | None) -> Timeline:
        answer = _Answer(self._host, keep, heard)
        return await self._wire.ask(request, answer)


class _Wire(asyncio.Protocol):
    """The socket of a connection, and the answer that comes over it."""

    def __init__(self) -> None:
        self.hung_up = False
        self._answer: _Answer | None = None
        self._gone = asyncio.get_running_loop().create_future()

    @classmethod
    async def connected(cls, host: str, port: int) -> _Wire:
        _, wire = await asyncio.get_running_loop().create_connection(cls, host, port)
        return wire

    async def ask(self, request: bytes, answer: _Answer) -> Timeline:
        self._answer = answer
        self._transport.write(request)
        if self.hung_up:
            answer.cut_off()
        try:
            return await answer.complete
        finally:
            self._answer = None

    async def close(self) -> None:
        self._transport.close()
        await self._gone

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._answer is not None:
            self._answer.feed(data)

    def eof_received(self) -> None:
        self.hung_up = True
        if self._answer is not None:
            self._answer.cut_off()

    def connection_lost(self, error: Exception | None) -> None:
        self.eof_received()
        if not self._gone.done():
            self._gone.set_result(None)


class _Answer:
    """Takes an answer apart as it comes; ``complete`` is its timeline, or what was wrong with it."""

    def __init__(self, host: str, keep: bool, heard: Heard | None) -> None:
        self.complete: asyncio.Future[Timeline] = asyncio.get_running_loop().create_future()
        self._host = host
        self._keep = keep
        self._heard = heard
        self._line = Timeline(time.perf_counter())
        self._raw = b""  # what has come and was not taken
        self._rest = b""  # of the body: an event that has no end yet
        self._head: bytes | None = None
        self._length: int | None = None
        self._chunked = self._ok = False

    def feed(self, data: bytes) -> None:
        """``data`` came."""
        if self.complete.done():
            return
        self._raw += data
        try:
            if self._head is None and not self._take_head():
                return
            self._take_body()
        except ValueError as error:
            self._fail(f"the answer is no HTTP: {error}")

    def cut_off(self) -> None:
        """Nothing more comes."""
        if self.complete.done():
            return
        if self._head is None or self._chunked or self._length is not None:
            self._fail("the answer is cut off")
        elif not self._ok:
            self._refuse(self._raw)
        else:
            self._end()

    def _take_head(self) -> bool:
        head, found, rest = self._raw.partition(b"\r\n\r\n")
        if not found:
            return False
        self._head, self._raw = head.lower(), rest
        length = _header(self._head, b"content-length")
        self._length = None if length is None else int(length)
        self._chunked = _header(self._head, b"transfer-encoding") == b"chunked"
        self._ok = b" 200 " in self._head.split(b"\r\n", 1)[0]
        return True

    def _take_body(self) -> None:
        if self._length is not None:
            if len(self._raw) >= self._length:
                self._whole(self._raw[: self._length])
        elif self._chunked:
            while not self.complete.done() and (chunk := self._chunk()) is not None:
                if not self._ok:
                    self._refuse(chunk)
                elif chunk:
                    self._events(chunk)
                else:
                    self._end()
        elif self._ok:
            data, self._raw = self._raw, b""
            self._events(data)

    def _chunk(self) -> bytes | None:
        """The next chunk of a chunked body, empty at its end; None while it is not there."""
        size, found, rest = self._raw.partition(b"\r\n")
        if not found:
            return None
        count = int(size.split(b";")[0], 16)
        if len(rest) < count + 2:
            return None
        self._raw = rest[count + 2 :]
        return rest[:count]

    def _whole(self, body: bytes) -> None:
        if not self._ok:
            self._refuse(body)
            return
        self._line.events.append(body)
        self._line.pieces.append(time.perf_counter())
        self._end()

    def _events(self, data: bytes) -> None:
        line, now = self._line, time.perf_counter()
        *events, self._rest = (self._rest + data.replace(b"\r\n", b"\n")).split(b"\n\n")
        for event in events:
            if event.startswith((b"error", b"event: error", b'data: {"error"')):
                self._fail(event.decode(errors="replace"))
                return
            if not event.startswith(b"data:") or event.endswith(b"[DONE]"):
                continue
            line.pieces.append(now)
            if self._keep:
                line.events.append(event[5:])
            if self._heard is not None:
                self._heard(len(line.pieces))

    def _end(self) -> None:
        self._line.done = time.perf_counter()
        self.complete.set_result(self._line)

    def _refuse(self, body: bytes) -> None:
        self._fail(((self._head or b"") + b"\r\n\r\n" + body[:2000]).decode(errors="replace"))

    def _fail(self, message: str) -> None:
        self.complete.set_exception(RequestFailed(self._host, message))


def _header(head: bytes, name: bytes) -> bytes | None:
    """A header's value; ``head`` is in lower case."""
    _, found, rest = head.partition(b"\r\n" + name + b":")
    return rest.split(b"\r\n")[0].strip() if found else None
