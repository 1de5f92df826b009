"""The process of a rank other than 0: ``python -m radixserve.runtime.tensor_parallel.process SOCKET PULSES DIRECTORY``.

It carries out what comes over the socket (a file descriptor), one order after another, until that ends, and shows in the memory of the
pulses (another) that it does. Standard input is a pipe that rank 0 holds open: when it ends, rank 0 is gone, and so is this process,
whatever it is in the middle of, and the directory in which the ranks found each other.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import NoReturn

import numpy as np
import torch

from radixserve.errors import RankFailed
from radixserve.model.device_weights import DeviceWeights
from radixserve.model.generation_config import GenerationDefaults
from radixserve.runtime.machine import returning_freed_memory
from radixserve.runtime.tensor_parallel.channel import Channel
from radixserve.runtime.tensor_parallel.messages import (
    Check,
    Checked,
    Close,
    Copy,
    Order,
    Pass,
    Poison,
    Raised,
    Ready,
    Setup,
    Started,
    read_array,
)
from radixserve.runtime.tensor_parallel.pulse import Pulse, Pulses, beat_interval
from radixserve.runtime.tensor_parallel.rank_runner import ModelPart, RankRunner
from radixserve.runtime.tensor_parallel.rank_sum import RankSum
from radixserve.runtime.tensor_parallel.shards import cut_model
from radixserve.runtime.tensor_parallel.weights import ReceivedWeights

logger = logging.getLogger(__name__)

_LAST_LOOK_S = 0.2


def main() -> int:
    """Run the process; the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The terminal sends it to all; rank 0 decides.
    directory = sys.argv[3]
    follower = threading.Thread(target=_follow, args=(directory,), name="radixserve-rank-0", daemon=True)
    follower.start()
    channel: Channel[Order] = Channel(socket.socket(fileno=int(sys.argv[1])), Order)
    try:
        setup = channel.receive()
    except EOFError:
        _leave(directory)
    assert isinstance(setup, Setup), "the setup comes first"
    logging.basicConfig(level=setup.log_level, format=f"%(levelname)s rank {setup.rank}: %(message)s")
    pulse = Pulses(int(sys.argv[2]), setup.ranks).of(setup.rank)
    threading.Thread(target=_beat, args=(pulse, setup, directory), name="radixserve-pulse", daemon=True).start()
    try:
        channel.send(Started())
        runner = _build(setup, Path(directory), channel, pulse)
        channel.send(Ready(runner.kv.num_bytes))
        with torch.inference_mode():
            _serve(runner, channel, pulse)
    except (EOFError, ConnectionError):
        _leave(directory)
    except RankFailed as error:
        status = _report(channel, Raised(error.reason, consequence=True))
        # If it is rank 0 that was lost, the follower is about to hear of it, and leaves nothing behind.
        follower.join(_LAST_LOOK_S)
        return status
    except Exception as error:
        logger.exception("the rank cannot go on")
        return _report(channel, Raised(f"{type(error).__name__}: {error}", consequence=False))
    return 0


def _build(setup: Setup, directory: Path, channel: Channel[Order], pulse: Pulse) -> RankRunner:
    """Meet the other ranks, and pack this one's part of the weights."""
    device = torch.device("cpu")
    if setup.device == "cuda":
        device = torch.device("cuda", setup.rank)
        torch.cuda.set_device(device)
    dtype: torch.dtype = getattr(torch, setup.dtype)
    shard = cut_model(setup.model, setup.ranks)[setup.rank]
    rank_sum = RankSum(directory, setup.rank, setup.ranks, device, pulse, ordered=setup.deterministic)
    received = ReceivedWeights(shard.names(setup.model), channel, pulse)
    with returning_freed_memory():
        return RankRunner(
            ModelPart(shard.config(setup.model), DeviceWeights(received, dtype, device), GenerationDefaults()),
            rank_sum,
            draws=False,
            num_blocks=setup.num_blocks,
            block_size=setup.block_size,
            attention=setup.attention,
            threads=setup.threads,
            kv_dtype=None if setup.kv_dtype is None else getattr(torch, setup.kv_dtype),
            deterministic=setup.deterministic,
        )


def _serve(runner: RankRunner, channel: Channel[Order], pulse: Pulse) -> None:
    while True:
        order = channel.receive()
        pulse.move()
        match order:
            case Pass() as step:
                runner.forward(step.batch(runner.device))
            case Copy(pairs):
                runner.kv.copy_blocks(read_array(pairs).reshape(-1, 2).astype(np.int32))
            case Poison(blocks):
                runner.kv.poison(read_array(blocks))
            case Check():
                channel.send(Checked(runner.broken_promises()))
            case Close():
                return
            case other:
                raise AssertionError(f"{other} is out of place")


def _report(channel: Channel[Order], last: Raised) -> int:
    try:
        channel.send(last)
    except ConnectionError:
        return 0
    return 1


def _follow(directory: str) -> None:
    """End with rank 0, as soon as it does."""
    while os.read(0, 4096):
        pass
    _leave(directory)


def _beat(pulse: Pulse, setup: Setup, directory: str) -> None:
    """Show that this process runs; and end with rank 0 where a process that was forked from it keeps the pipe open."""
    while os.getppid() == setup.parent:
        pulse.beat()
        time.sleep(beat_interval(setup.watchdog_timeout_s))
    _leave(directory)


def _leave(directory: str) -> NoReturn:
    """Rank 0 is gone."""
    shutil.rmtree(directory, ignore_errors=True)
    os._exit(1)


if __name__ == "__main__":
    # Nothing is left to be put in order, and torch takes half a second for it.
    os._exit(main())
