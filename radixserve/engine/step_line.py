"""The line of steps in front of a runner: one runs, and the next stands ready behind it."""

from __future__ import annotations

import logging
from concurrent.futures import Future, ThreadPoolExecutor

from radixserve.engine.constrained import StepChoices
from radixserve.errors import StepVoided
from radixserve.runtime.step_runner import BegunStep, FeedingRunner, FinishedStep, Runner
from radixserve.scheduler.plan import StepPlan, StepResult

logger = logging.getLogger(__name__)


class LaunchedStep:
    """A plan that was handed to the runner. ``began``: when its planning did, as `time.monotonic` counts."""

    __slots__ = ("_choices", "began", "begun", "plan")

    def __init__(self, plan: StepPlan, choices: StepChoices | None, began: float, begun: Future[BegunStep]) -> None:
        self.plan = plan
        self.began = began
        self.begun = begun
        self._choices = choices

    def result(self) -> StepResult:
        """Wait for it. Raises what failed the step, once nothing looks at it any more."""
        try:
            return self.begun.result().result()
        except Exception:
            self._settle()
            raise

    def drop(self) -> None:
        """Wait until it has run, and forget what it brought."""
        try:
            self.result()
        except Exception as error:
            logger.debug("step %d was void: %s", self.plan.step, error)
        self._settle()

    def _settle(self) -> None:
        if self._choices is not None:
            self._choices.settle()


class StepLine:
    """Hands plans to ``runner`` in their order.

    ``threaded``: on a thread of its own, which ends with this object; otherwise `launch` runs the step and returns when it has run.
    """

    def __init__(self, runner: Runner, *, threaded: bool) -> None:
        self._runner = runner
        self._feeding = runner if threaded and isinstance(runner, FeedingRunner) else None
        self._thread = ThreadPoolExecutor(1, "radixserve-steps") if threaded else None

    def launch(
        self, plan: StepPlan, choices: StepChoices | None, began: float, after: LaunchedStep | None
    ) -> LaunchedStep:
        """Have ``plan`` run. ``after``: the step it was planned after, if that is not collected."""
        before = None if after is None else after.begun
        if self._thread is not None:
            begun = self._thread.submit(self._begin, plan, choices, before)
        else:
            begun = Future()
            try:
                begun.set_result(self._begin(plan, choices, before))
            except Exception as error:
                begun.set_exception(error)
        return LaunchedStep(plan, choices, began, begun)

    def _begin(self, plan: StepPlan, choices: StepChoices | None, before: Future[BegunStep] | None) -> BegunStep:
        # Steps begin in their order, so what is asked of the step before never has to be waited for here, but for its tokens.
        if self._feeding is not None:
            return self._feeding.begin(plan, choices, None if before is None else before.result())
        if before is not None:
            result = before.result().result()
            if not result.sound:
                raise StepVoided(plan.step)
            plan = plan.filled(result)
        # Runners that draw freely need not know of choices.
        return FinishedStep(self._runner.execute(plan) if choices is None else self._runner.execute(plan, choices))

    def close(self) -> None:
        """End the thread, after the steps it has."""
        if self._thread is not None:
            self._thread.shutdown()
