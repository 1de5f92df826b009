"""The other ranks as rank 0 sees them: started, told what to do, missed when they are gone, ended."""

from __future__ import annotations

import contextlib
import logging
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from radixserve.errors import EngineClosed, RankFailed
from radixserve.runtime.tensor_parallel.channel import Channel
from radixserve.runtime.tensor_parallel.messages import Close, Copy, Order, Poison, Raised, Report, Setup, array_bytes

logger = logging.getLogger(__name__)

# How long the others may take to end, or to say why they do, once one of them did.
_FAREWELL_S = 5.0

R = TypeVar("R", bound=Report)


class RankProcesses:
    """The processes of ranks 1 to ``setup.ranks`` - 1, in a directory of their own that only this user can enter.

    ``setup``: of all of them; rank and directory are filled in. They end with this process, however it does: each holds the other end
    of a pipe. ``on_exit`` is told, on a thread of its own, of each that ends before `close`. Otherwise one thread at a time.
    """

    def __init__(self, setup: Setup, on_exit: Callable[[RankFailed], None]) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="radixserve-ranks-"))
        self.channels: list[Channel[Report]] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._on_exit = on_exit
        self._failure: RankFailed | None = None
        self._closed = False
        try:
            for rank in range(1, setup.ranks):
                self._start(msgspec.structs.replace(setup, rank=rank, directory=str(self.directory)))
        except BaseException:
            self.close()
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
                report = channel.receive()
            except EOFError as error:
                raise self.fail(error) from error
            if not isinstance(report, kind):
                assert isinstance(report, Raised), f"{report} is out of place"
                raise self.fail(RankFailed(rank, _raised(report)), {rank: report})
            reports.append(report)
        return reports

    def fail(self, error: BaseException, told: dict[int, Raised] | None = None) -> RankFailed:
        """End all ranks because of ``error``, which one of them may be the reason of; the error to raise, now and from now on.

        ``told``: last reports that were already received.
        """
        if self._failure is None:
            lost = isinstance(error, (RankFailed, EOFError, ConnectionError))
            self._failure = self._blame(dict(told or {})) if lost else None
            if self._failure is None:
                self._failure = error if isinstance(error, RankFailed) else RankFailed(0, f"raised {error!r}")
            logger.error("%s; the other ranks are ended", self._failure)
            self.close(at_once=True)
        return self._failure

    def close(self, *, at_once: bool = False) -> None:
        """End the processes and wait for that; safe to call twice. ``at_once``: do not ask."""
        if self._closed:
            return
        self._closed = True
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

    def _start(self, setup: Setup) -> None:
        ours, theirs = socket.socketpair()
        # The directory in which this process happens to be is searched for modules only if it searches it itself.
        isolated = [] if {"", str(Path.cwd())} & set(sys.path) else ["-P"]
        module = "radixserve.runtime.tensor_parallel.process"
        with theirs:
            process = subprocess.Popen(
                [sys.executable, *isolated, "-m", module, str(theirs.fileno())],
                stdin=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
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
        if not self._closed:
            self._on_exit(RankFailed(rank, _describe(code)))

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
