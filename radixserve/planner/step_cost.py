"""How long a step is taken to last: what orders calls and timers while there is no model that takes its time."""

from __future__ import annotations

from dataclasses import dataclass

from radixserve.errors import ConfigError
from radixserve.scheduler.budget import step_work
from radixserve.scheduler.plan import StepPlan


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of a step: ``fixed``, ``token`` for each token, ``pair`` for each token and token that it attends to.

    ``nominal``: nobody measured these; they order events and say nothing of time.
    """

    fixed: float
    token: float = 0.0
    pair: float = 0.0
    nominal: bool = False

    def seconds(self, plan: StepPlan) -> float:
        """Of the step ``plan``."""
        tokens, pairs = step_work(plan)
        return self.fixed + self.token * tokens + self.pair * pairs


NOMINAL = StepCost(0.01, nominal=True)


def parse_step_cost(text: str) -> StepCost:
    """``FIXED,TOKEN,PAIR`` in seconds. Raises `ConfigError`."""
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) != 3 or not all(0 <= number < float("inf") for number in numbers) or not any(numbers):
        raise ConfigError("step_cost", f"must be FIXED,TOKEN,PAIR, three numbers of seconds, not {text!r}")
    fixed, token, pair = numbers
    return StepCost(fixed, token, pair)
