"""With the answers of a real run, a plan counts what that run counted: every call, every step, every block."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from radixlang import Program, batch_report
from radixlang.backends.engine import EngineBackend
from radixserve.config import EngineConfig
from radixserve.engine.offline import Engine
from radixserve.model.loader import LoadedModel
from radixserve.planner.options import PlanOptions
from radixserve.planner.plan import Plan
from radixserve.planner.planning import plan_program
from radixserve.runtime.plan_runner import PlanRunner
from tests.planner.engines import RealRun, counts, facts, plan_model, real_runner, run_for_real
from tests.planner.programs import QUESTIONS, awaited, threaded

SIZES: dict[str, dict[str, Any]] = {
    "usual": {},
    "tight": {"num_blocks": 60, "max_batch_tokens": 64, "max_running": 8},
    "fcfs": {"policy": "fcfs", "block_size": 32},
    "uncached": {"prefix_cache": "off"},
}
PROGRAMS = {"threaded": threaded, "awaited": awaited}


def config_of(name: str) -> EngineConfig:
    return EngineConfig.from_options(**{"num_blocks": 512, "threads": 1, "dtype": "float32", **SIZES[name]})


@pytest.fixture(scope="module")
def runners(tiny: LoadedModel) -> dict[str, PlanRunner]:
    return {name: real_runner(tiny, config_of(name)) for name in SIZES}


def plan_of(program: Program, real: RealRun | None, tiny: LoadedModel, config: EngineConfig, **options: Any) -> Plan:
    return plan_program(
        program,
        QUESTIONS,
        model=plan_model(tiny),
        config=config,
        recording=None if real is None else real.recording,
        run_options=options,
        options=PlanOptions(advise=False),
    )


@pytest.mark.parametrize("hints", [True, False], ids=["hints", "no hints"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_calls_steps_and_blocks_are_those_of_the_engine(
    tiny: LoadedModel, runners: dict[str, PlanRunner], name: str, size: str, hints: bool
) -> None:
    program, config = PROGRAMS[name], config_of(size)
    real = run_for_real(program, QUESTIONS, tiny, config, runners[size], hints=hints, concurrency=4)
    plan = plan_of(program, real, tiny, config, hints=hints, concurrency=4)
    assert (plan.unknown, plan.strays) == (0, 0)
    assert facts(plan.trace) == facts(real.trace)
    assert counts(plan.report) == counts(real.report)


def test_threads_make_no_difference(tiny: LoadedModel) -> None:
    """The bodies of ``threaded`` run in threads; whichever the system favours, the plan is the same."""
    plans = [plan_of(threaded, None, tiny, config_of("usual")) for _ in range(3)]
    assert facts(plans[1].trace) == facts(plans[0].trace) == facts(plans[2].trace)


def test_a_free_running_engine_computes_the_same_where_nothing_depends_on_timing(
    tiny: LoadedModel, runners: dict[str, PlanRunner]
) -> None:
    """One program at a time: what its calls find in the cache is fixed."""
    config = config_of("usual")
    real = run_for_real(awaited, QUESTIONS, tiny, config, runners["usual"], concurrency=1)
    plan = plan_of(awaited, real, tiny, config, concurrency=1)
    with Engine.from_model(tiny, num_blocks=512, threads=1) as engine:
        states = asyncio.run(awaited.arun_batch(QUESTIONS, backend=EngineBackend(engine), concurrency=1))
    assert counts(plan.report) == counts(batch_report(states))


def test_without_a_recording_outputs_are_made_up(tiny: LoadedModel) -> None:
    plan = plan_of(awaited, None, tiny, config_of("usual"))
    assert plan.unknown == plan.calls == 4 * len(QUESTIONS)
    lines = {line.name: line for line in plan.report.variables}
    # Two samples of at most four tokens each; a number and a fruit, ended in time.
    assert lines["why"].generated == 8 * len(QUESTIONS)
    assert 0 < lines["number"].generated <= 12 * len(QUESTIONS)
    assert all(call.finish_reason == "stop" for call in plan.trace.calls if call.intent.name == "number")
