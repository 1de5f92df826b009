"""An `EngineClient` whose engine runs in a process of its own, reached over two local sockets.

Reports are read by a callback of the event loop, not by a task: a message wakes the loop once, whatever number of streams it
carries pieces for, and then only those streams whose consumer waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import zmq

from radixserve.engine import wire
from radixserve.engine.child_process import ChildProcess, addresses, make_directory
from radixserve.engine.stream_client import StreamClient
from radixserve.errors import EngineClosed

# Messages taken in one go before the event loop's other work has its turn.
_BURST = 64
_CONNECT_SECONDS = 0.01


class SocketClient(StreamClient):
    """Starts an engine with ``options`` (those of `radixserve.config`, by name) and talks to it.

    ``progress`` is told what the engine does until it is ready. ``close_s``: how long `close` waits for an orderly end before it kills.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        *,
        progress: Callable[[str], None] | None = None,
        close_s: float = 10.0,
    ) -> None:
        super().__init__()
        self._options = dict(options)
        self._progress = progress
        self._close_s = close_s
        self._child: ChildProcess | None = None
        self._exited = asyncio.Event()
        self._ready = asyncio.Event()
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(wire.Report)

    @property
    def pid(self) -> int | None:
        """The engine process, None before `start`."""
        return None if self._child is None else self._child.pid

    async def start(self) -> None:
        """Start the process and wait until it takes requests. Raises `EngineClosed` with the reason where it never will."""
        assert self._child is None, "a client starts once"
        self._event_loop = asyncio.get_running_loop()
        self._directory = make_directory()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        inbound, outbound = addresses(self._directory)
        self._requests = self._socket(zmq.PUSH, inbound)
        self._reports = self._socket(zmq.PULL, outbound)
        self._event_loop.add_reader(int(self._reports.getsockopt(zmq.FD)), self._read)
        try:
            self._child = ChildProcess(self._options, self._directory, self._report_exit)
            await self._until_ready()
        except BaseException:
            self._note_close()
            await self._end_process(self._close_s)
            raise

    async def _until_ready(self) -> None:
        for step in (self._ready.wait, self._connected):
            done: asyncio.Future[object] = asyncio.ensure_future(step())
            gone = asyncio.ensure_future(self._failed.wait())
            try:
                await asyncio.wait((done, gone), return_when=asyncio.FIRST_COMPLETED)
            finally:
                done.cancel()
                gone.cancel()
            if self._ended is not None:
                raise self._gone()

    async def _connected(self) -> None:
        """Wait until the engine's socket is there: a message without meaning is taken."""
        while True:
            try:
                self._put(wire.Abort([]))
            except zmq.Again:
                await asyncio.sleep(_CONNECT_SECONDS)
            else:
                return

    async def close(self) -> None:
        """End what still runs and let the engine go; kill it if it does not. Safe to call twice."""
        self._note_close()
        self._end(None)
        if self._child is not None:
            with contextlib.suppress(zmq.ZMQError):
                self._put(wire.Close())
            await self._end_process(self._close_s)

    # ---------------------------------------------------------------- inside

    def _socket(self, kind: int, address: str) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.set_hwm(0)
        socket.bind(address)
        return socket

    def _send(self, request: wire.Call) -> None:
        try:
            self._put(request)
        except zmq.ZMQError as error:
            raise EngineClosed("the engine process cannot be reached any more") from error

    def _put(self, request: wire.Request) -> None:
        self._requests.send(self._encoder.encode(request), zmq.NOBLOCK)

    def _read(self) -> None:
        """Take what came. The socket's descriptor tells of news only once, so all of it is taken, if in several turns."""
        for _ in range(_BURST):
            if self._reports.closed:
                return
            try:
                message = self._reports.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._take(self._decoder.decode(message))
        self._event_loop.call_soon(self._read)

    def _take(self, report: wire.Report) -> None:
        match report:
            case wire.Pieces(pieces):
                for piece in pieces:
                    found = self._stream_of(piece.number)
                    if found is not None:
                        stream, job, index = found
                        self._deliver(stream, piece.number, piece.chunk(job, index))
            case wire.Answer(number, value):
                if number in self._questions:
                    self._answer(number, msgspec.msgpack.decode(value, type=self._questions[number][1]))
            case wire.Refused(number, error):
                self._refuse(number, wire.unpack_error(error))
            case wire.Loading(text):
                if self._progress is not None:
                    self._progress(text)
            case wire.Ready(info):
                self._info = info
                self._ready.set()
            case wire.Stopped(reason):
                self._end(reason)

    def _report_exit(self, how: str) -> None:
        """The process has ended; called on another thread."""
        # An event loop that was closed without closing the client: nobody is left to be told.
        with contextlib.suppress(RuntimeError):
            self._event_loop.call_soon_threadsafe(self._gone_with, how)

    def _gone_with(self, how: str) -> None:
        # Its last words may say more than its exit status does.
        self._read()
        self._end(how)
        self._exited.set()

    async def _end_process(self, patience_s: float) -> None:
        """Wait for the process to end, kill it after ``patience_s``, and leave nothing behind."""
        if self._child is not None and not self._exited.is_set():
            if self._info is None:
                self._child.terminate()
            try:
                await asyncio.wait_for(self._exited.wait(), patience_s)
            except TimeoutError:
                self._child.kill()
                await self._exited.wait()
        if not self._context.closed:
            self._event_loop.remove_reader(int(self._reports.getsockopt(zmq.FD)))
            self._context.destroy(linger=0)
            shutil.rmtree(self._directory, ignore_errors=True)
