"""``bench step``: single steps of the engine in this process, taken apart, beside their floors."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from radixserve.bench.floors import Floor, ModelCost, Precision, StepWork, attended_pairs, model_costs
from radixserve.bench.machine import Limits, Machine, describe_machine
from radixserve.bench.options import Note, StepOptions
from radixserve.bench.part_timer import FORWARD, HEAD, PARTS, PartTimer
from radixserve.bench.results import created_now
from radixserve.bench.step_case import OWN_TOKENS, StepCase
from radixserve.config import EngineConfig
from radixserve.engine.assembly import assemble
from radixserve.engine.core import EngineCore
from radixserve.errors import ConfigError
from radixserve.messages import SamplingParams
from radixserve.model.loader import load_model
from radixserve.native.library import NativeLibrary
from radixserve.runtime.plan_runner import PlanRunner
from radixserve.scheduler.plan import StepPlan

_MOST_BUSY = 256


@dataclass(frozen=True, slots=True)
class KvBytes:
    """Of one step: ``read`` by the kernels, ``asked``: what it had been without shared reads; ``distinct``: of every position once.

    ``read`` and ``asked`` are None on the torch path, which does not count.
    """

    distinct: int
    read: int | None = None
    asked: int | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """Medians over ``steps`` steps, in seconds. ``overhead_s``: all but the kernels of layers and head. ``ratio``: median to floor."""

    name: str
    title: str
    rows: int
    tokens: int
    steps: int
    median_s: float
    best_s: float
    parts_s: Mapping[str, float]
    overhead_s: float
    kv_bytes: KvBytes
    floor: Floor | None
    ratio: float | None


@dataclass(frozen=True, slots=True)
class StepReport:
    """Everything, as it is written to JSON. ``runner``: what the engine says about itself; ``busy``: processes that competed with it."""

    kind: str
    format: int
    created: str
    machine: Machine
    model: str
    options: Mapping[str, Any]
    busy: int
    runner: Mapping[str, str | int]
    cases: list[StepResult]


def bench_step(options: StepOptions, limits: Limits | None, note: Note) -> StepReport:
    """Measure the cases on one engine. Raises `ConfigError` and `ModelLoadError`."""
    if options.steps < 1:
        raise ConfigError("steps", f"must be at least 1, not {options.steps}")
    if not 0 <= options.busy <= _MOST_BUSY:
        raise ConfigError("busy", f"must be between 0 and {_MOST_BUSY}, not {options.busy}")
    cases = [StepCase.parse(case) for case in options.cases]
    config = EngineConfig.from_options(**options.engine)
    if config.scheduler.overlap == "on":
        raise ConfigError("overlap", "steps are timed one at a time, or no part of one could be told from the next")
    config = dataclasses.replace(config, scheduler=dataclasses.replace(config.scheduler, overlap="off"))
    note("loading the model")
    model = load_model(config.model.model, dtype=getattr(torch, config.model.dtype))
    assembly = assemble(model, config)
    facts = assembly.info.runner
    precision: Precision = "fp32" if facts["dtype"] == "float32" else "bf16"
    if facts.get("weights") == "native":
        precision = "native"
    # The pool may hold something else than the arithmetic.
    token_bytes = int(facts["kv_bytes"]) // (assembly.info.num_blocks * assembly.info.block_size)
    cost = dataclasses.replace(model_costs(config.model.model)[precision], kv_bytes=token_bytes)
    bench = StepBench(assembly.core, cost, limits)
    results = []
    with competitors(options.busy):
        for case in cases:
            note(case.title)
            results.append(bench.measure(case, options.steps))
    return StepReport(
        "step",
        1,
        created_now(),
        describe_machine(limits),
        config.model.model,
        dict(options.engine),
        options.busy,
        facts,
        results,
    )


@contextmanager
def competitors(count: int) -> Iterator[None]:
    """So many processes that do nothing but keep a core busy, for the length of a block."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def plan_work(plan: StepPlan, block_size: int) -> StepWork:
    """The work of a plan. Positions in the same block of the pool are the same positions."""
    filled: dict[int, int] = {}
    for row in plan.rows:
        for index, block in enumerate(row.table.tolist()):
            within = min(block_size, row.end - index * block_size)
            filled[block] = max(filled.get(block, 0), within)
    return StepWork(
        tokens=plan.num_tokens,
        sampled=sum(row.num_samples > 0 for row in plan.rows),
        pairs=sum(attended_pairs(row.start, len(row.tokens)) for row in plan.rows),
        kv_tokens=sum(filled.values()),
    )


@dataclass(frozen=True, slots=True)
class _Sample:
    """One measured step."""

    seconds: float
    parts: Mapping[str, float]
    work: StepWork
    rows: int
    read: int
    asked: int


