"""Tiny models in rank processes, and what is seen of such processes from outside."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from radixserve.runtime.plan_runner import PlanRunner, RunnableModel
from radixserve.runtime.tensor_parallel.runner import TensorParallelRunner
from tests.engine.schedules import Bench
from tests.server.process import child_processes
from tests.tiny_decoder import TinyDecoder, tiny_decoder

PATIENCE = 60.0
# Three KV heads, of which two ranks take 2 + 1 and three ranks 1 + 1 + 1; all that a part may or may not have is there once.
MODELS: dict[int, dict[str, Any]] = {
    2: {"architecture": "mistral", "dtype": torch.bfloat16, "tied_head": True},
    3: {"architecture": "qwen3", "dtype": torch.float32, "bias_qkv": True, "bias_o": True, "bias_mlp": True},
}


def ranked_model(ranks: int) -> TinyDecoder:
    """The model that so many ranks are tried with."""
    return tiny_decoder(**MODELS[ranks], num_heads=9, num_kv_heads=3)


def ranked_bench(model: RunnableModel, ranks: int, *, block_size: int, num_blocks: int, **more: Any) -> Bench:
    """A bench over rank processes; its runner is to be closed."""

    def make(model: RunnableModel, num_blocks: int, block_size: int) -> PlanRunner:
        return TensorParallelRunner(model, ranks=ranks, num_blocks=num_blocks, block_size=block_size, threads=1)

    return Bench(model, block_size, num_blocks, make_runner=make, **more)


def rank_processes(of: int | None = None) -> list[int]:
    """Ids of the rank processes that process ``of`` (this one) has started and that run."""
    children = child_processes(of or os.getpid())
    return [pid for pid in children if "radixserve.runtime.tensor_parallel" in _command(pid)]


def alive(pid: int) -> bool:
    """Whether the process still runs; one that ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_gone(pids: Iterable[int]) -> None:
    """Wait until none of them runs."""
    deadline = time.monotonic() + PATIENCE
    while any(alive(pid) for pid in pids):
        assert time.monotonic() < deadline, "a rank process is still there"
        time.sleep(0.01)


def listening_ports() -> set[int]:
    """TCP ports on which this process listens."""
    inodes = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            inodes.add(str(descriptor.readlink()).removeprefix("socket:[").removesuffix("]"))
    connections = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    return {
        int(fields[1].rpartition(":")[2], 16) for fields in connections if fields[3] == "0A" and fields[9] in inodes
    }


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""
