"""Plans of programs and of logs: the doors to this package."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from radixlang.accounting import Ledger
from radixlang.backends.base import Usage
from radixlang.backends.engine import EngineBackend
from radixlang.recording import Recording
from radixlang.report import Report, batch_report, program_report
from radixserve.config import EngineConfig
from radixserve.engine.offline import Engine
from radixserve.planner.lockstep import LockstepEventLoop, LockstepLoop
from radixserve.planner.log import read_log
from radixserve.planner.log_run import LogRun
from radixserve.planner.model import PlanModel, load_plan_model, plan_info, traced_core
from radixserve.planner.options import PlanOptions
from radixserve.planner.plan import Plan
from radixserve.planner.planned_backend import PlannedBackend
from radixserve.planner.stand_in import StandIn
from radixserve.planner.summary import summarize
from radixserve.planner.traced_core import TracedCore

T = TypeVar("T")


class BatchProgram(Protocol):
    """What is planned of `radixlang.Program`."""

    async def arun_batch(self, items: Sequence[Any], **options: Any) -> list[Any]:
        """Run it once for each of ``items``."""


def plan_program(
    program: BatchProgram,
    inputs: Sequence[Mapping[str, Any] | Sequence[Any]],
    *,
    source: str = "program",
    options: PlanOptions | None = None,
    config: EngineConfig | None = None,
    model: PlanModel | None = None,
    recording: Recording | None = None,
    run_options: Mapping[str, Any] | None = None,
) -> Plan:
    """Run ``program`` once for each of ``inputs`` on an engine without a model.

    ``run_options``: what `radixlang.Program.arun_batch` takes besides. ``recording``: answers of a real run. Raises what the program
    raises, `ConfigError` and `ModelLoadError`.
    """
    options, config = options or PlanOptions(), config or EngineConfig()
    model = model or load_plan_model(config.model.model)
    core, runner = _core(model, config, options)
    loop = LockstepLoop(core)
    engine = Engine.on_loop(loop, plan_info(model, core), core.config, model.text)
    backend = PlannedBackend(EngineBackend(engine), None if recording is None else recording.replay())
    given = {"concurrency": options.concurrency, **(run_options or {})}
    try:
        states = run_in_lockstep(loop, lambda: program.arun_batch(inputs, backend=backend, **given))
    finally:
        engine.close()
    return summarize(
        source,
        core,
        batch_report(states),
        model.text.tokenizer,
        options,
        _core_of(model, config, options),
        unknown=backend.unknown,
        strays=runner.strays,
    )


def plan_log(
    path: Path,
    *,
    options: PlanOptions | None = None,
    config: EngineConfig | None = None,
    model: PlanModel | None = None,
    history: bool = True,
) -> Plan:
    """Play a log of prompts (`radixserve.planner.log`) on an engine without a model.

    ``history`` as in `LogRun`. Raises `InvalidRequest` naming the line and field that is wrong, `ConfigError` and `ModelLoadError`.
    """
    options, config = options or PlanOptions(), config or EngineConfig()
    model = model or load_plan_model(config.model.model)
    core, runner = _core(model, config, options)
    log = read_log(path, model.text, core.limits)
    run = LogRun(core, model.text, log, concurrency=options.concurrency, history=history)
    run.run()
    return summarize(
        str(path),
        core,
        _log_report(core),
        model.text.tokenizer,
        options,
        _core_of(model, config, options),
        unknown=sum(call.intent.answers is None for call in core.trace.calls),
        strays=runner.strays,
        refused=run.refused,
        skipped=log.skipped,
    )


def run_in_lockstep(loop: LockstepLoop, work: Callable[[], Any]) -> Any:
    """What ``work()``, awaited on an event loop that drives ``loop``, returns or raises; works under any running event loop."""
    found: list[Any] = []
    failed: list[BaseException] = []

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: LockstepEventLoop(loop)) as runner:

            async def main() -> Any:
                return await work()

            try:
                found.append(runner.run(main()))
            except BaseException as error:
                failed.append(error)

    thread = threading.Thread(target=run, name="radixserve-plan")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return found[0]


def _core(model: PlanModel, config: EngineConfig, options: PlanOptions) -> tuple[TracedCore, StandIn]:
    runner = StandIn(model.text.tokenizer, model.text.generation.eos_ids, output_tokens=options.output_tokens)
    return traced_core(model, config, runner, cost=options.cost), runner


def _core_of(model: PlanModel, config: EngineConfig, options: PlanOptions) -> Callable[[int], TracedCore]:
    def core_of(blocks: int) -> TracedCore:
        sized = dataclasses.replace(config, cache=dataclasses.replace(config.cache, num_blocks=blocks))
        return _core(model, sized, options)[0]

    return core_of


def _log_report(core: TracedCore) -> Report:
    """The account of a log, as the language makes it of a program."""
    ledger = Ledger()
    ended = [call for call in core.trace.calls if call.ended is not None]
    for call in sorted(ended, key=lambda call: call.ended or 0):
        usage = Usage(
            prompt=len(call.prompt),
            cached=call.cached,
            computed=call.computed,
            generated=call.generated,
            forced=call.forced,
        )
        ledger.record("(log)", "gen", usage, call.prompt, call.outputs)
    return program_report(ledger)
