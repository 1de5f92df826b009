"""The server under test, as a process of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

KEY = "clients-key"
MODEL = "smollm2"
CONTEXT = 8192
START_SECONDS = 180
STOP_SECONDS = 30


class ServerFailed(RuntimeError):
    """The server did not come up, or went away."""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _ready(root: str) -> bool:
    request = urllib.request.Request(f"{root}/ready", headers={"Authorization": f"Bearer {KEY}"})
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


@contextmanager
def served() -> Iterator[str]:
    """The address of a fresh server with the embedded model; it is stopped at the end.

    Raises `ServerFailed` with the end of its log when it does not get ready.
    """
    root = f"http://127.0.0.1:{(port := _free_port())}"
    program = Path(sys.executable).with_name("radixserve")
    command = [
        str(program),
        "serve",
        MODEL,
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--api-key",
        KEY,
        "--log-level",
        "warning",
    ]
    with tempfile.NamedTemporaryFile("w+", prefix="radixserve-", suffix=".log") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            deadline = time.monotonic() + START_SECONDS
            while not _ready(root):
                if process.poll() is not None or time.monotonic() > deadline:
                    tail = "\n".join(Path(log.name).read_text().splitlines()[-30:])
                    raise ServerFailed(f"{' '.join(command)}: exit status {process.poll()}\n{tail}")
                time.sleep(0.2)
            yield root
            if process.poll() is not None:
                raise ServerFailed(
                    f"the server ended with status {process.poll()}\n{Path(log.name).read_text()[-4000:]}"
                )
        finally:
            _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
