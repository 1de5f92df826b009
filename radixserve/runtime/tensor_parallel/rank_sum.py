"""The sum over all ranks that ends every attention and every feed-forward block."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from radixserve.errors import ConfigError, RankFailed
from radixserve.runtime.tensor_parallel.pulse import Pulse

# Torch's own stubs know few of its names.
distributed: Any = torch.distributed

# For the ranks to find each other, once all are known to run.
MEETING = timedelta(seconds=60)
# The watchdog decides how late a rank may be; where it cannot any more, since rank 0 hangs itself, this ends a sum.
PATIENCE = timedelta(days=1)
LOOPBACK = "127.0.0.1"
_BATCH_SIZES = (1, 2, 3, 5, 16, 7, 33, 64, 95)
_ROWS = 128


class RankSum:
    """Sums tensors of one shape over all ranks, who all must call it in the same order.

    On a CPU the parts are gathered and added here, in float32 and in ascending order of rank. A reduction of the library would not
    do: it adds in an order that depends on an element's place, which for three ranks and more changes its bits with the size of
    the batch. (Of two ranks the order is no matter, but one way is enough.) On GPUs it is NCCL's reduction, unless ``ordered`` asks
    for the same there.

    No process group of torch's own bookkeeping: several engines in one process do not get into each other's way.
    """

    def __init__(
        self, directory: Path, rank: int, ranks: int, device: torch.device, pulse: Pulse, *, ordered: bool = False
    ) -> None:
        """Meets the other ranks through a file in ``directory``; blocks until all are there. Raises `RankFailed`.

        ``pulse``: where it is seen how far this rank is.
        """
        self._rank = rank
        self._ranks = ranks
        self._device = device
        self._pulse = pulse
        self._on_cpu = device.type == "cpu"
        self._ordered = ordered or self._on_cpu
        store = distributed.FileStore(str(directory / "ranks"), ranks)
        store.set_timeout(MEETING)
        try:
            self._group: Any = _gloo(store, rank, ranks) if self._on_cpu else _nccl(store, rank, ranks, device)
        except RuntimeError as error:
            raise RankFailed(None, f"the ranks did not meet: {error}") from error

    def __call__(self, part: torch.Tensor) -> torch.Tensor:
        """The sum: float32 on a CPU, of the type of ``part`` on a GPU, and perhaps in its memory. Raises `RankFailed`."""
        self._pulse.begin_sum()
        try:
            if not self._ordered:
                self._group.allreduce([part]).wait()
                self._pulse.move()
                return part
            part = part.contiguous()
            gathered = torch.empty((self._ranks, *part.shape), dtype=part.dtype, device=self._device)
            # As bytes: they are copied, whatever the library can compute with.
            self._group.allgather([list(gathered.view(torch.uint8).unbind())], [part.view(torch.uint8)]).wait()
        except RuntimeError as error:
            raise RankFailed(None, f"a sum over the ranks was not completed: {error}") from error
        self._pulse.move()
        total = gathered[0].float()
        for other in gathered[1:]:
            total = total + other
        return total if self._on_cpu else total.to(part.dtype)

    def broken_promises(self, width: int, dtype: torch.dtype) -> list[str]:
        """Tries whether rows [``width``] of ``dtype`` are added up with the same bits at every batch size; all ranks do it at once."""
        generator = torch.Generator().manual_seed(3 + self._rank)
        part = torch.randn(_ROWS, width, generator=generator).to(self._device, dtype)
        whole = self(part.clone())
        # All sizes on every rank, whatever comes out: the others wait.
        differing = [rows for rows in _BATCH_SIZES if not torch.equal(self(part[:rows].clone()), whole[:rows])]
        return [f"the sum over the ranks gives a row other bits among {rows} rows" for rows in differing[:1]]

    def abort(self) -> None:
        """Wake who waits on a GPU for a rank that is gone. On a CPU the connection's end does."""
        if not self._on_cpu:
            self._group.abort()

    def close(self) -> None:
        """Give back the port that is listened on as long as the ranks are connected. No sum is asked for afterwards."""
        if self._on_cpu:
            self._group = None


def require_sums(device: torch.device) -> None:
    """Raise `ConfigError` where this build of torch cannot sum over processes on ``device``."""
    library = "gloo" if device.type == "cpu" else "nccl"
    if not (distributed.is_available() and getattr(distributed, f"is_{library}_available")()):
        raise ConfigError("tensor_parallel_size", f"this build of torch comes without {library}, which sums over ranks")


def _gloo(store: Any, rank: int, ranks: int) -> Any:
    options = distributed.ProcessGroupGloo._Options()
    options._timeout = MEETING
    # Otherwise it listens on the address that the machine's name stands for.
    options._devices = [distributed.ProcessGroupGloo.create_device(hostname=LOOPBACK)]
    group = distributed.ProcessGroupGloo(store, rank, ranks, options)
    group._set_default_timeout(PATIENCE)
    return group


def _nccl(store: Any, rank: int, ranks: int, device: torch.device) -> Any:
    # No other way than this tells it to stay on this machine.
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    options = distributed.ProcessGroupNCCL.Options()
    options._timeout = PATIENCE
    group = distributed.ProcessGroupNCCL(store, rank, ranks, options)
    # The communicator is made by the first call, and who is missing should be missed here.
    group.allreduce([torch.zeros(1, device=device)]).wait()
    torch.cuda.synchronize(device)
    return group
