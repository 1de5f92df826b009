"""What a program needs, before it is run: tokens, hits, blocks and steps, without a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from radixlang.function import Program
from radixlang.recording import Recording

if TYPE_CHECKING:
    from radixserve.planner.plan import Plan


def plan(
    program: Program,
    inputs: Sequence[Mapping[str, Any] | Sequence[Any]] = ({},),
    *,
    recording: Recording | None = None,
    output_tokens: int = 64,
    concurrency: int = 64,
    hints: bool = True,
    step_cost: tuple[float, float, float] | None = None,
    pools: Sequence[int] = (),
    advise: bool = True,
    run_options: Mapping[str, Any] | None = None,
    **engine_options: Any,
) -> Plan:
    """Run ``program`` once for each of ``inputs`` on an engine of radixserve that has no model; the plan that comes of it.

    The engine's cache and scheduler are the real ones, and so are the model's tokenizer and chat template. What the model would say
    comes from ``recording`` (`radixlang.recording`); where that knows nothing, or there is none, outputs are ``output_tokens`` words
    (at most their ``max_tokens``), and scores are made up. With a recording of a whole run the plan's counts are that run's.

    ``step_cost``: seconds of a step, of each of its tokens, and of each pair of a token and one that it attends to; with it the
    plan tells how long the steps take. ``pools``: sizes of the KV pool, in blocks, to try the same calls in. ``run_options``: what
    `Program.run_batch` takes besides (sampling defaults, ``heal``, ``timeout``). ``engine_options``: those of `radixserve.Engine`, by
    name; the pool is ample unless they limit it.

    Works in notebooks and under running loops. Needs the package radixserve. Raises what the program raises, and `ConfigError`.
    """
    from radixserve.config import EngineConfig
    from radixserve.planner.options import PlanOptions
    from radixserve.planner.planning import plan_program
    from radixserve.planner.step_cost import NOMINAL, StepCost

    return plan_program(
        program,
        inputs,
        source=program.body.__name__,
        options=PlanOptions(
            output_tokens=output_tokens,
            concurrency=concurrency,
            cost=NOMINAL if step_cost is None else StepCost(*step_cost),
            pools=tuple(pools),
            advise=advise,
        ),
        config=EngineConfig.from_options(**engine_options),
        recording=recording,
        run_options={"hints": hints, **(run_options or {})},
    )
