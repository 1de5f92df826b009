"""What the engine asks of whatever executes its plans."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from radixserve.runtime.token_choice import Choices
from radixserve.scheduler.plan import StepPlan, StepResult


class Runner(Protocol):
    """Executes plans, one at a time and in the order of their steps.

    That is all a runner must do, with overlap as without: it then runs on one thread that is not the scheduler's (always the same
    one, but not the one that made the runner), and gets plans whose tokens are all known. It must let go of the interpreter
    while it computes, or nothing overlaps.
    """

    def execute(self, plan: StepPlan, choices: Choices | None = None) -> StepResult:
        """Run one step; raising fails the whole step. ``choices``: of the rows that may not draw every token."""


class BegunStep(Protocol):
    """A step on its way."""

    def result(self) -> StepResult:
        """Wait for it; raises what failed the step. May be called by several threads, and again."""


@runtime_checkable
class FeedingRunner(Protocol):
    """A runner that can begin a step before the tokens that it starts from are known to the host."""

    def begin(self, plan: StepPlan, choices: Choices | None, before: BegunStep | None) -> BegunStep:
        """Begin ``plan``, and return as early as it can.

        ``before``: the step it was planned after, if that was not collected by then; the tokens of ``plan``'s open rows come from it.
        What is enqueued here runs after all that was enqueued for ``before``. Raises `StepVoided` where ``before`` is seen to have failed.
        """


class FinishedStep:
    """A step whose ``result`` is there."""

    __slots__ = ("_result",)

    def __init__(self, result: StepResult) -> None:
        self._result = result

    def result(self) -> StepResult:
        """At once."""
        return self._result
