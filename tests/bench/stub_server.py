"""A tiny server of /v1/completions: it answers every prompt with numbered words, and remembers what it was sent."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any


class StubServer:
    """``owner``: what /v1/models says; empty has no such page. ``fail_at``: that request (from 0) is refused. ``split``: bytes of a chunk.

    ``close_ends``: bodies are neither chunked nor measured: they end with the connection.
    """

    def __init__(
        self, *, owner: str = "stub", fail_at: int | None = None, split: int | None = None, close_ends: bool = False
    ) -> None:
        self.owner = owner
        self.fail_at = fail_at
        self.split = split
        self.close_ends = close_ends
        self.bodies: list[dict[str, Any]] = []
        self.running = 0
        self.most_running = 0
        self.url = ""

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[StubServer]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server:
            yield self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                path = head.split()[1]
                if path == "/v1/completions":
                    size = int(head.lower().split("content-length:")[1].split()[0])
                    await self._complete(json.loads(await reader.readexactly(size)), writer)
                    if self.close_ends:
                        break
                elif path == "/v1/models" and self.owner:
                    self._plain(writer, 200, {"data": [{"id": "stub-model", "owned_by": self.owner}]})
                else:
                    self._plain(writer, 404, {"error": {"message": "nothing here"}})
        writer.close()

    def _plain(self, writer: asyncio.StreamWriter, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)

    async def _complete(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        number = len(self.bodies)
        self.bodies.append(body)
        if number == self.fail_at:
            self._plain(writer, 400, {"error": {"message": "refused"}})
            return
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        writer.write(b"HTTP/1.1 200 OK\r\n" + (b"\r\n" if self.close_ends else b"Transfer-Encoding: chunked\r\n\r\n"))
        count = body["max_tokens"]
        for index in range(count):
            await self._event(writer, {"choices": [{"text": f" {number}-{index}", "finish_reason": None}]})
            await asyncio.sleep(0)
        await self._event(writer, {"choices": [{"text": "", "finish_reason": "length"}], "usage": None})
        details = {"cached_tokens": 3}
        usage = {"prompt_tokens": 5, "completion_tokens": count, "prompt_tokens_details": details}
        await self._event(writer, {"choices": [], "usage": usage})
        self.running -= 1
        self._write(writer, b"data: [DONE]\n\n")
        if not self.close_ends:
            writer.write(b"0\r\n\r\n")
        await writer.drain()

    async def _event(self, writer: asyncio.StreamWriter, data: dict[str, Any]) -> None:
        self._write(writer, b"data: " + json.dumps(data).encode() + b"\n\n")
        await writer.drain()

    def _write(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        size = self.split or len(data)
        for first in range(0, len(data), size):
            part = data[first : first + size]
            writer.write(part if self.close_ends else f"{len(part):x}\r\n".encode() + part + b"\r\n")
