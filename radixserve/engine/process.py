"""The engine's own process: ``python -m radixserve.engine.process``, started by `radixserve.engine.socket_client`.

Two threads matter. The *step loop* (`EngineLoop`) computes, and sends what a step brought in one message (`Outlet`); it never waits
for a socket. The *input* thread decodes what comes and hands it to the loop.

Options come as one line on standard input, which then stays open: when it ends, the parent is gone, and so is this process.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import queue
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import msgspec
import zmq

from radixserve.config import EngineConfig
from radixserve.engine import wire
from radixserve.engine.dispatcher import Dispatcher
from radixserve.engine.log_relay import RelayFormatter
from radixserve.engine.loop import EngineLoop
from radixserve.errors import RadixServeError
from radixserve.messages import GenerationChunk
from radixserve.model.location import find_model

logger = logging.getLogger(__name__)

_TERMINATED = "the engine process was asked to end (SIGTERM)"
# How long the last messages may take to leave.
_LINGER_MS = 1000
# Young objects of a step are mostly dropped within it, and requests leave no cycles behind, so the collector has little to
# find; a full collection walks the whole radix tree (0.75 s at 100,000 nodes) and is left to pauses.
_GC_THRESHOLDS = (50_000, 50, 1_000_000)


class Outlet:
    """Where the engine's reports leave; a `Receiver`.

    Any thread sends for itself, and none ever waits for the client: the socket keeps what the client has not taken. So the step
    loop sends what a step brought before it plans the next one. The client then has the core that computes nothing meanwhile;
    a thread that sent for the loop would get the interpreter only once the next step computes on both.
    """

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket
        self._encoder = msgspec.msgpack.Encoder()
        # A socket may be used by any thread, but by one at a time.
        self._lock = threading.Lock()

    def put(self, report: wire.Report) -> None:
        """Send ``report`` after all that was put before; after `close` nobody is left to be told."""
        with self._lock:
            if not self._socket.closed:
                self._socket.send(self._encoder.encode(report))

    def pieces(self, pieces: list[tuple[int, GenerationChunk]]) -> None:
        """All chunks of a step, each with its job's number."""
        self.put(wire.Pieces([wire.Piece.of(number, chunk) for number, chunk in pieces]))

    def answered(self, number: int, value: Any) -> None:
        """The answer to a question."""
        self.put(wire.Answer(number, msgspec.Raw(msgspec.msgpack.encode(value))))

    def refused(self, number: int, error: BaseException) -> None:
        """A submission was not queued, or a question raised."""
        if not isinstance(error, RadixServeError):
            logger.error("request %d raised", number, exc_info=error)
        self.put(wire.Refused(number, wire.pack_error(error)))

    def close(self) -> None:
        """Close the socket once what was put has left, which may take as long as the last words may."""
        with self._lock:
            self._socket.close(linger=_LINGER_MS)


class _Terminated(BaseException):
    """SIGTERM came while the engine was being loaded. No library that is at work then may take it for an error of its own."""


