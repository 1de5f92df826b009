from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from radixserve.bench.processes import Usage, busy_seconds, listener, usage_below, wait_for_rest

TICKS = os.sysconf("SC_CLK_TCK")


def process(proc: Path, pid: int, parent: int, user: int, system: int, peak_kb: int) -> None:
    (proc / str(pid) / "fd").mkdir(parents=True)
    fields = ["S", str(parent), *["0"] * 9, str(user), str(system), "0"]
    (proc / str(pid) / "stat").write_text(f"{pid} (a (strange) name) {' '.join(fields)}\n")
    (proc / str(pid) / "status").write_text(f"Name:\tx\nVmHWM:\t{peak_kb} kB\n")


def test_a_tree_of_processes_is_added_up(tmp_path: Path) -> None:
    process(tmp_path, 10, 1, TICKS, TICKS, 100)
    process(tmp_path, 11, 10, 2 * TICKS, 0, 50)
    process(tmp_path, 12, 11, 4 * TICKS, 0, 25)
    process(tmp_path, 20, 1, 100 * TICKS, 0, 1000)
    assert usage_below(10, tmp_path) == Usage(8.0, 175 << 10)
    assert usage_below(99, tmp_path) == Usage()
    assert usage_below(None, tmp_path) == Usage()


def test_the_listener_of_a_port_is_found(tmp_path: Path) -> None:
    process(tmp_path, 10, 1, 0, 0, 0)
    process(tmp_path, 11, 1, 0, 0, 0)
    (tmp_path / "net").mkdir()
    line = "  {}: 0100007F:{:04X} 00000000:0000 {} 0:0 00:0 0 0 0 {} 1\n"
    table = "head\n" + line.format(0, 8000, "01", 70) + line.format(1, 8000, "0A", 77) + line.format(2, 8001, "0A", 78)
    (tmp_path / "net" / "tcp").write_text(table)
    (tmp_path / "11" / "fd" / "3").symlink_to("socket:[77]")
    (tmp_path / "10" / "fd" / "3").symlink_to("socket:[70]")
    assert listener(8000, tmp_path) == 11
    assert listener(8001, tmp_path) is None, "its process is not to be seen"
    assert listener(9, tmp_path) is None


def test_this_machine_can_be_read() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert listener(server.getsockname()[1]) == os.getpid()
    assert usage_below(os.getpid()).peak_bytes > 1 << 20
    assert busy_seconds() > 0


def test_idle_and_waiting_time_is_not_busy(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text(f"cpu  {TICKS} {TICKS} {TICKS} {900 * TICKS} {90 * TICKS} {TICKS} 0 {TICKS} 7 7\n")
    assert busy_seconds(tmp_path) == 5.0


def test_rest_is_waited_for_as_long_as_somebody_polls() -> None:
    # A core that polls for two looks and then rests; each look reads the time twice.
    readings = iter([0.0, 0.01, 0.01, 0.02, 0.02, 0.0201])
    assert asyncio.run(wait_for_rest(1.0, lambda: next(readings)))
    assert next(readings, None) is None, "rest is noticed at the third look, not before"


def test_a_machine_that_never_rests_is_not_waited_for_without_end() -> None:
    def polling() -> Iterator[float]:
        spent = 0.0
        while True:
            yield spent
            spent += 0.01

    readings = polling()
    assert not asyncio.run(wait_for_rest(0.05, lambda: next(readings)))
