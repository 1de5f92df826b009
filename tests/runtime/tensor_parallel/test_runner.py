"""Two and three ranks on tiny models: one rank's numbers, bits that depend on nothing, and ends that are told."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from radixserve.config import SchedulerConfig
from radixserve.errors import ConfigError, EngineClosed, RankFailed
from radixserve.messages import SamplingParams
from radixserve.runtime.model_runner import ModelRunner
from radixserve.runtime.tensor_parallel.messages import Checked, Copy, array_bytes
from radixserve.runtime.tensor_parallel.rank_processes import RankProcesses
from radixserve.runtime.tensor_parallel.runner import TensorParallelRunner
from radixserve.scheduler.plan import StepPlan
from tests.engine.schedules import Arrival, Bench, Schedule, random_schedule
from tests.runtime.tensor_parallel.ranks import alive, rank_processes, ranked_bench, ranked_model, wait_gone
from tests.tiny_decoder import all_logits, plan_row

SCHEDULES = 4
LONG_SCHEDULES = 60
BLOCK_SIZES = {2: 4, 3: 16}
NUM_BLOCKS = {2: 300, 3: 90}
TOKENS = np.random.default_rng(0).integers(0, 131, 50)


@pytest.fixture(scope="module", params=[2, 3])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    ranks = request.param
    bench = ranked_bench(ranked_model(ranks), ranks, block_size=BLOCK_SIZES[ranks], num_blocks=NUM_BLOCKS[ranks])
    yield bench
    runner = runner_of(bench)
    for _ in range(2):
        runner.close()
    assert not any(alive(pid) for pid in runner.pids)
    with pytest.raises(EngineClosed):
        one_step(runner)


def runner_of(bench: Bench) -> TensorParallelRunner:
    assert isinstance(bench.runner, TensorParallelRunner)
    return bench.runner


def test_logits_are_those_of_one_rank(bench: Bench) -> None:
    alone = ModelRunner(bench.model, num_blocks=bench.num_blocks, block_size=bench.block_size, threads=1)
    row = plan_row(TOKENS, np.arange(bench.num_blocks)[: -(-len(TOKENS) // bench.block_size)])
    [expected], [found] = all_logits(alone, [row]), all_logits(bench.runner, [row])
    tolerance = 2e-6 if alone.dtype == torch.float32 else 0.02
    assert (found - expected).abs().max() < tolerance * expected.abs().max()
    assert (found.argmax(-1) == expected.argmax(-1)).float().mean() > 0.9


# The one in float32: rounded parts may turn a near tie.
@pytest.mark.parametrize("bench", [3], indirect=True)
def test_greedy_tokens_are_those_of_one_rank(bench: Bench) -> None:
    assert bench.runner.dtype == torch.float32
    alone = Bench(bench.model, bench.block_size, bench.num_blocks)
    sampling = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
    rng = np.random.default_rng(1)
    prompts = [tuple(rng.integers(0, 131, length).tolist()) for length in range(1, 41, 2)]
    arrivals = tuple(Arrival(0, prompt, sampling) for prompt in prompts)
    found = bench.run(Schedule(arrivals, bench.num_blocks, SchedulerConfig()))
    for index, arrival in enumerate(arrivals):
        assert found[str(index)].token_ids == alone.reference(arrival).token_ids


def test_every_rank_holds_its_heads_only(bench: Bench) -> None:
    runner = runner_of(bench)
    alone = ModelRunner(bench.model, num_blocks=bench.num_blocks, block_size=bench.block_size, threads=1)
    facts, ranks = runner.describe(), len(runner.pids) + 1
    assert facts["tensor_parallel_size"] == ranks and facts["kernels"] == "torch"
    heads = {2: "2+1", 3: "1+1+1"}[ranks]
    assert facts["kv_heads_of_ranks"] == heads
    assert runner.kv.num_bytes == alone.kv.num_bytes * int(heads[0]) // 3
    assert facts["kv_bytes"] == alone.kv.num_bytes


def test_cold_equals_warm(bench: Bench) -> None:
    for seed in range(SCHEDULES):
        # The first crosses the boundaries of the chunks in which attention is reduced.
        schedule = random_schedule(seed, bench, max_prompt=330 if seed % 4 == 0 else 60)
        assert bench.differences(schedule) == [], f"seed {seed}"


def test_the_schedules_would_find_a_sum_that_depends_on_the_batch(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = type(runner_of(bench).rank_sum).__call__

    def faulty(self: object, part: torch.Tensor) -> torch.Tensor:
        return right(self, part) * (1.0 if len(part) % 3 else 1.0001)  # type: ignore[arg-type]

    monkeypatch.setattr("radixserve.runtime.tensor_parallel.rank_sum.RankSum.__call__", faulty)
    assert any(bench.differences(random_schedule(seed, bench)) for seed in range(6))
    bench.alone.clear()


@pytest.mark.long
def test_cold_equals_warm_long(bench: Bench) -> None:
    for seed in range(SCHEDULES, SCHEDULES + LONG_SCHEDULES):
        schedule = random_schedule(seed, bench, max_prompt=330 if seed % 3 == 0 else 60)
        assert bench.differences(schedule) == [], f"seed {seed}"


def test_the_promise_is_tried_on_all_ranks(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bench.runner.broken_promises() == []
    seen: list[str] = []

    def own(self: ModelRunner) -> list[str]:
        seen.append("rank 0")
        return ["of rank 0"]

    def received(self: RankProcesses, kind: type[Checked]) -> list[Checked]:
        return [Checked([f"of rank {rank}"]) for rank, _ in enumerate(receive(self, kind), 1)]

    receive = RankProcesses.receive
    monkeypatch.setattr(ModelRunner, "broken_promises", own)
    monkeypatch.setattr(RankProcesses, "receive", received)
    others = range(1, len(runner_of(bench).pids) + 1)
    assert bench.runner.broken_promises() == ["of rank 0", *(f"rank {rank}: of rank {rank}" for rank in others)]
    assert seen == ["rank 0"]


def test_blocks_are_copied_and_poisoned_on_all_ranks(bench: Bench) -> None:
    per_row = -(-(len(TOKENS) + 1) // bench.block_size)
    table, other = np.arange(per_row), np.arange(per_row, 2 * per_row)
    bench.runner.kv.poison(np.arange(bench.num_blocks))
    all_logits(bench.runner, [plan_row(TOKENS, table)])
    [expected] = all_logits(bench.runner, [plan_row([5], table, start=len(TOKENS))])
    bench.runner.execute(StepPlan(0, (), np.stack([table, other], 1).astype(np.int32)))
    bench.runner.kv.poison(table)
    [copied] = all_logits(bench.runner, [plan_row([5], other, start=len(TOKENS))])
    assert torch.equal(copied, expected)
    # NaN of any one rank would do; all are asked for the part that only they have.
    [poisoned] = all_logits(bench.runner, [plan_row([5], table, start=len(TOKENS))])
    assert poisoned.isnan().all()


# --- Ends -------------------------------------------------------------------------------------------------------------


def two_ranks() -> TensorParallelRunner:
    return TensorParallelRunner(ranked_model(2), ranks=2, num_blocks=8, block_size=16, threads=1)


def one_step(runner: TensorParallelRunner) -> None:
    runner.execute(StepPlan(0, (plan_row([1, 2, 3], [0]),)))


def test_a_rank_that_is_killed_fails_the_step_and_all_after_it() -> None:
    runner = TensorParallelRunner(ranked_model(3), ranks=3, num_blocks=8, block_size=16, threads=1)
    one_step(runner)
    pids = runner.pids
    os.kill(pids[1], signal.SIGKILL)
    for _ in range(2):
        with pytest.raises(RankFailed, match=r"^rank 2 was killed by SIGKILL$") as error:
            one_step(runner)
    assert error.value.rank == 2
    assert not any(alive(pid) for pid in pids)
    runner.close()


def test_a_rank_that_raises_says_what() -> None:
    runner = two_ranks()
    directory = runner._processes.directory
    assert directory.is_dir()
    # An order that this rank never gives.
    runner._processes.send(Copy(array_bytes(np.array([[99, 0]]))))
    with pytest.raises(RankFailed, match=r"^rank 1 raised IndexError: index out of range"):
        one_step(runner)
    assert not rank_processes() or not set(runner.pids) & set(rank_processes())
    assert not directory.exists()


def test_rank_0_raising_among_the_layers_is_the_end_too(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = two_ranks()

    def fail(*arguments: object) -> None:
        raise MemoryError("no more")

    monkeypatch.setattr(runner.attention, "forward", fail)
    with pytest.raises(RankFailed, match=r"^rank 0 raised MemoryError\('no more'\)$"):
        one_step(runner)
    monkeypatch.undo()
    with pytest.raises(RankFailed, match=r"^rank 0 raised"):
        one_step(runner)
    wait_gone(runner.pids)


def test_what_a_runner_refuses_leaves_no_process() -> None:
    before = set(rank_processes())
    with pytest.raises(ConfigError, match=r"^attention: "):
        TensorParallelRunner(ranked_model(2), ranks=2, num_blocks=8, block_size=16, threads=1, attention="flashinfer")
    with pytest.raises(ConfigError, match=r"^tensor_parallel_size: "):
        TensorParallelRunner(ranked_model(2), ranks=4, num_blocks=8, block_size=16, threads=1)
    assert set(rank_processes()) == before


def test_a_process_that_does_not_come_up_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 3\n")
    python.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(python))
    with pytest.raises(RankFailed, match=r"^rank 1 ended with exit status 3$"):
        two_ranks()
