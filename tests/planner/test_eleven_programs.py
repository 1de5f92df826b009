"""The plans of all example programs count what the engine counts, on the embedded model: calls, hits, steps and blocks."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
from collections.abc import AsyncGenerator, Iterator, Sequence
from types import ModuleType

import pytest

from examples.programs import NAMES
from radixlang import batch_report
from radixlang.backends.base import Call, Piece
from radixlang.backends.engine import EngineBackend
from radixserve.config import EngineConfig
from radixserve.engine.offline import Engine
from radixserve.model.loader import LoadedModel
from radixserve.planner.options import PlanOptions
from radixserve.planner.planning import plan_program
from radixserve.runtime.plan_runner import PlanRunner
from tests.planner.engines import counts, facts, plan_model, real_runner, run_for_real

CONFIG = EngineConfig.from_options(num_blocks=640)
# Answers in free text are cut here, so that all of this takes seconds; those with a form are as long as their form.
LONGEST = 6
OPTIONS = {"temperature": 0}


@pytest.fixture(scope="module")
def runner(smollm2: LoadedModel) -> PlanRunner:
    return real_runner(smollm2, CONFIG)


@pytest.fixture(autouse=True)
def short_answers() -> Iterator[None]:
    """For the real engine and for the plan, which both are asked through this backend."""
    generate = EngineBackend.generate

    def short(self: EngineBackend, token_ids: Sequence[int], call: Call) -> AsyncGenerator[Piece, None]:
        if call.constraint is None:
            limit = min(LONGEST, call.sampling.max_tokens or LONGEST)
            call = dataclasses.replace(call, sampling=dataclasses.replace(call.sampling, max_tokens=limit))
        return generate(self, token_ids, call)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EngineBackend, "generate", short)
        yield


def program_of(name: str) -> ModuleType:
    return importlib.import_module(f"examples.programs.{name}")


@pytest.mark.parametrize("name", NAMES)
def test_the_plan_counts_what_the_engine_counts(name: str, smollm2: LoadedModel, runner: PlanRunner) -> None:
    module = program_of(name)
    inputs = module.inputs(count=2)
    real = run_for_real(module.program, inputs, smollm2, CONFIG, runner, **OPTIONS)
    plan = plan_program(
        module.program,
        inputs,
        model=plan_model(smollm2),
        config=CONFIG,
        recording=real.recording,
        run_options=OPTIONS,
        options=PlanOptions(advise=False),
    )
    assert (plan.unknown, plan.strays, plan.refused) == (0, 0, ())
    assert facts(plan.trace) == facts(real.trace)
    assert counts(plan.report) == counts(real.report)


@pytest.mark.parametrize("name", ["chat_short", "json_decoding", "completion"])
def test_a_free_running_engine_counts_the_same(name: str, smollm2: LoadedModel, runner: PlanRunner) -> None:
    """One program at a time: nothing that its calls find in the cache depends on how fast anything is."""
    module = program_of(name)
    inputs = module.inputs(count=2)
    options = {**OPTIONS, "concurrency": 1}
    real = run_for_real(module.program, inputs, smollm2, CONFIG, runner, **options)
    plan = plan_program(
        module.program,
        inputs,
        model=plan_model(smollm2),
        config=CONFIG,
        recording=real.recording,
        run_options=options,
        options=PlanOptions(advise=False),
    )
    with Engine.from_model(smollm2, num_blocks=640) as engine:
        states = asyncio.run(module.program.arun_batch(inputs, backend=EngineBackend(engine), **options))
    assert counts(plan.report) == counts(batch_report(states))
