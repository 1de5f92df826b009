"""The other ranks as rank 0 sees them: started, told what to do, missed when they are gone, ended."""

from __future__ import annotations

import concurrent.futures
import contextlib
import fcntl
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from radixserve.errors import EngineClosed, RankFailed
from radixserve.runtime.tensor_parallel.channel import Channel
from radixserve.runtime.tensor_parallel.messages import Close, Copy, Order, Poison, Raised, Report, Setup, array_bytes
from radixserve.runtime.tensor_parallel.pulse import Pulses, pulse_memory
from radixserve.runtime.tensor_parallel.watchdog import Watchdog

logger = logging.getLogger(__name__)

# How long the others may take to end, or to say why they do, once one of them did.
_FAREWELL_S = 5.0

R = TypeVar("R", bound=Report)
T = TypeVar("T")


class RankProcesses:
    """The processes of ranks 1 to ``setup.ranks`` - 1, in a directory of their own that only this user can enter.

    ``setup``: of all of them; rank and parent are filled in. They end with this process, however it does. ``on_exit`` is
    told, on a thread of its own, of each that ends before `close`, be it that ``watchdog`` has given one up: then all of them end, and
    what waits for one goes on to `fail`. Otherwise one thread at a time.
    """

    def __init__(self, setup: Setup, on_exit: Callable[[RankFailed], None]) -> None:
        self.channels: list[Channel[Report]] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._on_exit = on_exit
        self._failure: RankFailed | None = None
        self._given_up: RankFailed | None = None
        self._first_exit: Future[None] = Future()
        self._closed = False
        with pulse_memory(setup.ranks) as memory:
            self.pulses = Pulses(memory, setup.ranks)
            self.watchdog = Watchdog(self.pulses, setup.watchdog_timeout_s, self._give_up)
            self.directory = Path(tempfile.mkdtemp(prefix="radixserve-ranks-"))
            try:
                for rank in range(1, setup.ranks):
                    self._start(msgspec.structs.replace(setup, rank=rank, parent=os.getpid()), memory)
                self.watchdog.start()
            except OSError as error:
                self.close(at_once=True)
                raise RankFailed(None, f"a rank cannot be started: {error}") from error
            except BaseException:
                self.close(at_once=True)
                raise

    @property
    def pids(self) -> list[int]:
        """Ids of the processes, of rank 1 first."""
        return [process.pid for process in self._processes]

    def send(self, order: Order) -> None:
        """Tell all ranks; raises `RankFailed` where one is gone, and `EngineClosed` after `close`."""
        if self._failure is not None:
            raise self._failure
        if self._closed:
            raise EngineClosed("the ranks were told to end")
        data = self.channels[0].encode(order)
        for channel in self.channels:
            try:
                channel.send_bytes(data)
            except ConnectionError as error:
                raise self.fail(error) from error

    def copy_blocks(self, copies: npt.NDArray[np.int32]) -> None:
        """Copy whole blocks on all ranks."""
        self.send(Copy(array_bytes(copies)))

    def poison(self, block_ids: npt.ArrayLike) -> None:
        """Fill blocks with NaN on all ranks."""
        self.send(Poison(array_bytes(np.asarray(block_ids, np.int64))))

    def receive(self, kind: type[R]) -> list[R]:
        """A report of that kind from each rank, of rank 1 first; raises `RankFailed` where another comes, or none."""
        reports: list[R] = []
        for rank, channel in enumerate(self.channels, 1):
            try:
                with self.watchdog.awaiting(rank):
                    report = channel.receive()
            except EOFError as error:
                raise self.fail(error) from error
            if not isinstance(report, kind):
                assert isinstance(report, Raised), f"{report} is out of place"
                raise self.fail(RankFailed(rank, _raised(report)), {rank: report})
            reports.append(report)
        return reports

    def unless_lost(self, work: Callable[[], T]) -> T:
        """What ``work`` returns, which waits for all ranks and does not hear of it if one ends: then it is left behind, on a thread
        of its own, and `RankFailed` is raised.
        """
        found: Future[T] = Future()

        def run() -> None:
            try:
                found.set_result(work())
            except BaseException as error:
                found.set_exception(error)

        threading.Thread(target=run, name="radixserve-meeting", daemon=True).start()
        either: list[Future[Any]] = [found, self._first_exit]
        concurrent.futures.wait(either, return_when=concurrent.futures.FIRST_COMPLETED)
        if not found.done():
            raise RankFailed(None, "a rank is gone")
        return found.result()

    def fail(self, error: BaseException, told: dict[int, Raised] | None = None) -> RankFailed:
        """End all ranks because of ``error``, which one of them may be the reason of; the error to raise, now and from now on.

        ``told``: last reports that were already received.
        """
        if self._failure is None:
            lost = isinstance(error, (RankFailed, EOFError, ConnectionError))
            self._failure = self._given_up or (self._blame(dict(told or {})) if lost else None)
            if self._failure is None:
                self._failure = error if isinstance(error, RankFailed) else RankFailed(0, f"raised {error!r}")
            if self._failure is not self._given_up:
                logger.error("%s; the ranks are ended", self._failure)
            self.close(at_once=True)
        return self._failure

    def close(self, *, at_once: bool = False) -> None:
        """End the processes and wait for that; safe to call twice. ``at_once``: do not ask."""
        if self._closed:
            return
        self._closed = True
        self.watchdog.close()
        deadline = time.monotonic() + _FAREWELL_S
        for channel, process in zip(self.channels, self._processes, strict=True):
            if at_once:
                process.kill()
                continue
            try:
                with channel.patience(_FAREWELL_S):
                    channel.send(Close())
            except OSError:
                process.kill()
        for channel, process in zip(self.channels, self._processes, strict=True):
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            channel.close()
            assert process.stdin is not None
            process.stdin.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _start(self, setup: Setup, memory: int) -> None:
        # The directory in which this process happens to be is searched for modules only if it searches it itself.
        isolated = [] if {"", str(Path.cwd())} & set(sys.path) else ["-P"]
        module = "radixserve.runtime.tensor_parallel.process"
        ours, theirs = socket.socketpair()
        with theirs, _passable(theirs.fileno()) as connection, _passable(memory) as pulses:
            process = subprocess.Popen(
                [sys.executable, *isolated, "-m", module, str(connection), str(pulses), str(self.directory)],
                stdin=subprocess.PIPE,
                pass_fds=[connection, pulses],
                # Who ends the group of this process leaves it to this process to end the ranks in order.
                start_new_session=True,
            )
        channel: Channel[Report] = Channel(ours, Report)
        self._processes.append(process)
        self.channels.append(channel)
        threading.Thread(
            target=self._watch, args=(setup.rank, process), name=f"radixserve-rank-{setup.rank}", daemon=True
        ).start()
        logger.info("rank %d is process %d", setup.rank, process.pid)
        # Who is gone already is missed when its first report does not come.
        with contextlib.suppress(ConnectionError):
            channel.send(setup)

    def _watch(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        code = process.wait()
        with contextlib.suppress(concurrent.futures.InvalidStateError):
            self._first_exit.set_result(None)
        if not self._closed:
            self._on_exit(self._given_up or RankFailed(rank, _describe(code)))

    def _give_up(self, error: RankFailed) -> None:
        """End a rank that hangs; told by the watchdog, on its thread. Whoever waits for it sees its end, or that of the others."""
        if self._closed:
            return
        self._given_up = error
        logger.error("%s; the ranks are ended", error)
        for process in self._processes:
            process.kill()

    def _blame(self, told: dict[int, Raised]) -> RankFailed | None:
        """The rank that failed first, as far as it can be told; None where all are well."""
        deadline = time.monotonic() + _FAREWELL_S
        ended: dict[int, int] = {}
        for rank, (channel, process) in enumerate(zip(self.channels, self._processes, strict=True), 1):
            try:
                if rank not in told:
                    with channel.patience(max(0.01, deadline - time.monotonic())):
                        while not isinstance(report := channel.receive(), Raised):
                            pass
                        told[rank] = report
            except EOFError:
                ended[rank] = process.wait()
            except OSError:
                continue
        for rank, code in ended.items():
            return RankFailed(rank, _describe(code))
        for rank, report in sorted(told.items(), key=lambda item: item[1].consequence):
            return RankFailed(rank, _raised(report))
        return None


@contextlib.contextmanager
def _passable(descriptor: int) -> Iterator[int]:
    """A copy that is none of the three standard ones, which are free here if somebody closed them, and not in a process that is started."""
    copy = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
    try:
        yield copy
    finally:
        os.close(copy)


def _raised(report: Raised) -> str:
    return f"lost the others: {report.reason}" if report.consequence else f"raised {report.reason}"


def _describe(code: int) -> str:
    """How a process ended; ``code`` as `subprocess` gives it."""
    if code >= 0:
        return f"ended with exit status {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