class EngineProcess:
    """The process's life: load, serve, end.

    One that is loaded waits for its ending: a reason, or None for a client that closes it.
    """

    def __init__(self, start: wire.Start) -> None:
        self._start = start
        self._endings: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._outlet = Outlet(self._socket(zmq.PUSH, start.outbound))
        self._inbound = self._socket(zmq.PULL, start.inbound)
        self._reader: threading.Thread | None = None
        self._loading = True

    def run(self) -> int:
        """Serve until it is time to go; the exit status."""
        status = 1
        try:
            reason, status = self._live()
        except _Terminated:
            reason, status = _TERMINATED, 0
        except (RadixServeError, MemoryError) as error:
            reason = str(error) or "out of memory"
        except Exception as error:
            logger.exception("the engine cannot start")
            reason = f"{type(error).__name__}: {error}"
        finally:
            # Loading is over, however it ended: a parent that hears of it may say goodbye before the last words are out.
            self._loading = False
        self._outlet.put(wire.Stopped(reason or "the engine was closed"))
        self._outlet.close()
        if self._reader is None:
            self._inbound.close(linger=0)
        # Makes the reader close its socket, and waits until the last reports have left.
        self._context.term()
        # Who ends this process may have ended the parent with it. What is connected does not need the names any more.
        shutil.rmtree(self._start.directory, ignore_errors=True)
        return status

    def terminate(self, number: int, frame: FrameType | None) -> None:
        """SIGTERM came."""
        if self._loading:
            raise _Terminated
        self._endings.put(_TERMINATED)

    def _live(self) -> tuple[str | None, int]:
        loop = self._load()
        loop.at_end(lambda failure: self._endings.put(f"the engine stopped: {failure}" if failure else None))
        dispatcher = Dispatcher(loop, self._outlet)
        self._reader = threading.Thread(target=self._serve, args=(dispatcher,), name="radixserve-input", daemon=True)
        self._reader.start()
        reason = self._endings.get()
        loop.close()
        return reason, 1 if loop.failure else 0

    def _load(self) -> EngineLoop:
        config = EngineConfig.from_options(**self._start.options)
        # What cannot work is told before anybody waits for torch.
        self._stage(f"looking for {config.model.model}")
        find_model(config.model.model)
        self._stage("importing torch")
        import torch

        from radixserve.engine.assembly import assemble
        from radixserve.model.loader import load_model
        from radixserve.runtime.device import require_device

        require_device(config.model.device, config.model.tensor_parallel_size)
        model = load_model(config.model.model, dtype=getattr(torch, config.model.dtype), progress=_Percent(self._stage))
        assembly = assemble(model, config, self._stage)
        del model
        collect_and_freeze()
        gc.set_threshold(*_GC_THRESHOLDS)
        loop = assembly.run_by(EngineLoop(assembly.core, on_idle=collect_and_freeze))
        self._loading = False
        self._outlet.put(wire.Ready(assembly.info))
        return loop

    def _stage(self, text: str) -> None:
        self._outlet.put(wire.Loading(text))

    def _serve(self, dispatcher: Dispatcher) -> None:
        """The input thread."""
        decoder = msgspec.msgpack.Decoder(wire.Request)
        with contextlib.suppress(zmq.ContextTerminated), self._inbound as inbound:
            while True:
                match decoder.decode(inbound.recv()):
                    case wire.Submit(number, jobs):
                        dispatcher.submit(number, jobs)
                    case wire.Abort(rids):
                        dispatcher.abort(rids)
                    case wire.Ask(number, question):
                        dispatcher.ask(number, question)
                    case wire.Close():
                        self._endings.put(None)
                        return

    def _socket(self, kind: int, address: str) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.set_hwm(0)
        socket.connect(address)
        return socket


class _Percent:
    """Tells how far loading is, in steps worth showing."""

    def __init__(self, stage: Callable[[str], None]) -> None:
        self._stage = stage
        self._shown = -1

    def __call__(self, text: str, done: int, total: int) -> None:
        percent = min(100, 100 * done // total) // 5 * 5 if total else 100
        if percent != self._shown:
            self._shown = percent
            self._stage(f"{text} {percent} %")


def collect_and_freeze() -> None:
    """Collect garbage once, and keep the collector from walking what is left again.

    Frozen objects are freed as ever when nobody refers to them; only cycles among them would stay, and there are none.
    """
    gc.collect()
    gc.freeze()


def main() -> int:
    """Run the process; the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The terminal sends it to the whole group; the parent decides.
    line = sys.stdin.buffer.readline()
    if not line:
        return 0
    start = msgspec.json.decode(line, type=wire.Start)
    handler = logging.StreamHandler()
    handler.setFormatter(RelayFormatter())
    logging.basicConfig(level=start.log_level, handlers=[handler])
    process = EngineProcess(start)

    signal.signal(signal.SIGTERM, process.terminate)
    threading.Thread(target=_follow_parent, args=(start.directory,), name="radixserve-parent", daemon=True).start()
    return process.run()


def _follow_parent(directory: str) -> None:
    """End with the parent, whatever else is going on: nobody is left to be told, or to clean up."""
    while os.read(0, 4096):
        pass
    shutil.rmtree(directory, ignore_errors=True)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
