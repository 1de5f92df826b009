"""What a runner on a GPU does once before it serves: it runs the largest step, takes what is left for KV, and captures graphs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from radixserve.attention.flashinfer.backend import FlashInferAttention
from radixserve.attention.flashinfer.cascade import CascadeCost
from radixserve.config import EngineConfig, ModelOptions
from radixserve.messages import SamplingParams
from radixserve.runtime.graph_recorder import CudaGraphRecorder, GraphRecorder
from radixserve.runtime.model_runner import ModelRunner
from radixserve.scheduler.plan import PlanRow, StepPlan

# Of the memory that is free, this much is not counted on: other processes, and pieces between allocations.
SPARE_SHARE = 0.1
GRAPH_MEMORY_MB = 1024


class DeviceMemory(Protocol):
    """Memory of a device in bytes."""

    def free(self) -> int:
        """What could still be allocated, what torch only keeps for later included."""

    def allocated(self) -> int:
        """What tensors take; the peak counts from here."""

    def peak(self) -> int:
        """The most that tensors took at once since `allocated` was asked for last."""


class CudaMemory:
    """`DeviceMemory` of a GPU, as torch's allocator and the driver count it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def free(self) -> int:
        """See `DeviceMemory`."""
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(self._device)[0]

    def allocated(self) -> int:
        """See `DeviceMemory`."""
        torch.cuda.reset_peak_memory_stats(self._device)
        return torch.cuda.memory_allocated(self._device)

    def peak(self) -> int:
        """See `DeviceMemory`."""
        torch.cuda.synchronize(self._device)
        return torch.cuda.max_memory_allocated(self._device)


@dataclass(frozen=True, slots=True)
class StepLimits:
    """``tokens``, ``rows``: of a step at most. ``context_length``: of a row, in tokens. ``block_size``: tokens of a block."""

    tokens: int
    rows: int
    context_length: int
    block_size: int

    @classmethod
    def of(cls, config: EngineConfig, context_length: int) -> StepLimits:
        """``context_length``: the model's own."""
        scheduler = config.scheduler
        longest = min(context_length, config.model.context_length or context_length)
        return cls(
            # A prompt that is not cut is computed whole, beyond the budget.
            tokens=scheduler.max_batch_tokens + (0 if scheduler.chunked_prefill else longest),
            rows=scheduler.max_running,
            context_length=longest,
            block_size=config.cache.block_size,
        )

    @property
    def blocks(self) -> int:
        """Blocks that the largest step needs, those of its tokens and those that its rows may copy, and at least what `decodes` does."""
        return max(3, self.rows * (-(-self.row_tokens // self.block_size) + 1))

    @property
    def row_tokens(self) -> int:
        """Tokens of a row where they are shared out evenly."""
        return -(-self.tokens // self.rows)


def largest_step(limits: StepLimits) -> StepPlan:
    """A step of as many tokens, rows and copies as there can be in one, over `StepLimits.blocks` blocks.

    Every row draws from all of its logits, sorted: what takes most memory.
    """
    each = -(-limits.row_tokens // limits.block_size)
    rows, left = [], limits.tokens
    for index in range(limits.rows):
        count = min(left, limits.row_tokens)
        if count == 0:
            break
        rows.append(
            PlanRow(
                rid=str(index),
                start=0,
                tokens=np.zeros(count, np.int32),
                table=np.arange(index * each, index * each + -(-count // limits.block_size), dtype=np.int32),
                sampling=SamplingParams(temperature=1.0, top_p=0.9),
                seed=index,
                num_prompt=count,
                num_samples=1,
            )
        )
        left -= count
    spare = limits.rows * each + np.arange(limits.rows)
    copies = np.stack((np.arange(limits.rows) * each, spare), 1).astype(np.int32)
    return StepPlan(0, tuple(rows), copies)


def decodes(limits: StepLimits) -> StepPlan:
    """Two decodes that share a block, drawn from a few of their largest logits."""
    rows = (
        PlanRow(
            rid=str(index),
            start=limits.block_size,
            tokens=np.zeros(1, np.int32),
            table=np.array([0, 1 + index], np.int32),
            sampling=SamplingParams(temperature=1.0, top_k=20),
            seed=0,
            num_prompt=limits.block_size + 1,
            num_samples=1,
        )
        for index in range(2)
    )
    return StepPlan(0, tuple(rows))


def load_kernels(runner: ModelRunner, limits: StepLimits) -> None:
    """Run steps that take other kernels than the largest: decodes, and decodes in a cascade.

    Where kernels have to be compiled that takes minutes, and no request should wait for it.
    """
    plan, attention = decodes(limits), runner.attention
    runner.execute(plan)
    if isinstance(attention, FlashInferAttention):
        cost = attention.cost
        attention.cost = CascadeCost(cost.page, token=0, level=0)
        try:
            runner.execute(plan)
        finally:
            attention.cost = cost


def memory_for_kv(runner: ModelRunner, limits: StepLimits, memory: DeviceMemory, reserved: int) -> int:
    """Bytes that are left for KV beside the model, its largest step, which is run here, and ``reserved``; may be negative.

    The runner has a pool of `StepLimits.blocks` blocks, whose memory is counted as free. What kernels and libraries take for
    themselves once they are loaded is missing in what is free afterwards.
    """
    plan = largest_step(limits)
    before = memory.allocated()
    runner.execute(plan)
    load_kernels(runner, limits)
    step = memory.peak() - before
    free = memory.free() + runner.kv.num_bytes
    return int(free * (1 - SPARE_SHARE)) - step - reserved


def start(
    runner: ModelRunner,
    limits: StepLimits,
    *,
    pool_blocks: Callable[[int], int],
    memory: DeviceMemory,
    graph_rows: int,
    graph_bytes: int,
    recorder: GraphRecorder | None,
) -> int:
    """Give the runner its pool and its graphs. The number of blocks that the pool may give out.

    ``pool_blocks``: how many blocks there are to be, given the bytes that are left for them. ``recorder``: None captures nothing; otherwise
    decodes of up to ``graph_rows`` rows are captured, in ``graph_bytes`` at most. Raises `ConfigError` as ``pool_blocks`` and
    `DecodeGraphs` do.
    """
    reserved = 0 if recorder is None else graph_bytes + runner.kv.block_bytes
    num_blocks = pool_blocks(memory_for_kv(runner, limits, memory, reserved))
    runner.allocate(num_blocks, spare=recorder is not None)
    if recorder is not None:
        runner.capture(graph_rows, limits.context_length, graph_bytes, recorder)
    return num_blocks


def start_on_gpu(
    runner: ModelRunner, limits: StepLimits, options: ModelOptions, pool_blocks: Callable[[int], int]
) -> int:
    """`start` on the runner's own GPU, as ``options`` want it."""
    captured = options.cuda_graph != "off"
    return start(
        runner,
        limits,
        pool_blocks=pool_blocks,
        memory=CudaMemory(runner.device),
        graph_rows=min(limits.rows, options.cuda_graph_max_bs or limits.rows),
        graph_bytes=(options.cuda_graph_memory_mb or GRAPH_MEMORY_MB) << 20,
        recorder=CudaGraphRecorder(runner.device) if captured else None,
    )
