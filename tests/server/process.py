"""A real server in processes of its own, as an operator starts it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

START_S = 120.0
MAIN = "from radixserve.cli.main import main; main()"


class ServerProcess:
    """``radixserve serve`` on a free port with the embedded model; ``lines`` is what it wrote so far."""

    def __init__(
        self, *arguments: str, environment: dict[str, str] | None = None, start_new_session: bool = False
    ) -> None:
        command = [sys.executable, "-c", MAIN, "serve", "--port", "0", "--log-format", "json", "--kv-memory-mb", "768"]
        self.process = subprocess.Popen(
            [*command, *arguments],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
            start_new_session=start_new_session,
        )
        self.lines: list[str] = []
        self.url = ""
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> ServerProcess:
        assert self._ready.wait(START_S), "\n".join(self.lines)
        assert self.url, "\n".join(self.lines)
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))
            if '"url":' in line:
                self.url = json.loads(line)["url"]
                self._ready.set()
        self._ready.set()

    @property
    def log(self) -> str:
        """Everything it wrote."""
        return "\n".join(self.lines)

    def client(self, **more: Any) -> httpx.AsyncClient:
        """A client for it."""
        limits = httpx.Limits(max_connections=None)
        return httpx.AsyncClient(base_url=self.url, timeout=300, limits=limits, **more)

    def children(self) -> list[int]:
        """Process ids of its children: the engine's."""
        return child_processes(self.process.pid)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Tell it to stop; the exit code."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self, seconds: float = 60.0) -> int:
        """Its exit code, once it is gone and everything that it wrote is read."""
        code = self.process.wait(seconds)
        self._reader.join(seconds)
        return code


def child_processes(pid: int) -> list[int]:
    """Process ids of what process ``pid`` has started."""
    children: list[int] = []
    for path in Path(f"/proc/{pid}/task").iterdir():
        # A thread may end meanwhile.
        with contextlib.suppress(OSError):
            children += map(int, (path / "children").read_text().split())
    return children


def run_to_end(*arguments: str, seconds: float = START_S) -> tuple[int, str]:
    """Exit code and error output of a server that does not come up."""
    server = ServerProcess(*arguments)
    try:
        return server.wait(seconds), server.log
    finally:
        server.process.kill()


def wait_until(condition: Any, seconds: float = 30.0) -> None:
    """Wait for ``condition()`` to hold."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)


def command_lines(pids: Sequence[int]) -> str:
    """What anybody on the machine may read of these processes."""
    return "\n".join(Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode() for pid in pids)
