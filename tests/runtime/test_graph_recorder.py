"""The recorder on torch's CUDA graphs, over stand-ins with the signatures of the installed torch."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from radixserve.runtime.device_start import CudaMemory
from radixserve.runtime.graph_recorder import WARM_UPS, CudaGraphRecorder

DEVICE = torch.device("cuda")


class Cuda:
    """What happened, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[str] = []
        self.captured: list[dict[str, Any]] = []
        signature = inspect.signature(torch.cuda.graph.__init__)
        cuda = self

        class Stream:
            def __init__(self, name: Any = None) -> None:
                self.name = "side" if name is DEVICE else "main"

            def wait_stream(self, other: Stream) -> None:
                cuda.log.append(f"{self.name} waits for {other.name}")

        class Graph:
            def replay(self) -> None:
                cuda.log.append("replay")

        @contextmanager
        def stream(stream: Stream) -> Iterator[None]:
            cuda.log.append(f"on {stream.name}")
            yield
            cuda.log.append("off")

        @contextmanager
        def graph(*arguments: Any, **options: Any) -> Iterator[None]:
            cuda.captured.append(signature.bind(None, *arguments, **options).arguments)
            cuda.log.append("capture")
            yield
            cuda.log.append("captured")

        values: dict[str, Any] = {
            "Stream": Stream,
            "CUDAGraph": Graph,
            "stream": stream,
            "graph": graph,
            "current_stream": lambda device: Stream(),
            "graph_pool_handle": lambda: (0, 1),
            "synchronize": lambda device: self.log.append("synchronize"),
            "empty_cache": lambda: self.log.append("empty"),
            "mem_get_info": lambda device: (300, 1000),
            "reset_peak_memory_stats": lambda device: self.log.append("reset"),
            "memory_allocated": lambda device: 40,
            "max_memory_allocated": lambda device: 90,
        }
        for name, value in values.items():
            monkeypatch.setattr(torch.cuda, name, value)


def test_a_step_is_warmed_up_beside_and_captured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = Cuda(monkeypatch)
    recorder = CudaGraphRecorder(DEVICE)
    results = iter(range(10))

    def step() -> torch.Tensor:
        cuda.log.append("step")
        return torch.tensor(next(results))

    recording = recorder.record(step)
    assert cuda.log == [
        *("side waits for main", "on side", *["step"] * WARM_UPS, "off", "main waits for side"),
        *("capture", "step", "captured"),
    ]
    # What the capture computed is what every replay fills.
    assert int(recording.replay()) == WARM_UPS and cuda.log[-1] == "replay"
    recorder.record(step)
    assert [each["pool"] for each in cuda.captured] == [(0, 1)] * 2, "graphs share their memory"
    assert cuda.captured[0]["capture_error_mode"] == "thread_local"


def test_memory_is_counted_when_all_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = Cuda(monkeypatch)
    assert CudaGraphRecorder(DEVICE).used_bytes() == 700 and cuda.log == ["synchronize", "empty"]
    memory = CudaMemory(DEVICE)
    cuda.log.clear()
    assert (memory.allocated(), memory.peak(), memory.free()) == (40, 90, 300)
    assert cuda.log == ["reset", "synchronize", "synchronize", "empty"]
