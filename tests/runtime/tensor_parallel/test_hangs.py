"""Ranks that stop, and ranks that are lost where nothing tells of it: who waits is told in bounded time, and nothing is left."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from radixserve.errors import EngineClosed, RankFailed
from radixserve.runtime.tensor_parallel import rank_processes as rank_processes_module
from radixserve.runtime.tensor_parallel import watchdog as watchdog_module
from radixserve.runtime.tensor_parallel.channel import Channel
from radixserve.runtime.tensor_parallel.messages import Report, Setup, Started
from radixserve.runtime.tensor_parallel.pulse import pulse_memory
from radixserve.runtime.tensor_parallel.rank_processes import RankProcesses
from radixserve.runtime.tensor_parallel.rank_sum import RankSum
from radixserve.runtime.tensor_parallel.runner import TensorParallelRunner
from radixserve.scheduler.plan import StepPlan
from tests.runtime.tensor_parallel.ranks import alive, listening_ports, rank_processes, ranked_model, wait_gone
from tests.tiny_decoder import plan_row

PROCESS = "radixserve.runtime.tensor_parallel.process"
# Long enough for ranks to start and step on a machine that is busy with other things; made short when one is to hang.
STARTING_S = 8.0
HANGING_S = 1.7
PATIENCE = 30.0


@pytest.fixture
def runner() -> Iterator[TensorParallelRunner]:
    runner = two_ranks(STARTING_S)
    one_step(runner)
    # Without a watchdog the tests would not fail but wait.
    rescue = threading.Timer(PATIENCE, os.kill, (runner.pids[0], signal.SIGKILL))
    rescue.start()
    yield runner
    rescue.cancel()
    runner.close()
    assert not any(alive(pid) for pid in runner.pids)


def two_ranks(timeout_s: float) -> TensorParallelRunner:
    return TensorParallelRunner(
        ranked_model(2), ranks=2, num_blocks=8, block_size=16, threads=1, watchdog_timeout_s=timeout_s
    )


def one_step(runner: TensorParallelRunner) -> None:
    runner.execute(StepPlan(0, (plan_row([1, 2, 3], [0]),)))


def hurry(runner: TensorParallelRunner) -> None:
    runner._processes.watchdog._timeout_s = HANGING_S


def test_a_rank_that_is_stopped_fails_the_step_that_waits_for_it(runner: TensorParallelRunner) -> None:
    os.kill(runner.pids[0], signal.SIGSTOP)
    hurry(runner)
    for _ in range(2):
        with pytest.raises(RankFailed, match=r"^rank 1 has given no sign of life for 1.7 s \(watchdog_timeout_s\)$"):
            one_step(runner)
    assert not any(alive(pid) for pid in runner.pids)


def test_a_rank_that_is_stopped_in_a_pause_is_told(runner: TensorParallelRunner) -> None:
    told = threading.Event()
    found: list[RankFailed] = []

    def lost(error: RankFailed) -> None:
        found.append(error)
        told.set()

    runner.when_lost(lost)
    os.kill(runner.pids[0], signal.SIGSTOP)
    hurry(runner)
    assert told.wait(PATIENCE)
    assert found[0].rank == 1 and "no sign of life" in str(found[0])
    with pytest.raises(RankFailed, match=r"^rank 1 has given no sign of life"):
        one_step(runner)


def test_a_rank_that_lives_and_does_not_get_on_fails_the_step(
    runner: TensorParallelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner._processes, "send", lambda order: None)
    hurry(runner)
    with pytest.raises(RankFailed, match=r"^rank 1 has not gone on for 1.7 s \(watchdog_timeout_s\)$") as error:
        one_step(runner)
    assert error.value.rank == 1


def test_closing_ends_a_rank_that_is_stopped_and_keeps_no_port(
    runner: TensorParallelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_processes_module, "_FAREWELL_S", 0.2)
    os.kill(runner.pids[0], signal.SIGSTOP)
    # Other runners of this process may have theirs.
    ports = listening_ports()
    runner.close()
    assert len(listening_ports()) == len(ports) - 1
    assert not any(alive(pid) for pid in runner.pids)
    with pytest.raises(EngineClosed):
        one_step(runner)


def test_a_process_that_never_shows_a_sign_of_life_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 600\n")
    python.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(python))
    monkeypatch.setattr(watchdog_module, "STARTING_S", 0.2)
    with pytest.raises(RankFailed, match=r"^rank 1 has given no sign of life for 0.2 s"):
        two_ranks(0.1)


def test_a_rank_that_dies_before_the_ranks_have_met_is_missed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(rank_processes())
    never = threading.Event()

    def meet(*arguments: object, **more: object) -> RankSum:
        for pid in set(rank_processes()) - before:
            os.kill(pid, signal.SIGKILL)
        never.wait(PATIENCE)
        raise RuntimeError("the store was waited for to the end")

    monkeypatch.setattr("radixserve.runtime.tensor_parallel.runner.RankSum", meet)
    try:
        with pytest.raises(RankFailed, match=r"^rank 1 was killed by SIGKILL$"):
            two_ranks(STARTING_S)
    finally:
        never.set()
    assert set(rank_processes()) == before


def test_ranks_that_cannot_be_started_are_told_and_none_is_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = set(rank_processes())
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    start = RankProcesses._start

    def second_fails(self: RankProcesses, setup: Setup, memory: int) -> None:
        if setup.rank == 2:
            raise OSError(24, "Too many open files")
        start(self, setup, memory)

    monkeypatch.setattr(RankProcesses, "_start", second_fails)
    with pytest.raises(RankFailed, match=r"a rank cannot be started: .*Too many open files"):
        TensorParallelRunner(ranked_model(3), ranks=3, num_blocks=8, block_size=16, threads=1)
    assert set(rank_processes()) == before and not list(tmp_path.iterdir())


def setup_of(parent: int) -> Setup:
    return Setup(
        rank=1,
        ranks=2,
        parent=parent,
        watchdog_timeout_s=0.5,
        model=ranked_model(2).config,
        dtype="float32",
        device="cpu",
        num_blocks=8,
        block_size=16,
        attention="auto",
        threads=1,
        kv_dtype=None,
        deterministic=False,
        log_level=30,
    )


def test_a_rank_ends_with_rank_0_though_a_fork_of_it_keeps_the_pipe_open(tmp_path: Path) -> None:
    """A small process stands for rank 0; this one, as if it was forked from that, holds the other ends of what the rank has."""
    directory = tmp_path / "meeting"
    directory.mkdir()
    ours, theirs = socket.socketpair()
    channel: Channel[Report] = Channel(ours, Report)
    starts = "import subprocess, sys; print(subprocess.Popen(sys.argv[1:], close_fds=False).pid, flush=True); sys.stdin.read()"
    with theirs, pulse_memory(2) as memory:
        rank_0 = subprocess.Popen(
            [sys.executable, "-S", "-c", starts, *rank_command(theirs, memory, directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[theirs.fileno(), memory],
        )
    assert rank_0.stdin is not None and rank_0.stdout is not None
    with rank_0.stdin, rank_0.stdout:
        rank = int(rank_0.stdout.readline())
        channel.send(setup_of(rank_0.pid))
        assert channel.receive() == Started()
        rank_0.kill()
        rank_0.wait()
        wait_gone([rank])
    assert not directory.exists()
    channel.close()


def test_a_rank_whose_rank_0_is_gone_before_it_said_anything_leaves_nothing(tmp_path: Path) -> None:
    directory = tmp_path / "meeting"
    directory.mkdir()
    ours, theirs = socket.socketpair()
    ours.close()
    with theirs, pulse_memory(2) as memory:
        command = rank_command(theirs, memory, directory)
        pass_fds = [theirs.fileno(), memory]
        rank = subprocess.run(command, stdin=subprocess.DEVNULL, pass_fds=pass_fds, check=False)
    assert rank.returncode == 1 and not directory.exists()


def rank_command(connection: socket.socket, memory: int, directory: Path) -> list[str]:
    return [sys.executable, "-m", PROCESS, str(connection.fileno()), str(memory), str(directory)]
