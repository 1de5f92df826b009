"""The line of steps in front of a runner: one runs, and the next stands ready behind it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from radixserve.engine.constrained import StepChoices
from radixserve.errors import StepVoided
from radixserve.runtime.step_runner import BegunStep, FeedingRunner, FinishedStep, Runner
from radixserve.scheduler.plan import StepPlan, StepResult

logger = logging.getLogger(__name__)


class _Begun(Protocol):
    """The part of a `Future` that is used here."""

    def result(self) -> BegunStep:
        """Wait for the step to begin; raises what failed that."""


@dataclass(frozen=True, slots=True)
class _Ran:
    """A future whose time has come, without the lock that a `Future` makes for those who wait."""

    step: BegunStep | None
    error: Exception | None

    @classmethod
    def now(cls, begin: Callable[[], BegunStep]) -> _Ran:
        """What came of ``begin``."""
        try:
            return cls(begin(), None)
        except Exception as error:
            return cls(None, error)

    def result(self) -> BegunStep:
        """At once."""
        if self.error is not None:
            raise self.error
        assert self.step is not None, "a step that did not fail was begun"
        return self.step


class LaunchedStep:
    """A plan that was handed to the runner. ``began``: when its planning did, as `time.monotonic` counts."""

    __slots__ = ("_choices", "began", "begun", "plan")

    def __init__(self, plan: StepPlan, choices: StepChoices | None, began: float, begun: _Begun) -> None:
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
        begun: _Begun
        if self._thread is not None:
            begun = self._thread.submit(self._begin, plan, choices, before)
        else:
            begun = _Ran.now(lambda: self._begin(plan, choices, before))
        return LaunchedStep(plan, choices, began, begun)

    def _begin(self, plan: StepPlan, choices: StepChoices | None, before: _Begun | None) -> BegunStep:
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
