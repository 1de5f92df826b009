"""A machine that plans a step while another one is in flight, and runs workloads that way."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from radixserve.scheduler.plan import StepPlan, StepResult
from tests.scheduler.fake_runner import StepFailed
from tests.scheduler.machine import Machine
from tests.scheduler.workloads import Run


@dataclass(slots=True)
class Flight:
    """A plan, and what came of it once it was executed."""

    plan: StepPlan
    outcome: StepResult | StepFailed | None = None


class OverlappedMachine(Machine):
    """``eager``: the later step runs before the earlier one is collected, not after. ``ahead``: steps planned while one was in flight."""

    eager = True
    ahead = 0
    voided = 0

    flights: deque[Flight]

    def lift_off(self) -> None:
        """Plan steps until two are in flight, or no more can be planned."""
        while len(self.flights) < 2:
            plan = self.plan()
            if plan is None:
                return
            self.ahead += len(self.flights)
            assert plan.is_open <= len(self.flights)
            self.flights.append(Flight(plan))

    def land(self) -> None:
        """Execute the oldest step if it was not yet, and collect it."""
        self._execute(None, self.flights[0])
        if self.eager and len(self.flights) == 2:
            self._execute(*self.flights)
        flight = self.flights.popleft()
        plan, outcome = flight.plan, flight.outcome
        if isinstance(outcome, StepFailed):
            if len(plan.rows) == 1:
                self._blame(plan.rows[0].rid)
            self._void()
            self.scheduler.fail(plan, outcome)
        else:
            assert outcome is not None
            for row, brought in zip(plan.rows, outcome.rows, strict=True):
                if brought.error:
                    self._blame(row.rid)
            if not outcome.sound:
                self._void()
            self.scheduler.update(plan, outcome)
            if self.flights:
                # Executed later, it has what it reads all the same.
                following = self.flights[0]
                following.plan = following.plan.filled(outcome)
        self.check()

    def _blame(self, rid: str) -> None:
        # What becomes of the token after its last one is nothing to a request.
        if rid in self.scheduler.requests:
            self.blamed.add(rid)

    def _void(self) -> None:
        self.voided += len(self.flights)
        self.flights.clear()

    def _execute(self, before: Flight | None, flight: Flight) -> None:
        if flight.outcome is not None:
            return
        plan = flight.plan
        if before is not None:
            if not isinstance(before.outcome, StepResult) or not before.outcome.sound:
                return
            plan = plan.filled(before.outcome)
        try:
            flight.outcome = self.runner.execute(plan)
        except StepFailed as error:
            flight.outcome = error


@dataclass
class OverlappedRun(Run):
    """A workload on an `OverlappedMachine`. ``timing``: for each step in turn whether the later one runs early."""

    timing: tuple[bool, ...] = (True,)
    machine: OverlappedMachine = field(init=False)

    machine_type = OverlappedMachine

    def step(self, now: int) -> None:
        machine = self.machine
        if now == 0:
            machine.flights = deque()
        machine.eager = self.timing[now % len(self.timing)]
        machine.lift_off()
        self._abort(now, in_flight=True)
        if machine.flights:
            machine.land()
        machine.collect()

    @property
    def busy(self) -> bool:
        return bool(self.machine.flights) or super().busy
