"""The engine process as its parent sees it: started, listened to, waited for, ended."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from radixserve.engine.log_relay import read_record
from radixserve.engine.wire import Start

# A socket's path is limited to 107 bytes by the kernel.
_LONGEST_PATH = 100


class ChildProcess:
    """A running engine process.

    ``options``: the engine's, by flat name; they go over a pipe, never on the command line. ``directory``: where the parent
    has bound the sockets of `addresses`. ``on_exit`` is called once, on a thread of its own, as soon as the process has
    ended, with words for how.

    The pipe to the child's standard input stays open as long as the parent lives; the child ends when it closes.
    """

    def __init__(self, options: Mapping[str, Any], directory: Path, on_exit: Callable[[str], None]) -> None:
        self._on_exit = on_exit
        self._last_line = ""
        inbound, outbound = addresses(directory)
        start = Start(
            options=dict(options),
            inbound=inbound,
            outbound=outbound,
            directory=str(directory),
            log_level=logging.getLogger("radixserve").getEffectiveLevel(),
        )
        # The directory in which the parent happens to be is searched for modules only if the parent searches it.
        isolated = [] if {"", str(Path.cwd())} & set(sys.path) else ["-P"]
        self._process = subprocess.Popen(
            [sys.executable, *isolated, "-m", "radixserve.engine.process"],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # A group of its own: whoever ends the parent's group (a shell, ``timeout``, a supervisor) leaves it to the parent
            # to end the engine in order, and the engine goes by itself if the parent could not.
            start_new_session=True,
        )
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(start) + b"\n")
        self._process.stdin.flush()
        self._relay = threading.Thread(target=self._relay_errors, name="radixserve-engine-log", daemon=True)
        self._relay.start()
        threading.Thread(target=self._watch, name="radixserve-engine-exit", daemon=True).start()

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def terminate(self) -> None:
        """Ask it to end."""
        self._process.terminate()

    def kill(self) -> None:
        """End it."""
        self._process.kill()

    def _relay_errors(self) -> None:
        """Log what the child logs, pass on what else it writes, and remember the last line of that."""
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            for line in lines:
                text = line.decode(errors="replace")
                record = read_record(text)
                if record is None:
                    # Reading goes on where nothing can be written: a full pipe would stop the engine.
                    with contextlib.suppress(OSError, ValueError):
                        sys.stderr.write(text)
                    self._last_line = text.strip() or self._last_line
                elif (target := logging.getLogger(record.name)).isEnabledFor(record.levelno):
                    target.handle(record)

    def _watch(self) -> None:
        code = self._process.wait()
        # What it wrote last is in the pipe; a process that it started may hold the pipe open for longer.
        self._relay.join(timeout=1)
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._on_exit(describe_exit(code, self._last_line))


def addresses(directory: Path) -> tuple[str, str]:
    """Of the sockets to and from the engine."""
    return f"ipc://{directory}/in", f"ipc://{directory}/out"


def make_directory() -> Path:
    """A new directory that only this user can enter, short enough for the path of a socket."""
    directory = tempfile.mkdtemp(prefix="radixserve-")
    if len(os.fsencode(directory)) > _LONGEST_PATH:
        shutil.rmtree(directory)
        directory = tempfile.mkdtemp(prefix="radixserve-", dir="/tmp")
    return Path(directory)


def describe_exit(code: int, last_line: str) -> str:
    """How a process ended, in words; ``code`` as `subprocess` gives it."""
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        how = f"the engine process was killed by {name}"
    else:
        how = f"the engine process exited with code {code}"
    return f"{how}: {last_line}" if last_line else how
