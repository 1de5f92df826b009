"""What the GPU's checks stand on: a device or its stand-in, sizes for it, and measured limits."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from bench.gpu_model import LLAMA_1B, LLAMA_TINY, random_model
from radixserve.config import EngineConfig
from radixserve.engine.assembly import Assembly, assemble
from radixserve.messages import FinishReason, SamplingParams
from radixserve.model.config import ModelConfig
from radixserve.model.loader import LoadedModel


class NotHere(Exception):
    """A check says that this device has nothing for it to check."""


@dataclass(frozen=True, slots=True)
class Bed:
    """``device``: where it is checked. ``small``: with sizes for seconds on a CPU."""

    device: torch.device
    small: bool

    @property
    def on_gpu(self) -> bool:
        """Whether this is what the checks are about, or its stand-in."""
        return self.device.type == "cuda"

    @property
    def dtype(self) -> torch.dtype:
        """Of weights, activations and KV."""
        return torch.bfloat16 if self.on_gpu else torch.float32

    def need_gpu(self, why: str) -> None:
        """Raise `NotHere` where there is none."""
        if not self.on_gpu:
            raise NotHere(why)

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.on_gpu:
            torch.cuda.synchronize(self.device)

    def seconds(self, run: Callable[[], object], times: int = 10, warm_ups: int = 3) -> float:
        """The median time of ``run``, until the device has done what it asked for."""
        for _ in range(warm_ups):
            run()
        found = []
        for _ in range(times):
            self.synchronize()
            began = time.perf_counter()
            run()
            self.synchronize()
            found.append(time.perf_counter() - began)
        return statistics.median(found)

    def model(self, *, tiny: bool = False) -> LoadedModel:
        """The model that is served, or the one that a CPU can follow."""
        return random_model(self.config(tiny=tiny), self.dtype, self.device)

    def config(self, *, tiny: bool = False) -> ModelConfig:
        """The shapes of `model`."""
        return LLAMA_TINY if tiny or self.small else LLAMA_1B

    def assembly(self, *, tiny: bool = False, **options: Any) -> Assembly:
        """An engine's core on `model`, as ``options`` want it."""
        # The GPU's numbers are those of a machine that serves nothing else, so all of its memory is not needed.
        settings: dict[str, Any] = {"device": self.device.type, "dtype": str(self.dtype).removeprefix("torch.")}
        settings |= {"num_blocks": 600 if self.small else 8192}
        if not self.on_gpu:
            settings |= {"kernels": "torch", "threads": 1}
        return assemble(self.model(tiny=tiny), EngineConfig.from_options(**{**settings, **options}))


@dataclass(frozen=True, slots=True)
class Limits:
    """What the device was measured to do: ``bytes_s`` of copies, read and written; ``flops_s`` of a large product."""

    bytes_s: float
    flops_s: float


@functools.cache
def measured_limits(bed: Bed) -> Limits:
    """A copy and a square product, large enough that launching them is nothing; random numbers, as zeros take less power."""
    size = (1 << 22) if bed.small else (1 << 30)
    source = torch.randint(0, 255, (size,), dtype=torch.uint8, device=bed.device)
    target = torch.empty_like(source)
    copy = bed.seconds(lambda: target.copy_(source))
    side = 256 if bed.small else 8192
    one, other = (torch.randn(side, side, device=bed.device).to(bed.dtype) for _ in range(2))
    product = bed.seconds(lambda: one @ other)
    return Limits(2 * size / copy, 2 * side**3 / product)


@dataclass(frozen=True, slots=True)
class Job:
    """A request: its prompt, how many tokens it is to bring, and how they are drawn where they are not greedy."""

    prompt: list[int]
    tokens: int
    sampling: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Run:
    """What a core did with its jobs. ``arrivals``: seconds at which each job's tokens came, since all were queued."""

    outputs: list[tuple[int, ...]]
    logprobs: list[tuple[float, ...]]
    arrivals: list[list[float]]
    seconds: float

    def gaps_ms(self, job: int) -> list[float]:
        """Between a job's tokens."""
        return [1000 * float(each) for each in np.diff(self.arrivals[job])]


def run_jobs(
    assembly: Assembly, jobs: list[Job], *, logprobs: bool = False, later: dict[int, int] | None = None
) -> Run:
    """All at once; ``later``: how many steps a job of that index waits before it is queued."""
    core = assembly.core
    waiting = dict(later or {})
    outputs: list[list[int]] = [[] for _ in jobs]
    values: list[list[float]] = [[] for _ in jobs]
    arrivals: list[list[float]] = [[] for _ in jobs]
    sampling = [
        SamplingParams(
            **{
                "temperature": 0.0,
                "seed": index,
                "max_tokens": job.tokens,
                "ignore_eos": True,
                "logprobs": 0 if logprobs else None,
                **job.sampling,
            }
        )
        for index, job in enumerate(jobs)
    ]
    began, steps = time.perf_counter(), 0
    for index, job in enumerate(jobs):
        if index not in waiting:
            core.add(str(index), job.prompt, sampling[index])
    while core.has_work or waiting:
        for index in [index for index, due in waiting.items() if due <= steps]:
            del waiting[index]
            core.add(str(index), jobs[index].prompt, sampling[index])
        for chunk in core.step():
            index = int(chunk.rid)
            if chunk.finish_reason is FinishReason.ERROR:
                raise RuntimeError(f"job {index} ended in an error: {chunk.output}")
            outputs[index] += chunk.token_ids
            values[index] += [each.logprob for each in chunk.logprobs]
            arrivals[index] += [time.perf_counter() - began] * len(chunk.token_ids)
        steps += 1
    return Run(
        [tuple(each) for each in outputs],
        [tuple(each) for each in values],
        arrivals,
        time.perf_counter() - began,
    )


def prompts(count: int, shared: int, own: int, vocab_size: int, seed: int = 0) -> list[list[int]]:
    """Random prompts of ``shared`` tokens that all begin with and ``own`` that are each one's."""
    rng = np.random.default_rng(seed)
    trunk = rng.integers(1, vocab_size, shared).tolist()
    return [trunk + rng.integers(1, vocab_size, own).tolist() for _ in range(count)]
