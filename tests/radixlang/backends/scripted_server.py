"""A server that answers as it is told, for the odd behaviours of other people's servers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import msgspec


@dataclass(frozen=True)
class Reply:
    """One response: a body, or the data of events."""

    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    events: Sequence[Any] | None = None


@dataclass(frozen=True)
class Seen:
    """One request."""

    method: str
    path: str
    headers: httpx.Headers
    body: Any


class ScriptedServer(httpx.AsyncBaseTransport):
    """Gives ``replies`` in their order, the last one again and again; an exception among them is raised instead."""

    def __init__(self, *replies: Reply | Exception) -> None:
        self.replies = list(replies)
        self.seen: list[Seen] = []
        self.closed_streams = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """One answer."""
        content = await request.aread()
        body = msgspec.json.decode(content) if content else None
        self.seen.append(Seen(request.method, request.url.path, request.headers, body))
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        if isinstance(reply, Exception):
            raise reply
        if reply.events is not None:
            return httpx.Response(reply.status, stream=_Events(self, reply.events), request=request)
        data = reply.body if isinstance(reply.body, bytes) else msgspec.json.encode(reply.body)
        return httpx.Response(reply.status, headers=reply.headers, content=data, request=request)


class _Events(httpx.AsyncByteStream):
    def __init__(self, server: ScriptedServer, events: Sequence[Any]) -> None:
        self._server = server
        self._events = events

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for event in self._events:
            if isinstance(event, Exception):
                raise event
            yield b"data: " + (event if isinstance(event, bytes) else msgspec.json.encode(event)) + b"\n\n"

    async def aclose(self) -> None:
        self._server.closed_streams += 1
