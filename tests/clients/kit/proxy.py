"""A proxy between client and server: it shows what went over the wire, and can take a feature out of it."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Protocol
from urllib.parse import urlsplit

HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "host", "accept-encoding"}
UPSTREAM_SECONDS = 120
DONE = "[DONE]"


class Mutation(Protocol):
    """What a proxy does to the traffic. Each method gets parsed JSON and returns what goes on instead; the same object
    means untouched.
    """

    def request(self, path: str, body: Any) -> Any:
        """The body that the server shall see."""

    def answer(self, path: str, status: int, body: Any) -> tuple[int, Any]:
        """Status and body that the client shall see."""

    def event(self, path: str, data: Any) -> Any:
        """The stream event that the client shall see, None for none; the closing ``[DONE]`` comes as that string."""


@dataclass(slots=True)
class Exchange:
    """One request and what the client was given: ``documents`` is the one body, or the events of a stream in order."""

    path: str
    request: Any
    status: int = 0
    streamed: bool = False
    documents: list[Any] = field(default_factory=list)

    def touched_by(self, mutation: Mutation) -> bool:
        """The mutation would have changed something here."""
        if self.request is not None and mutation.request(self.path, self.request) is not self.request:
            return True
        if self.streamed:
            return any(mutation.event(self.path, event) is not event for event in self.documents)
        return any(
            changed is not body or status != self.status
            for body in self.documents
            for status, changed in [mutation.answer(self.path, self.status, body)]
        )


class Proxy:
    """Listens on a free port of this machine while it is entered; ``root`` is its address.

    ``exchanges`` holds all that passed, in order of arrival; ``touched`` counts what the mutation changed.
    """

    def __init__(self, target: str, mutation: Mutation | None = None) -> None:
        parts = urlsplit(target)
        self.target = (parts.hostname or "127.0.0.1", parts.port or 80)
        self.mutation = mutation
        self.exchanges: list[Exchange] = []
        self.touched = 0
        proxy = self

        class Handler(_Handler):
            owner = proxy

        self._server = _Listener(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def root(self) -> str:
        """Address without a path."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Proxy:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    # Clients that send all they have at once are not refused.
    request_queue_size = 128


class _Handler(BaseHTTPRequestHandler):
    owner: Proxy
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
        """Keep quiet."""

    def do_GET(self) -> None:
        """Pass a GET on."""
        self._pass_on()

    def do_POST(self) -> None:
        """Pass a POST on."""
        self._pass_on()

    def do_DELETE(self) -> None:
        """Pass a DELETE on."""
        self._pass_on()

    def _body(self) -> bytes:
        if "chunked" not in (self.headers.get("transfer-encoding") or ""):
            return self.rfile.read(int(self.headers.get("content-length") or 0))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _pass_on(self) -> None:
        raw = self._body()
        path = urlsplit(self.path).path
        sent = _parsed(raw)
        mutation = self.owner.mutation
        if mutation is not None and sent is not None:
            changed = mutation.request(path, sent)
            if changed is not sent:
                self.owner.touched += 1
                raw, sent = json.dumps(changed).encode(), changed
        exchange = Exchange(path, sent)
        self.owner.exchanges.append(exchange)
        upstream = http.client.HTTPConnection(*self.owner.target, timeout=UPSTREAM_SECONDS)
        try:
            headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP_BY_HOP}
            upstream.request(self.command, self.path, body=raw, headers=headers)
            response = upstream.getresponse()
            if "text/event-stream" in (response.getheader("content-type") or ""):
                self._stream(exchange, response)
            else:
                self._answer(exchange, response)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        finally:
            upstream.close()

    def _head(self, status: int, response: http.client.HTTPResponse, more: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in response.getheaders():
            if name.lower() not in HOP_BY_HOP | {"date", "server"}:
                self.send_header(name, value)
        for name, value in more.items():
            self.send_header(name, value)
        self.end_headers()

    def _answer(self, exchange: Exchange, response: http.client.HTTPResponse) -> None:
        raw, status = response.read(), response.status
        body = _parsed(raw)
        if body is not None and self.owner.mutation is not None:
            new_status, changed = self.owner.mutation.answer(exchange.path, status, body)
            if changed is not body or new_status != status:
                self.owner.touched += 1
                status, body, raw = new_status, changed, json.dumps(changed).encode()
        exchange.status = status
        exchange.documents.append(body)
        self._head(status, response, {"Content-Length": str(len(raw))})
        self.wfile.write(raw)

    def _stream(self, exchange: Exchange, response: http.client.HTTPResponse) -> None:
        exchange.status, exchange.streamed = response.status, True
        self._head(response.status, response, {"Connection": "close"})
        self.close_connection = True
        for block in _blocks(response):
            lines = block.split("\n")
            data = "\n".join(line[5:].removeprefix(" ") for line in lines if line.startswith("data:"))
            event: Any = data if data == DONE else _parsed(data.encode())
            if event is not None and self.owner.mutation is not None:
                changed = self.owner.mutation.event(exchange.path, event)
                if changed is not event:
                    self.owner.touched += 1
                    if changed is None:
                        continue
                    others = [line for line in lines if not line.startswith("data:")]
                    lines = [*others, f"data: {changed if changed == DONE else json.dumps(changed)}"]
                    event = changed
            if event is not None:
                exchange.documents.append(event)
            self.wfile.write(("\n".join(lines) + "\n\n").encode())
            self.wfile.flush()


def _parsed(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        return None


def _blocks(response: http.client.HTTPResponse) -> Iterator[str]:
    lines: list[str] = []
    while line := response.readline():
        text = line.decode().rstrip("\r\n")
        if text:
            lines.append(text)
        elif lines:
            yield "\n".join(lines)
            lines = []
    if lines:
        yield "\n".join(lines)
