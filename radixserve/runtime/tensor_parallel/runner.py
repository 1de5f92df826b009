"""Rank 0 of a tensor-parallel engine: it is given the plans, tells the other ranks what to compute, and draws the tokens."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Literal

import torch

from radixserve.errors import RankFailed
from radixserve.model.device_weights import DeviceWeights
from radixserve.model.gguf_weights import placement
from radixserve.native.threads import usable_cores
from radixserve.runtime.forward_batch import ForwardBatch
from radixserve.runtime.plan_runner import HiddenStates, RunnableModel
from radixserve.runtime.tensor_parallel.messages import Check, Checked, Pass, Ready, Setup, Started
from radixserve.runtime.tensor_parallel.rank_processes import RankProcesses
from radixserve.runtime.tensor_parallel.rank_runner import ModelPart, RankRunner
from radixserve.runtime.tensor_parallel.rank_sum import RankSum, require_sums
from radixserve.runtime.tensor_parallel.shards import cut_model
from radixserve.runtime.tensor_parallel.watchdog import DEFAULT_TIMEOUT_S
from radixserve.runtime.tensor_parallel.weights import ScatteredWeights
from radixserve.runtime.token_choice import Choices
from radixserve.scheduler.plan import StepPlan, StepResult


class TensorParallelRunner(RankRunner):
    """Executes plans over ``ranks`` processes, of which this is the first; the others live from construction to `close`.

    A rank is told of a plan its copies, and the flattened batch when its forward pass begins: what is asked of the logits concerns this
    process alone, and a step that fails before or after its layers leaves the ranks in step with each other. One that fails
    among the layers does not, so it is a `RankFailed`, like a process that is lost: no step can be run after it.

    ``threads``: of each rank, 0 shares the cores among them. ``watchdog_timeout_s``: a rank that hangs for so long is given up, which is a
    `RankFailed` of the step that waits for it. The rest as for `radixserve.runtime.model_runner.ModelRunner`. Raises
    `ConfigError` where the model cannot be parted so, and `RankFailed` where a process does not come up.
    """

    def __init__(
        self,
        model: RunnableModel,
        *,
        ranks: int,
        num_blocks: int,
        block_size: int,
        attention: str = "auto",
        threads: int = 0,
        kv_dtype: torch.dtype | None = None,
        deterministic: bool = False,
        watchdog_timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        shards = cut_model(model.config, ranks)
        dtype, device = placement(model.weights)
        require_sums(device)
        threads = threads or max(1, usable_cores() // ranks)
        kind: Literal["cpu", "cuda"] = "cuda" if device.type == "cuda" else "cpu"
        self._meeting: RankSum | None = None
        self._when_lost: Callable[[RankFailed], None] | None = None
        self._processes = RankProcesses(
            Setup(
                rank=0,
                ranks=ranks,
                parent=0,
                watchdog_timeout_s=watchdog_timeout_s,
                model=model.config,
                dtype=_name(dtype),
                device=kind,
                num_blocks=num_blocks,
                block_size=block_size,
                attention=attention,
                threads=threads,
                kv_dtype=None if kv_dtype is None else _name(kv_dtype),
                deterministic=deterministic,
                log_level=logging.getLogger("radixserve").getEffectiveLevel(),
            ),
            self._rank_exited,
        )
        pulse = self._processes.pulses.of(0)
        try:
            self._processes.receive(Started)
            with self._processes.watchdog.expecting(starting=True):
                directory = self._processes.directory
                self._meeting = self._processes.unless_lost(
                    lambda: RankSum(directory, 0, ranks, device, pulse, ordered=deterministic)
                )
                scattered = ScatteredWeights(model.weights, model.config, shards, self._processes.channels, pulse)
                super().__init__(
                    ModelPart(
                        shards[0].config(model.config), DeviceWeights(scattered, dtype, device), model.generation
                    ),
                    self._meeting,
                    draws=True,
                    num_blocks=num_blocks,
                    block_size=block_size,
                    attention=attention,
                    threads=threads,
                    kv_dtype=kv_dtype,
                    deterministic=deterministic,
                )
                ready = self._processes.receive(Ready)
        except (RankFailed, ConnectionError) as error:
            raise self._processes.fail(error) from error
        except BaseException:
            self._processes.close(at_once=True)
            raise
        self._kv_bytes = self.kv.num_bytes + sum(report.kv_bytes for report in ready)
        self._kv_heads = "+".join(str(shard.end_head - shard.first_head) for shard in shards)

    @property
    def pids(self) -> list[int]:
        """Ids of the other ranks' processes, of rank 1 first."""
        return self._processes.pids

    def describe(self) -> dict[str, str | int]:
        """As ever; the size of the KV is that of all ranks."""
        return {
            **super().describe(),
            "kv_bytes": self._kv_bytes,
            "tensor_parallel_size": 1 + len(self.pids),
            "kv_heads_of_ranks": self._kv_heads,
        }

    def broken_promises(self) -> list[str]:
        """Why bits may depend on the batch on any rank, or in the sum over them."""
        self._processes.send(Check())
        with self._processes.watchdog.expecting(starting=True):
            try:
                found = super().broken_promises()
            except RankFailed as error:
                raise self._processes.fail(error) from error
            reports = self._processes.receive(Checked)
        for rank, report in enumerate(reports, 1):
            found += [f"rank {rank}: {reason}" for reason in report.reasons]
        return found

    def allocate(self, num_blocks: int, *, spare: bool = False) -> None:
        """This rank's part of the pool; what is done to its blocks is done on all ranks."""
        super().allocate(num_blocks, spare=spare)
        self.kv.mirror = self._processes

    def execute(self, plan: StepPlan, choices: Choices | None = None) -> StepResult:
        """As ever, watched: a rank that hangs in it is a `RankFailed`."""
        with self._processes.watchdog.expecting():
            return super().execute(plan, choices)

    def forward(self, batch: ForwardBatch) -> HiddenStates:
        """All layers, on all ranks."""
        self._processes.send(Pass.of(batch))
        try:
            return super().forward(batch)
        except Exception as error:
            # Wherever this rank was, the others wait for it in a sum.
            raise self._processes.fail(error) from error

    def close(self) -> None:
        """End the other ranks' processes. No step runs then."""
        self._processes.close()
        if self._meeting is not None:
            self._meeting.close()

    def when_lost(self, callback: Callable[[RankFailed], None]) -> None:
        """``callback`` is told of a rank that is lost, on a thread of its own, perhaps while a step fails for the same reason."""
        self._when_lost = callback

    def _rank_exited(self, error: RankFailed) -> None:
        if self._meeting is not None:
            self._meeting.abort()
        if self._when_lost is not None:
            self._when_lost(error)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
