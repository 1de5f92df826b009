"""Copies between the host and a device that nobody waits for.

A plain copy of host memory to a GPU waits until all that was enqueued there has run, and the host cannot enqueue the next step
meanwhile. From and to pinned memory it does not. Torch gives such memory to nobody else before the copy has run.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch


def on_device(array: npt.NDArray[np.generic[Any]], device: torch.device) -> torch.Tensor:
    """``array`` where what is enqueued from now on reads it; on a CPU its own memory."""
    tensor = torch.from_numpy(array)
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that is there once all that is enqueued by now has run; on a CPU ``tensor`` itself."""
    if tensor.device.type == "cpu":
        return tensor
    host = torch.empty_like(tensor, device="cpu", pin_memory=True)
    return host.copy_(tensor, non_blocking=True)
