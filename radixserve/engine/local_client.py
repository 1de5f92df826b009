"""An `EngineClient` over an engine in this process: for tests, benchmarks and servers that embed the engine."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import msgspec

from radixserve.engine import wire
from radixserve.engine.client import EngineInfo
from radixserve.engine.dispatcher import Dispatcher
from radixserve.engine.loop import EngineLoop
from radixserve.engine.stream_client import StreamClient
from radixserve.errors import RadixServeError
from radixserve.messages import GenerationChunk


class LocalClient(StreamClient):
    """A client of ``loop``, which others may use at the same time. ``info``: facts about its engine.

    ``close`` closes the loop as well.
    """

    def __init__(self, loop: EngineLoop, info: EngineInfo) -> None:
        super().__init__()
        self._engine_loop = loop
        self._facts = info
        self._dispatcher: Dispatcher | None = None

    async def start(self) -> None:
        """Take the running event loop as this client's own."""
        if self._dispatcher is None:
            carrier = _Carrier(asyncio.get_running_loop(), self)
            self._dispatcher = Dispatcher(self._engine_loop, carrier)
            self._engine_loop.at_end(carrier.ended)
        self._info = self._facts

    async def close(self) -> None:
        """End what still runs and let the engine go. Safe to call twice."""
        self._note_close()
        # The loop finishes its step first.
        await asyncio.to_thread(self._engine_loop.close)
        self._end(None)

    def _send(self, request: wire.Call) -> None:
        assert self._dispatcher is not None, "a client is started before it is used"
        match request:
            case wire.Submit():
                self._dispatcher.submit(request.number, request.jobs)
            case wire.Abort():
                self._dispatcher.abort(request.rids)
            case wire.Ask():
                self._dispatcher.ask(request.number, request.question)

    def _take(self, pieces: list[tuple[int, GenerationChunk]]) -> None:
        for number, chunk in pieces:
            found = self._stream_of(number)
            if found is not None:
                stream, _, index = found
                self._deliver(stream, number, msgspec.structs.replace(chunk, prompt_index=index) if index else chunk)


class _Carrier:
    """Brings what happens on the engine's thread to the client's event loop: one wake-up a step."""

    def __init__(self, event_loop: asyncio.AbstractEventLoop, client: LocalClient) -> None:
        self._event_loop = event_loop
        self._client = client

    def pieces(self, pieces: list[tuple[int, GenerationChunk]]) -> None:
        self._carry(self._client._take, pieces)

    def answered(self, number: int, value: Any) -> None:
        self._carry(self._client._answer, number, value)

    def refused(self, number: int, error: BaseException) -> None:
        known = error if isinstance(error, RadixServeError) else wire.unpack_error(wire.pack_error(error))
        self._carry(self._client._refuse, number, known)

    def ended(self, failure: Exception | None) -> None:
        self._carry(self._client._end, f"the engine stopped: {failure}" if failure else "the engine was closed")

    def _carry(self, function: Callable[..., None], *arguments: Any) -> None:
        # An event loop that was closed without closing the client: nobody is left to be told.
        with contextlib.suppress(RuntimeError):
            self._event_loop.call_soon_threadsafe(function, *arguments)