class StepBench:
    """Measures cases on ``core``, which nobody else drives. What one case computed stays cached, so a later one starts faster."""

    def __init__(self, core: EngineCore, cost: ModelCost, limits: Limits | None, *, seed: int = 1) -> None:
        runner = core._runner
        assert isinstance(runner, PlanRunner)
        self._core = core
        self._runner = runner
        self._cost = cost
        self._limits = limits
        self._seed = seed
        self._numbers = itertools.count()
        self._library = NativeLibrary.load() if runner.describe()["kernels"] == "native" else None

    def measure(self, case: StepCase, steps: int) -> StepResult:
        """Bring the engine to where ``case`` begins, and time ``steps`` steps of it; raises `ConfigError` where it does not fit."""
        self._check(case, steps)
        decodes = self._start_decodes(case, steps)
        prefix = self._tokens("prefix", case.cached)
        if case.extend and case.cached:
            self._finish(self._add(prefix, 1))
        gc.collect()
        gc.freeze()
        timer = PartTimer()
        samples = []
        with timer.watching(self._core, self._runner, self._library):
            # The first one finds everything cold that the others do not.
            for number in range(steps + 1):
                if case.extend:
                    self._add([*prefix, *self._tokens(f"new {next(self._numbers)}", case.extend)], 1)
                sample = self._step(timer, case)
                samples += [sample] if number else []
        gc.unfreeze()
        self._core.abort(*decodes)
        while self._core.has_work or self._core.has_news:
            self._core.step()
        return self._result(case, samples)

    def _check(self, case: StepCase, steps: int) -> None:
        limits = self._core.limits
        if case.longest + self._output(case, steps) > limits.context_length:
            raise ConfigError(
                "case", f"{case.name} and {steps} steps are beyond the context of {limits.context_length} tokens"
            )
        budget = self._core.config.scheduler
        if case.rows + (case.extend > 0) > budget.max_running:
            raise ConfigError("max_running", f"{budget.max_running} is less than {case.name} has rows")
        if case.rows + case.extend > budget.max_batch_tokens:
            raise ConfigError("max_batch_tokens", f"{budget.max_batch_tokens} is less than the tokens of {case.name}")

    def _output(self, case: StepCase, steps: int) -> int:
        """Output tokens that no decode uses up, those drawn while other prompts are still computed included."""
        prompts = case.rows * case.context // self._core.config.scheduler.max_batch_tokens
        return steps + 2 * prompts + 16

    def _start_decodes(self, case: StepCase, steps: int) -> list[str]:
        """Requests whose prompts are computed, so that from here on every step decodes one token of each."""
        shared = self._tokens("shared", case.context - OWN_TOKENS) if case.shared else []
        rids = []
        for row in range(case.rows):
            own = self._tokens(f"row {row}", case.context - len(shared))
            rids.append(self._add([*shared, *own], self._output(case, steps)))
        started: set[str] = set()
        while len(started) < case.rows:
            for chunk in self._core.step():
                if chunk.output is not None:
                    raise ConfigError("num_blocks", f"{case.name}: a request ended early: {chunk.output.error}")
                started.add(chunk.rid)
        return rids

    def _step(self, timer: PartTimer, case: StepCase) -> _Sample:
        timer.reset()
        if self._library is not None:
            self._library.reset_counters()
        began = time.perf_counter()
        self._core.step()
        seconds = time.perf_counter() - began
        plan = timer.plan
        if plan is None or plan.num_tokens != case.rows + case.extend:
            found = "nothing" if plan is None else f"{plan.num_tokens} tokens"
            raise ConfigError(
                "num_blocks", f"{case.name}: a step computed {found}, not {case.rows + case.extend} tokens"
            )
        traffic = None if self._library is None else self._library.kv_traffic()
        return _Sample(
            seconds,
            {part: timer.seconds[part] for part in PARTS},
            plan_work(plan, self._core.limits.block_size),
            len(plan.rows),
            traffic.read if traffic else 0,
            traffic.asked if traffic else 0,
        )

    def _result(self, case: StepCase, samples: Sequence[_Sample]) -> StepResult:
        middle = samples[len(samples) // 2]
        seconds = statistics.median(sample.seconds for sample in samples)
        floor = None
        if self._limits is not None and (self._cost.longest or case.longest) >= case.longest:
            floor = self._cost.step(middle.work, self._limits)
        counted = self._library is not None
        return StepResult(
            name=case.name,
            title=case.title,
            rows=middle.rows,
            tokens=middle.work.tokens,
            steps=len(samples),
            median_s=seconds,
            best_s=min(sample.seconds for sample in samples),
            parts_s={part: statistics.median(sample.parts[part] for sample in samples) for part in PARTS},
            overhead_s=statistics.median(
                sample.seconds - sample.parts[FORWARD] - sample.parts[HEAD] for sample in samples
            ),
            kv_bytes=KvBytes(
                middle.work.kv_tokens * self._cost.kv_bytes,
                middle.read if counted else None,
                middle.asked if counted else None,
            ),
            floor=floor,
            ratio=seconds / floor.seconds if floor is not None else None,
        )

    def _add(self, tokens: list[int], output: int) -> str:
        rid = f"bench-{next(self._numbers)}"
        self._core.add(rid, tokens, SamplingParams(temperature=0, max_tokens=output, ignore_eos=True))
        return rid

    def _finish(self, rid: str) -> None:
        while not any(chunk.rid == rid and chunk.output is not None for chunk in self._core.step()):
            continue

    def _tokens(self, name: str, count: int) -> list[int]:
        """Random token ids; a longer list of the same name begins with a shorter one."""
        chance = random.Random(f"{self._seed} {name}")
        return [chance.randrange(self._core.limits.vocab_size) for _ in range(count)]
