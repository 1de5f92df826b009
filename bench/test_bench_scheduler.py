"""What planning costs: ``pytest bench/test_bench_scheduler.py --benchmark-only``.

One call is one step without a model: `schedule` and `update`, or `schedule` alone, with a result that was made up. Block
size 16; the pool is large enough that nothing is evicted. Prompts share one of 16 prefixes of 512 tokens.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Literal

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from radixserve.cache.namespace import Namespace
from radixserve.cache.prefix_cache import PrefixCache
from radixserve.cache.token_key import encode_tokens
from radixserve.config import CacheConfig, SchedulerConfig
from radixserve.messages import SamplingParams
from radixserve.scheduler.plan import RowResult, StepPlan, StepResult
from radixserve.scheduler.request import Request
from radixserve.scheduler.scheduler import Scheduler

Policy = Literal["lpm", "fcfs", "dfs-weight", "priority"]
POLICIES: tuple[Policy, ...] = ("lpm", "fcfs", "dfs-weight", "priority")
WAITING = (100, 1_000, 10_000)
PREFIXES, PREFIX, OWN = 16, 512, 64


class Load:
    """A scheduler under load; tokens drawn are random."""

    def __init__(self, policy: Policy, max_running: int) -> None:
        self.cache = PrefixCache(CacheConfig(num_blocks=400_000))
        config = SchedulerConfig(policy=policy, max_running=max_running, max_batch_tokens=2048)
        self.scheduler = Scheduler(config, self.cache, context_length=8192)
        self.rng = random.Random(1)
        numbers = np.random.default_rng(1)
        self.prefixes = [encode_tokens(numbers.integers(0, 49_152, PREFIX)) for _ in range(PREFIXES)]
        self.own = numbers.integers(0, 49_152, (40_000, OWN))
        self.count = 0

    def add(self, max_tokens: int) -> None:
        """One more request."""
        key = self.rng.choice(self.prefixes) + encode_tokens(self.own[self.count % len(self.own)])
        sampling = SamplingParams(max_tokens=max_tokens)
        priority = self.rng.randrange(4)
        request = Request(
            f"r{self.count}", key, sampling, Namespace("m"), max_tokens=max_tokens, seed=0, priority=priority
        )
        self.count += 1
        self.scheduler.add(request)

    def plan(self) -> StepPlan:
        """The next step, planned."""
        plan = self.scheduler.schedule()
        assert plan is not None
        return plan

    def update(self, plan: StepPlan) -> None:
        """Its made-up result, taken in."""
        rows = [RowResult(tuple(self.rng.randrange(49_152) for _ in range(row.num_samples))) for row in plan.rows]
        self.scheduler.update(plan, StepResult(plan.step, tuple(rows), 0.01))
        self.scheduler.take_updates()

    def step(self) -> None:
        """Both."""
        self.update(self.plan())

    def settle(self, running: int) -> None:
        """Run until ``running`` requests decode and nothing is computed of a prompt."""
        for _ in range(running):
            self.add(4000)
        for _ in range(100):
            self.step()
            rows = self.scheduler.running
            if len(rows) == running and all(request.remaining == 1 for request in rows):
                return
        raise AssertionError("the load did not settle")


def timed(benchmark: BenchmarkFixture, load: Load, prepare: Callable[[], object]) -> None:
    """Time `schedule` alone."""
    plans: list[StepPlan] = []

    def setup() -> None:
        if plans:
            load.update(plans.pop())
        prepare()

    benchmark.pedantic(lambda: plans.append(load.plan()), setup=setup, rounds=150, warmup_rounds=10)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("waiting", WAITING)
def test_schedule_of_64_decodes_while_others_wait(benchmark: BenchmarkFixture, policy: Policy, waiting: int) -> None:
    """Steady state: every row is taken, nobody can be admitted."""
    load = Load(policy, 64)
    load.settle(64)
    for _ in range(waiting):
        load.add(32)
    timed(benchmark, load, lambda: None)
    assert len(load.scheduler.waiting) == waiting


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("waiting", WAITING)
def test_schedule_that_admits_four_of_those_who_wait(benchmark: BenchmarkFixture, policy: Policy, waiting: int) -> None:
    """64 decodes and four free rows; four requests end in each step, and four come."""
    load = Load(policy, 68)
    load.settle(64)

    def refill() -> None:
        while len(load.scheduler.waiting) < waiting:
            load.add(1)

    timed(benchmark, load, refill)
    assert load.scheduler.stats.finished.total() >= 4 * 150


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("waiting", WAITING)
def test_schedule_that_refuses_those_who_wait(benchmark: BenchmarkFixture, policy: Policy, waiting: int) -> None:
    """Rows are free and blocks are not: up to eight are looked at, found too large and put back."""
    load = Load(policy, 68)
    load.settle(64)
    for _ in range(waiting):
        load.add(8000)
    load.scheduler.cache.extend(load.cache.acquire(Namespace("m"), b"", 0), (load.cache.available_blocks - 12_050) * 16)
    timed(benchmark, load, lambda: None)
    assert len(load.scheduler.running) == 64


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("waiting", WAITING)
def test_one_arrival(benchmark: BenchmarkFixture, policy: Policy, waiting: int) -> None:
    """`add` of one more request."""
    load = Load(policy, 64)
    load.settle(64)
    for _ in range(waiting):
        load.add(32)
    benchmark.pedantic(load.add, (32,), rounds=150, warmup_rounds=10)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("running", [1, 16, 64, 256])
def test_one_step_of_decodes(benchmark: BenchmarkFixture, running: int) -> None:
    """`schedule` and `update`; nobody waits."""
    load = Load("lpm", running)
    load.settle(running)
    benchmark.pedantic(load.step, rounds=150, warmup_rounds=10)  # type: ignore[no-untyped-call]
