"""One server over HTTP: connections for each event loop, bounds, timeouts, retries and errors."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx
import msgspec

from radixlang.backends.refusals import error_in_stream, error_of
from radixlang.backends.sse import event_data
from radixlang.errors import BackendClosed, BackendError, InvalidProgram, Refused

T = TypeVar("T")

# Beside the calls to the model, for questions that must not wait for them.
_SPARE_CONNECTIONS = 16
_CONNECT_S = 10.0
# Long pauses between calls are common; servers close a silent connection after five seconds at the earliest.
_KEEP_ALIVE_S = 4.0
_FIRST_DELAY_S = 0.1
_LONGEST_DELAY_S = 30.0
_BUSY = 429
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout)


TIMEOUT_S = 600.0
CONCURRENCY = 256
RETRIES = 3


@dataclass(frozen=True, slots=True)
class Limits:
    """``timeout_s``: how long a call may stay without a sign of the server. ``concurrency``: calls to the model at a time, others
    wait here. ``retries``: how often a call is sent again that did not reach the server or that it was too busy for, and a
    question whose answer was lost.
    """

    timeout_s: float = TIMEOUT_S
    concurrency: int = CONCURRENCY
    retries: int = RETRIES

    def __post_init__(self) -> None:
        for name, low in (("timeout_s", 0), ("concurrency", 1), ("retries", 0)):
            if getattr(self, name) < low:
                raise InvalidProgram(name, f"must be at least {low}, not {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class _Lines:
    """What one event loop has of the server."""

    client: httpx.AsyncClient
    turn: asyncio.Semaphore


class Connection:
    """The way to the server at ``url``. ``transport``: another way there than TCP, for use from one event loop.

    Raises `InvalidProgram` for a URL that is none. All methods raise `BackendClosed` where the server is not there or this is closed,
    `BackendError` for a failure or silence of the server and `Refused` for a request that it refuses.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        limits: Limits | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        if not self.url.startswith(("http://", "https://")):
            raise InvalidProgram("url", f"must begin with http:// or https://, not {url!r}")
        self._headers = dict(headers or {})
        self._limits = limits or Limits()
        self._transport = transport
        self._closed = False
        self._lines: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Lines] = weakref.WeakKeyDictionary()

    async def get(self, path: str) -> bytes:
        """Ask a question without a body."""
        return await self._answer("GET", path, None, repeatable=True)

    async def ask(self, path: str, body: Any) -> bytes:
        """Ask a question that may be asked twice; it does not wait for calls to the model."""
        return await self._answer("POST", path, body, repeatable=True)

    async def call(self, path: str, body: Any) -> bytes:
        """Call the model. Cancelling it closes the connection, which ends what was asked for."""
        async with self._here().turn:
            return await self._answer("POST", path, body, repeatable=False)

    async def events(self, path: str, body: Any) -> AsyncGenerator[bytes, None]:
        """Call the model and have the data of its events as they come. Closing this closes the connection."""
        lines = self._here()
        async with lines.turn:
            response = await self._send(lines.client, "POST", path, body, repeatable=False)
            async with contextlib.aclosing(response), contextlib.aclosing(event_data(self._read(response))) as data:
                async for item in data:
                    error = error_in_stream(item, self._where(path))
                    if error is not None:
                        raise error
                    yield item

    async def aclose(self) -> None:
        """Close all connections that can be closed from here; safe to call twice."""
        self._closed = True
        here = asyncio.get_running_loop()
        for loop, lines in list(self._lines.items()):
            if loop is here:
                await lines.client.aclose()
            elif loop.is_running():
                closing = asyncio.run_coroutine_threadsafe(lines.client.aclose(), loop)
                await asyncio.wrap_future(closing)
        self._lines.clear()

    def decoded(self, data: bytes, kind: type[T]) -> T:
        """``data`` as the answer that it should be."""
        try:
            return msgspec.json.decode(data, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BackendError(f"{self.url}: the answer is not what was asked for: {error}") from error

    async def _answer(self, method: str, path: str, body: Any, *, repeatable: bool) -> bytes:
        response = await self._send(self._here().client, method, path, body, repeatable=repeatable)
        async with contextlib.aclosing(response):
            return b"".join([piece async for piece in self._read(response)])

    async def _send(
        self, client: httpx.AsyncClient, method: str, path: str, body: Any, *, repeatable: bool
    ) -> httpx.Response:
        """A response whose head says that the request is taken; its body is still to come."""
        where = self._where(path)
        content = None if body is None else _written(body)
        for attempt in range(self._limits.retries + 1):
            last = attempt == self._limits.retries
            delay = min(_FIRST_DELAY_S * 2**attempt, _LONGEST_DELAY_S) * (1 + random.random())
            try:
                request = client.build_request(method, self.url + path, content=content)
                response = await client.send(request, stream=True)
            except httpx.TransportError as error:
                lost = isinstance(error, httpx.NetworkError | httpx.RemoteProtocolError)
                if last or not (isinstance(error, _NOT_SENT) or (repeatable and lost)):
                    raise _translated(error, where) from error
            else:
                if response.is_success:
                    return response
                async with contextlib.aclosing(response):
                    said = b"".join([piece async for piece in self._read(response)])
                wait = _seconds(response.headers.get("Retry-After"))
                if last or not (response.status_code == _BUSY or (response.status_code == 503 and wait is not None)):
                    raise error_of(response.status_code, said, where)
                delay = delay if wait is None else min(wait, _LONGEST_DELAY_S)
            await asyncio.sleep(delay)
        raise AssertionError("the last attempt returns or raises")

    async def _read(self, response: httpx.Response) -> AsyncIterator[bytes]:
        try:
            async for piece in response.aiter_bytes():
                yield piece
        except httpx.TransportError as error:
            raise _translated(error, str(response.url)) from error

    def _here(self) -> _Lines:
        if self._closed:
            raise BackendClosed(f"{self.url}: this backend was closed")
        loop = asyncio.get_running_loop()
        lines = self._lines.get(loop)
        if lines is None:
            most = self._limits.concurrency
            client = httpx.AsyncClient(
                headers={"Content-Type": "application/json", **self._headers},
                timeout=httpx.Timeout(self._limits.timeout_s, connect=_CONNECT_S, pool=None),
                limits=httpx.Limits(max_connections=most + _SPARE_CONNECTIONS, keepalive_expiry=_KEEP_ALIVE_S),
                transport=self._transport,
            )
            lines = self._lines[loop] = _Lines(client, asyncio.Semaphore(most))
        return lines

    def _where(self, path: str) -> str:
        return f"{self.url}{path}"


def _written(body: Any) -> bytes:
    """``body`` as JSON. Raises `Refused` for what has no form in it."""
    try:
        try:
            return msgspec.json.encode(body)
        except (OverflowError, UnicodeEncodeError):
            # The server is to say what it thinks of such numbers and texts, and of which field.
            return json.dumps(body).encode()
    except (TypeError, ValueError) as error:
        raise Refused(None, f"a field cannot be sent: {error}", "invalid_type") from error


def _translated(error: httpx.TransportError, where: str) -> BackendError:
    if isinstance(error, httpx.TimeoutException) and not isinstance(error, httpx.ConnectTimeout):
        return BackendError(f"{where}: no sign of the server within the timeout")
    return BackendClosed(f"{where}: {str(error) or type(error).__name__}")


def _seconds(value: str | None) -> float | None:
    """A ``Retry-After`` in seconds; dates, which nobody sends here, are None."""
    try:
        return None if value is None else max(0.0, float(value))
    except ValueError:
        return None
