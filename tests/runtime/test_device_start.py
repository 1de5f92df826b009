"""What a runner does once before it serves, its device's memory counted by a fake."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest
import torch

from radixserve.config import EngineConfig
from radixserve.errors import ConfigError
from radixserve.runtime import device_start
from radixserve.runtime.device_start import SPARE_SHARE, StepLimits, decodes, largest_step, memory_for_kv, start
from radixserve.runtime.kv_store import KVStore, create_kv_store
from radixserve.runtime.model_runner import ModelRunner
from tests.tiny_decoder import tiny_decoder


class Memory:
    """A device of 1,000,000 free bytes on which the step between `allocated` and `peak` takes 70,000."""

    def __init__(self, runner: ModelRunner) -> None:
        self.runner = runner
        self.asked: list[str] = []
        self.poisoned = 0

    def free(self) -> int:
        self.asked.append("free")
        return 1_000_000 - self.runner.kv.num_bytes

    def allocated(self) -> int:
        self.asked.append("allocated")
        self.runner.kv.poison(np.arange(self.runner.kv.num_blocks))
        return 5_000

    def peak(self) -> int:
        self.asked.append("peak")
        self.poisoned = int(self.runner.kv.keys(0).isnan().flatten(1).all(1).sum())
        return 75_000


def runner_of(limits: StepLimits) -> ModelRunner:
    return ModelRunner(tiny_decoder("llama"), num_blocks=limits.blocks, block_size=limits.block_size, threads=1)


def test_limits_are_those_of_the_options() -> None:
    config = EngineConfig.from_options(max_batch_tokens=100, max_running=7, block_size=32, context_length=50)
    assert StepLimits.of(config, 4096) == StepLimits(100, 7, 50, 32)
    assert StepLimits.of(EngineConfig(), 4096).context_length == 4096
    whole = EngineConfig.from_options(max_batch_tokens=100, chunked_prefill=False, context_length=50)
    assert StepLimits.of(whole, 4096).tokens == 150, "a prompt that is not cut goes beyond the budget"


@pytest.mark.parametrize("limits", [StepLimits(100, 7, 64, 16), StepLimits(8, 8, 64, 16), StepLimits(33, 32, 64, 4)])
def test_the_largest_step_is_as_large_as_a_step_can_be(limits: StepLimits) -> None:
    plan = largest_step(limits)
    assert plan.num_tokens == limits.tokens and len(plan.rows) <= limits.rows and len(plan.copies) == limits.rows
    blocks = np.concatenate([*(row.table for row in plan.rows), plan.copies[:, 1]])
    assert len(set(blocks.tolist())) == len(blocks) and blocks.max() < limits.blocks
    assert set(plan.copies[:, 0].tolist()).isdisjoint(plan.copies[:, 1].tolist())
    assert all(row.num_samples == 1 and len(row.table) * limits.block_size >= row.end for row in plan.rows)


def test_the_pool_is_what_the_largest_step_leaves() -> None:
    limits = StepLimits(tokens=40, rows=4, context_length=64, block_size=16)
    runner = runner_of(limits)
    memory = Memory(runner)
    left = memory_for_kv(runner, limits, memory, 3_000)
    assert left == int(1_000_000 * (1 - SPARE_SHARE)) - 70_000 - 3_000
    assert memory.asked == ["allocated", "peak", "free"]
    # It was run: only what copies alone wrote to still holds what was there before.
    assert memory.poisoned == limits.rows
    assert decodes(StepLimits(1, 1, 64, 16)).num_tokens == 2 and StepLimits(1, 1, 64, 16).blocks == 3


def test_start_gives_the_runner_its_pool() -> None:
    limits = StepLimits(tokens=40, rows=4, context_length=64, block_size=16)
    runner = runner_of(limits)
    block_bytes = runner.kv.block_bytes
    found = start(
        runner,
        limits,
        pool_blocks=lambda memory: memory // block_bytes,
        memory=Memory(runner),
        graph_rows=4,
        graph_bytes=0,
        recorder=None,
    )
    assert found == (900_000 - 70_000) // block_bytes == runner.kv.num_blocks
    assert runner.graphs is None


def test_a_spare_block_is_not_the_pools() -> None:
    runner = runner_of(StepLimits(8, 2, 64, 16))
    runner.allocate(9, spare=True)
    assert runner.kv.num_blocks == 10
    assert runner.kv.keys(0).shape[0] == 10 and runner.kv.keys(0).dtype == torch.float32


def test_there_are_never_two_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    """The new one takes nearly all that is free, the old one included."""
    runner = runner_of(StepLimits(8, 2, 64, 16))
    old = weakref.ref(runner.kv)

    def checked(*arguments: Any, **options: Any) -> KVStore:
        assert old() is None
        return create_kv_store(*arguments, **options)

    monkeypatch.setattr("radixserve.runtime.model_runner.create_kv_store", checked)
    runner.allocate(9)
    assert runner.kv.num_blocks == 9


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"recorder": "a recorder", "graph_rows": 8, "graph_bytes": 1024 << 20}),
        ({"cuda_graph": "off"}, {"recorder": None}),
        (
            {"cuda_graph": "on", "cuda_graph_max_bs": 5, "cuda_graph_memory_mb": 3},
            {"recorder": "a recorder", "graph_rows": 5, "graph_bytes": 3 << 20},
        ),
        ({"cuda_graph_max_bs": 100}, {"recorder": "a recorder", "graph_rows": 8}),
    ],
)
def test_options_reach_the_start(
    options: dict[str, Any], expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr(device_start, "start", lambda runner, limits, **more: (asked.update(more), 7)[1])
    monkeypatch.setattr(device_start, "CudaGraphRecorder", lambda device: "a recorder")
    limits = StepLimits(8, 8, 64, 16)
    config = EngineConfig.from_options(device="cuda", **options)
    assert device_start.start_on_gpu(runner_of(limits), limits, config.model, lambda memory: 7) == 7
    assert {name: asked[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"cuda_graph": "on"}, "cuda_graph"),
        ({"cuda_graph_max_bs": 3}, "cuda_graph_max_bs"),
        ({"device": "cuda", "cuda_graph": "off", "cuda_graph_memory_mb": 3}, "cuda_graph_memory_mb"),
        ({"device": "cuda", "tensor_parallel_size": 2, "cuda_graph": "on"}, "cuda_graph"),
        ({"device": "cuda", "tensor_parallel_size": 2, "cuda_graph_max_bs": 3}, "cuda_graph_max_bs"),
    ],
)
def test_options_that_would_do_nothing_are_refused(options: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=f"^{field}: "):
        EngineConfig.from_options(**options)


def test_a_cpu_is_deterministic_anyway() -> None:
    assert EngineConfig.from_options(deterministic=True).model.deterministic
    model = tiny_decoder("llama")
    for deterministic in (False, True):
        runner = ModelRunner(model, num_blocks=100, block_size=16, threads=1, deterministic=deterministic)
        assert runner.deterministic and runner.broken_promises() == []
