from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from radixserve.bench.floors import ModelCost, StepWork
from radixserve.bench.machine import Limits
from radixserve.bench.options import StepOptions
from radixserve.bench.part_timer import FORWARD, HEAD, PARTS, PartTimer
from radixserve.bench.step import StepBench, bench_step, competitors, plan_work
from radixserve.bench.step_case import DEFAULT_CASES, StepCase
from radixserve.config import EngineConfig
from radixserve.engine.assembly import assemble
from radixserve.engine.core import EngineCore
from radixserve.errors import ConfigError
from radixserve.messages import SamplingParams
from radixserve.native.library import NativeLibrary
from radixserve.runtime.forward_batch import ForwardBatch
from radixserve.runtime.native_runner import NativeModelRunner
from radixserve.runtime.plan_runner import PlanRunner
from radixserve.scheduler.plan import PlanRow, StepPlan
from tests.native_kernels import needs_native
from tests.quantized_model import quantized_model
from tests.tiny_model import tiny_model

KERNELS = ["torch", pytest.param("native", marks=needs_native)]


def core(kernels: str, **options: Any) -> EngineCore:
    native = kernels == "native"
    model = quantized_model("Q8_0") if native else tiny_model()
    dtype = "bfloat16" if native else "float32"
    config = EngineConfig.from_options(dtype=dtype, kernels=kernels, num_blocks=200, threads=1, **options)
    return assemble(model, config).core


def bench(engine: EngineCore, limits: Limits | None) -> StepBench:
    runner = engine._runner
    assert isinstance(runner, PlanRunner)
    return StepBench(engine, ModelCost.dense(runner.config), limits)


@pytest.mark.parametrize("text", DEFAULT_CASES)
def test_cases_are_written_as_they_are_read(text: str) -> None:
    assert StepCase.parse(text).name == text


@pytest.mark.parametrize(
    "text", ["", "16", "16@", "p5", "16@1000+", "+p5@0", "16@1000p5@0", "0@100", "1@8", "16@1000/all"]
)
def test_other_cases_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="case"):
        StepCase.parse(text)


def row(start: int, count: int, table: list[int], num_samples: int = 1) -> PlanRow:
    blocks = np.array(table, np.int32)
    tokens = np.zeros(count, np.int32)
    return PlanRow("r", start, tokens, blocks, SamplingParams(), 0, num_prompt=1, num_samples=num_samples)


def test_the_work_of_a_plan_counts_every_block_once() -> None:
    plan = StepPlan(1, (row(33, 1, [1, 2, 3]), row(34, 1, [1, 2, 4]), row(32, 8, [1, 2, 5], num_samples=0)))
    assert plan_work(plan, 16) == StepWork(
        tokens=10, sampled=2, pairs=34 + 35 + sum(range(33, 41)), kv_tokens=32 + 2 + 3 + 8
    )


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize(
    ("case", "rows", "tokens"),
    [
        ("1@40", 1, 1),
        ("4@40", 4, 4),
        ("4@40/shared", 4, 4),
        ("p24@40", 1, 24),
        ("p24@0", 1, 24),
        ("2@40+p16@32", 3, 18),
    ],
)
def test_a_step_holds_what_the_case_says(kernels: str, case: str, rows: int, tokens: int, limits: Limits) -> None:
    engine = core(kernels)
    result = bench(engine, limits).measure(StepCase.parse(case), 3)
    assert (result.name, result.rows, result.tokens, result.steps) == (case, rows, tokens, 3)
    assert 0 < result.best_s <= result.median_s
    assert set(result.parts_s) == set(PARTS)
    assert result.parts_s[FORWARD] > 0
    assert (result.parts_s[HEAD] > 0) == (kernels == "native")
    assert 0 < result.overhead_s < result.median_s
    assert result.floor is not None and result.ratio == pytest.approx(result.median_s / result.floor.seconds)
    assert not engine.has_work and not engine.cache.leases
    engine.cache.check()


@needs_native
def test_a_shared_prefix_is_read_once_and_that_is_shown() -> None:
    engine = core("native")
    apart, shared = (bench(engine, None).measure(StepCase.parse(case), 1).kv_bytes for case in ("4@72", "4@72/shared"))
    assert apart.read is not None and apart.asked is not None and shared.read is not None
    assert apart.read == apart.asked
    assert shared.asked == apart.asked
    assert shared.read < 0.5 * apart.read
    assert shared.distinct <= shared.read


@pytest.mark.parametrize(
    ("case", "options", "field"),
    [
        ("3@40", {"max_running": 2}, "max_running"),
        ("p64@0", {"max_batch_tokens": 64, "max_running": 1}, None),
        ("p65@0", {"max_batch_tokens": 64, "max_running": 1}, "max_batch_tokens"),
        ("1@4095", {}, "case"),
        ("100@40", {"max_running": 100}, "num_blocks"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(case: str, options: dict[str, Any], field: str | None) -> None:
    measured = bench(core("torch", **options), None)
    if field is None:
        measured.measure(StepCase.parse(case), 1)
        return
    with pytest.raises(ConfigError) as refused:
        measured.measure(StepCase.parse(case), 1)
    assert refused.value.field == field


def test_steps_that_overlap_are_not_timed() -> None:
    with pytest.raises(ConfigError) as refused:
        bench_step(StepOptions(engine={"overlap": "on"}), None, lambda text: None)
    assert refused.value.field == "overlap"


@pytest.mark.parametrize("kernels", KERNELS)
def test_nothing_stays_timed(kernels: str) -> None:
    engine = core(kernels)
    runner = engine._runner
    assert isinstance(runner, PlanRunner)
    things: list[object] = [engine, engine.scheduler, runner]
    library = None
    if isinstance(runner, NativeModelRunner):
        library = NativeLibrary.load()
        things += [runner.decoder, library]
    before = [set(vars(thing)) for thing in things], ForwardBatch.__dict__["from_plan"]
    timer = PartTimer()
    with timer.watching(engine, runner, library):
        assert all(set(vars(thing)) != names for thing, names in zip(things, before[0], strict=True))
        assert ForwardBatch.__dict__["from_plan"] is not before[1]
    after = [set(vars(thing)) for thing in things], ForwardBatch.__dict__["from_plan"]
    assert after == before


def test_competitors_live_as_long_as_the_block() -> None:
    def children() -> set[str]:
        return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())

    before = children()
    with competitors(2):
        assert len(children() - before) == 2
    assert children() <= before


def test_inner_time_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    timer, now = PartTimer(), [0.0]
    monkeypatch.setattr("radixserve.bench.part_timer.time.perf_counter", lambda: now[0])

    def spend(seconds: float) -> None:
        now[0] += seconds

    inner = timer._timed(lambda: spend(2.0), "inner", None)

    def work() -> None:
        spend(1.0)
        inner()
        inner()
        spend(4.0)

    timer._timed(work, "outer", None)()
    assert dict(timer.seconds) == {"inner": 4.0, "outer": 5.0}


def test_the_same_name_gives_the_beginning_of_the_same_tokens() -> None:
    one = bench(core("torch"), None)
    assert one._tokens("row 1", 9)[:5] == one._tokens("row 1", 5)
