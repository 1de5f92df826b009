"""The seam to CUDA graphs: a step's kernels recorded once and launched together afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

WARM_UPS = 2


class Recording(Protocol):
    """A recorded step. It reads and writes the memory that it was recorded with."""

    def replay(self) -> torch.Tensor:
        """Run it again; its result lies where it lay the last time, until the next recording of its recorder is replayed."""


class GraphRecorder(Protocol):
    """Records steps one after the other, which share the memory of what they hold inside: one is replayed at a time."""

    def record(self, step: Callable[[], torch.Tensor]) -> Recording:
        """Record what ``step`` launches. It is also run, before and perhaps more than once, and must not mind."""

    def used_bytes(self) -> int:
        """Bytes of the device's memory that are in use, whoever uses them; what nothing holds any more is given back first."""


class CudaGraphRecorder:
    """`GraphRecorder` on torch's CUDA graphs."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, step: Callable[[], torch.Tensor]) -> Recording:
        """See `GraphRecorder`. The runs before load kernels and make libraries allocate what they keep, which a capture cannot."""
        stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                step()
        torch.cuda.current_stream(self._device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # Other threads of the process may go on using the device meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"):
            result = step()
        return _CudaRecording(graph, result)

    def used_bytes(self) -> int:
        """See `GraphRecorder`."""
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(self._device)
        return total - free


class _CudaRecording:
    def __init__(self, graph: torch.cuda.CUDAGraph, result: torch.Tensor) -> None:
        self._graph = graph
        self._result = result

    def replay(self) -> torch.Tensor:
        self._graph.replay()
        return self._result
