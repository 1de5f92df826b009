"""What the processes of a local server take, read from /proc."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_LISTEN = "0A"
_TICKS = os.sysconf("SC_CLK_TCK")

# At rest is a machine that for so long was busy with less than this share of one core. Our engine tidies up after a second of idling.
_REST_S, _REST_SHARE = 1.3, 0.1


@dataclass(frozen=True, slots=True)
class Usage:
    """``cpu_s``: CPU time so far, ``peak_bytes``: the largest resident memory, of a process and all below it."""

    cpu_s: float = 0.0
    peak_bytes: int = 0


def listener(port: int, proc: Path = Path("/proc")) -> int | None:
    """The process that listens on a TCP port of this machine; None where there is none that we may see."""
    sockets = set()
    for table in ("net/tcp", "net/tcp6"):
        for line in _lines(proc / table)[1:]:
            fields = line.split()
            if fields[3] == _LISTEN and int(fields[1].rsplit(":", 1)[1], 16) == port:
                sockets.add(f"socket:[{fields[9]}]")
    for process in _processes(proc):
        for link in _entries(proc / str(process) / "fd"):
            try:
                if str(link.readlink()) in sockets:
                    return process
            except OSError:
                continue
    return None


def usage_below(root: int | None, proc: Path = Path("/proc")) -> Usage:
    """Of ``root`` and all its descendants that live; nothing for None."""
    if root is None:
        return Usage()
    children: dict[int, list[int]] = {}
    for process in _processes(proc):
        if (fields := _stat(proc, process)) is not None:
            children.setdefault(int(fields[1]), []).append(process)
    cpu, peak, waiting = 0.0, 0, [root]
    while waiting:
        process = waiting.pop()
        waiting += children.get(process, [])
        if (fields := _stat(proc, process)) is not None:
            cpu += (int(fields[11]) + int(fields[12])) / _TICKS
        for line in _lines(proc / str(process) / "status"):
            if line.startswith("VmHWM:"):
                peak += int(line.split()[1]) << 10
    return Usage(cpu, peak)


def busy_seconds(proc: Path = Path("/proc")) -> float:
    """CPU time that all of the machine has spent so far on anything but idling and waiting."""
    user, nice, system, _idle, _wait, *others = (int(field) for field in _lines(proc / "stat")[0].split()[1:9])
    return (user + nice + system + sum(others)) / _TICKS


async def wait_for_rest(patience_s: float, busy: Callable[[], float] = busy_seconds) -> bool:
    """Wait until nobody on this machine computes; False if somebody still does after ``patience_s``.

    Servers may go on polling for a while after their last request, and take a core from whoever comes next.
    """
    for _ in range(max(1, round(patience_s / _REST_S))):
        before = busy()
        await asyncio.sleep(_REST_S)
        if busy() - before < _REST_SHARE * _REST_S:
            return True
    return False


def _stat(proc: Path, process: int) -> list[str] | None:
    """The fields of /proc/PID/stat after the name, which may hold anything."""
    lines = _lines(proc / str(process) / "stat")
    return lines[0].rsplit(")", 1)[1].split() if lines else None


def _processes(proc: Path) -> list[int]:
    return [int(entry.name) for entry in _entries(proc) if entry.name.isdigit()]


def _entries(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir())
    except OSError:
        return []


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
