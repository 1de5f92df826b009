"""Real engines in lockstep, to compare plans with: the planner's event loop and trace over a runner that has a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from radixlang import Program
from radixlang.backends.engine import EngineBackend
from radixlang.recording import Recording, recording
from radixlang.report import Report, batch_report
from radixserve.config import EngineConfig
from radixserve.engine.offline import Engine
from radixserve.model.loader import LoadedModel
from radixserve.model.text import TextModel
from radixserve.planner.lockstep import LockstepLoop
from radixserve.planner.model import PlanModel, plan_info, traced_core
from radixserve.planner.planning import run_in_lockstep
from radixserve.planner.step_cost import NOMINAL
from radixserve.planner.trace import CallTrace, Trace
from radixserve.runtime.plan_runner import PlanRunner
from radixserve.runtime.runner_choice import create_runner


def plan_model(model: LoadedModel) -> PlanModel:
    """The text side of a loaded model."""
    text = TextModel(model.name, model.source, model.tokenizer, model.chat_template, model.generation)
    return PlanModel(text, model.config.context_length)


def real_runner(model: LoadedModel, config: EngineConfig) -> PlanRunner:
    """What computes for a real engine. Several engines may use it, one after the other."""
    return create_runner(model, config.model, config.cache, config.scheduler)[0]


@dataclass(frozen=True)
class RealRun:
    """What a program did on a real engine, and what that answered."""

    trace: Trace
    report: Report
    recording: Recording
    states: list[Any]


def run_for_real(
    program: Program,
    inputs: Sequence[Mapping[str, Any]],
    model: LoadedModel,
    config: EngineConfig,
    runner: PlanRunner,
    **options: Any,
) -> RealRun:
    """Run it as a plan does, but with the model."""
    planned = plan_model(model)
    core = traced_core(planned, config, runner, cost=NOMINAL)
    loop = LockstepLoop(core)
    engine = Engine.on_loop(loop, plan_info(planned, core), core.config, planned.text)
    recorder = recording(EngineBackend(engine))
    states = run_in_lockstep(loop, lambda: program.arun_batch(inputs, backend=recorder, **options))
    engine.close()
    core.cache.check()
    return RealRun(core.trace, batch_report(states), recorder.recording, states)


def facts(trace: Trace) -> dict[str, Any]:
    """Everything that is counted of the calls and steps of an engine."""
    return {
        "calls": [
            (call.prompt, call.cached, call.computed, call.arrived, call.ended, call.forced, *_outcome(call))
            for call in trace.calls
        ],
        "steps": [(step.rows, step.tokens, step.held, step.kept) for step in trace.steps],
    }


def _outcome(call: CallTrace) -> tuple[Any, ...]:
    """What it brought; a question for likelihoods draws a token that nobody reads."""
    return () if call.sampling.logprob_token_ids else (call.outputs, call.finish_reason)


def counts(report: Report) -> list[tuple[Any, ...]]:
    """The numbers of a report that are no times."""
    return [
        (
            line.name,
            line.kind,
            line.calls,
            line.prompt,
            line.cached,
            line.computed,
            line.needed,
            line.generated,
            line.forced,
        )
        for line in (*report.variables, *report.branches, *report.programs, report.total)
    ]
