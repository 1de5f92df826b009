"""The steps that are planned and not collected: at most the one that runs and the one that is to run after it.

The later one counts on the earlier one: it leases nodes that the earlier one writes, and computes tokens that it draws. So where
the earlier one fails, the later one is void: it is taken back first, as if it had never been planned, and planned anew.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from radixserve.cache.prefix_cache import PrefixCache
from radixserve.scheduler.output import SchedulerStats
from radixserve.scheduler.plan import StepPlan
from radixserve.scheduler.plan_builder import PlanBuilder
from radixserve.scheduler.request import Request

MOST_IN_FLIGHT = 2


@dataclass(frozen=True, slots=True)
class Flight:
    """A planned step, its requests in the order of its rows, and what their cache accounting was before it."""

    plan: StepPlan
    requests: list[Request]
    before: list[tuple[int, int]]


class StepsInFlight:
    """All of them, the oldest first; the only one that is ever collected."""

    def __init__(self, cache: PrefixCache, stats: SchedulerStats) -> None:
        self._cache = cache
        self._stats = stats
        self._flights: list[Flight] = []

    def __len__(self) -> int:
        return len(self._flights)

    def begin(self, builder: PlanBuilder) -> StepPlan:
        """The step that ``builder`` holds is planned."""
        plan = builder.build()
        self._cache.begin(plan.step)
        self._flights.append(Flight(plan, builder.requests, builder.before))
        return plan

    def start_of(self, request: Request) -> int:
        """Where the first row of ``request`` in flight starts: so many tokens of it are in place."""
        starts = (
            row.start
            for flight in self._flights
            for row, its in zip(flight.plan.rows, flight.requests, strict=True)
            if its is request
        )
        return next(starts)

    def collect(self, plan: StepPlan) -> Flight:
        """``plan`` has run: it is in flight no more, and its nodes are committed."""
        flight = self._oldest(plan)
        self._cache.collect(plan.step)
        for row, request in zip(flight.plan.rows, flight.requests, strict=True):
            _landed(request, drew=row.num_samples > 0)
        return flight

    def void_later(self, keep: Collection[Request] = ()) -> None:
        """Take back the step after the one that was just collected.

        ``keep``: requests whose leases are needed still; they only let go of what that step writes.
        """
        while self._flights:
            self._take_back(self._flights.pop(), keep)

    def fail(self, plan: StepPlan) -> Flight:
        """``plan`` failed: take it back, and before it the step after it."""
        flight = self._oldest(plan)
        self.void_later()
        self._take_back(flight, ())
        return flight

    def _oldest(self, plan: StepPlan) -> Flight:
        assert self._flights and self._flights[0].plan.step == plan.step, (
            "steps are collected in the order of their plans"
        )
        # Counted only now, so that no count ever goes back.
        self._stats.steps += 1
        self._stats.rows += len(plan.rows)
        self._stats.computed_tokens += plan.num_tokens
        return self._flights.pop(0)

    def _take_back(self, flight: Flight, keep: Collection[Request]) -> None:
        step = flight.plan.step
        rows = zip(flight.plan.rows, flight.requests, flight.before, strict=True)
        for row, request, (cached, frontier) in reversed(list(rows)):
            _landed(request, drew=row.num_samples > 0)
            request.group.cached_tokens, request.frontier = cached, frontier
            lease = request.lease
            if lease is None:
                # The step after it was taken back before.
                continue
            if request in keep:
                request.num_computed = self._cache.retreat(lease, step)
            else:
                self._cache.discard(lease)
                request.lease, request.num_computed = None, 0
        self._cache.roll_back(step)


def _landed(request: Request, *, drew: bool) -> None:
    request.in_flight -= 1
    request.awaits -= drew
