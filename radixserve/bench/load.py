"""A load generator that costs little: plain sockets, one connection a stream, no HTTP library.

On a machine of few cores the client takes its share from the server, so while tokens come it does no more than split a stream into its
events; what they say is read when the request has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any
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

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str) -> None:
        self._reader = reader
        self._writer = writer
        self._host = host

    @classmethod
    async def open(cls, url: str) -> Connection:
        """Connect to ``http://host:port``."""
        parts = urlsplit(url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 80, limit=1 << 24)
        return cls(reader, writer, parts.netloc)

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
        if self._reader.at_eof():
            await self.close()
            new = await self.open(f"http://{self._host}")
            self._reader, self._writer = new._reader, new._writer

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
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def _send(self, request: bytes, keep: bool, heard: Heard | None) -> Timeline:
        line = Timeline(time.perf_counter())
        self._writer.write(request)
        try:
            head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
            length = _header(head, b"content-length")
            chunked = _header(head, b"transfer-encoding") == b"chunked"
            if b" 200 " not in head.split(b"\r\n", 1)[0]:
                body = await (self._chunk() if chunked else self._reader.read(int(length or 1 << 16)))
                raise RequestFailed(self._host, (head + body[:2000]).decode(errors="replace"))
            if length is not None:
                line.events.append(await self._reader.readexactly(int(length)))
                line.pieces.append(time.perf_counter())
            else:
                await self._events(line, keep, heard, chunked=chunked)
        except (asyncio.IncompleteReadError, ConnectionError, ValueError) as error:
            raise RequestFailed(self._host, f"the answer is cut off or no HTTP: {error}") from error
        line.done = time.perf_counter()
        return line

    async def _events(self, line: Timeline, keep: bool, heard: Heard | None, *, chunked: bool) -> None:
        rest = b""
        while data := await (self._chunk() if chunked else self._reader.read(1 << 16)):
            now = time.perf_counter()
            *events, rest = (rest + data.replace(b"\r\n", b"\n")).split(b"\n\n")
            for event in events:
                if event.startswith((b"error", b"event: error", b'data: {"error"')):
                    raise RequestFailed(self._host, event.decode(errors="replace"))
                if not event.startswith(b"data:") or event.endswith(b"[DONE]"):
                    continue
                line.pieces.append(now)
                if keep:
                    line.events.append(event[5:])
                if heard is not None:
                    heard(len(line.pieces))

    async def _chunk(self) -> bytes:
        """The next chunk of a chunked body; empty at its end."""
        size = int((await self._reader.readuntil(b"\r\n")).split(b";")[0], 16)
        return (await self._reader.readexactly(size + 2))[:-2]


def _header(head: bytes, name: bytes) -> bytes | None:
    """A header's value; ``head`` is in lower case."""
    _, found, rest = head.partition(b"\r\n" + name + b":")
    return rest.split(b"\r\n")[0].strip() if found else None
