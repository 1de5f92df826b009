"""The engine's core, with everything it does noted."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from radixserve.config import EngineConfig
from radixserve.engine.core import EngineCore
from radixserve.errors import UnsupportedFeature
from radixserve.messages import GenerationChunk, SamplingParams
from radixserve.model.tokenizer import Tokenizer
from radixserve.planner.stand_in import StandIn
from radixserve.planner.step_cost import StepCost
from radixserve.planner.trace import StepTrace, Trace
from radixserve.runtime.step_runner import Runner
from radixserve.runtime.token_choice import Choices
from radixserve.scheduler.plan import StepPlan, StepResult


class TracedCore(EngineCore):
    """An `EngineCore` over any runner: a real one, or `StandIn`. What it did is in ``trace``.

    Its clock is the plan's: steps take what ``cost`` says, and ``skipped`` is time without any.
    """

    def __init__(
        self, config: EngineConfig, runner: Runner, tokenizer: Tokenizer, *, cost: StepCost, **options: Any
    ) -> None:
        self.trace = Trace()
        self.cost = cost
        self.skipped = 0.0
        super().__init__(config, _WatchedRunner(runner, self), tokenizer, clock=self.now, **options)
        self._stands_in = isinstance(runner, StandIn)
        if isinstance(runner, StandIn):
            runner.attach(self.scheduler.requests, self.trace.intent)

    def now(self) -> float:
        """Seconds of the plan since it began."""
        return self.trace.seconds + self.skipped

    def add(
        self,
        rid: str,
        tokens: npt.NDArray[np.int32] | list[int],
        sampling: SamplingParams,
        *,
        priority: int = 0,
        salt: bytes = b"",
        **options: Any,
    ) -> None:
        """As `EngineCore.add`. A runner without a model has no hidden states to pool: `UnsupportedFeature`."""
        if self._stands_in and options.get("pooling") is not None:
            raise UnsupportedFeature("pooling", "a plan has no model, so there are no hidden states")
        super().add(rid, tokens, sampling, priority=priority, salt=salt, **options)
        prompt = tokens if isinstance(tokens, list) else tokens.tolist()
        self.trace.begin(rid, prompt, sampling, salt=salt, priority=priority)

    def step(self) -> list[GenerationChunk]:
        """As `EngineCore.step`."""
        chunks = super().step()
        for chunk in chunks:
            if chunk.output is not None:
                self.trace.end(chunk.output)
        return chunks


class _WatchedRunner:
    """``runner``, with the plans that it executes noted in the trace of ``core``."""

    def __init__(self, runner: Runner, core: TracedCore) -> None:
        self._runner = runner
        self._core = core

    def execute(self, plan: StepPlan, choices: Choices | None = None) -> StepResult:
        core, cache = self._core, self._core.cache
        for row in plan.rows:
            request = core.scheduler.requests[row.rid]
            core.trace.computed(request.group.rid, max(0, min(row.end, request.num_prompt) - row.start))
        seconds = core.cost.seconds(plan)
        core.trace.step(
            StepTrace(
                rows=len(plan.rows),
                tokens=plan.num_tokens,
                held=cache.pool.total - cache.available_blocks,
                kept=cache.pool.total - cache.pool.num_free,
                seconds=seconds,
            )
        )
        result = self._runner.execute(plan, choices)
        if result.seconds == 0.0 and not core.cost.nominal:
            # The scheduler learns from it what a step takes, as from a real one.
            return StepResult(result.step, result.rows, seconds)
        return result
