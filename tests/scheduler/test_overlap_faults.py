"""What could go wrong with two steps in flight, done wrong on purpose: the properties of `test_overlap` must notice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, find, settings

from radixserve.cache.flight_book import FlightBook
from radixserve.cache.prefix_cache import PrefixCache
from radixserve.scheduler.plan import StepResult
from radixserve.scheduler.request import Request
from radixserve.scheduler.scheduler import Scheduler
from radixserve.scheduler.step_planner import StepPlanner
from radixserve.scheduler.steps_in_flight import StepsInFlight
from tests.scheduler.overlapped import OverlappedRun
from tests.scheduler.workloads import Workload, workloads

SEARCH = settings(
    max_examples=600,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
Patch = pytest.MonkeyPatch


def extra_token_is_committed(patch: Patch) -> None:
    """A request that ends leaves all that was planned for it."""
    finish = Scheduler.finish

    def faulty(self: Scheduler, request: Request, *args: Any, **kwargs: Any) -> None:
        planned = request.num_computed
        finish(self, request, *args, **kwargs)
        request.num_computed = min(planned, request.num_tokens)

    patch.setattr(Scheduler, "finish", faulty)


def blocks_are_freed_at_once(patch: Patch) -> None:
    """Blocks are given back though a step in flight may read them."""
    patch.setattr(FlightBook, "give_back", lambda self, blocks: self._pool.free(blocks))


def leases_end_with_the_request(patch: Patch) -> None:
    """A request lets go of everything when it ends, though a later step has a row of it."""
    finish = Scheduler.finish

    def faulty(self: Scheduler, request: Request, *args: Any, **kwargs: Any) -> None:
        finish(self, request, *args, **kwargs)
        self._planner.release(request)

    patch.setattr(Scheduler, "finish", faulty)


def settled_to_what_is_planned(patch: Patch) -> None:
    """What a later step computes is taken for computed when the earlier one is collected."""
    settle = PrefixCache.settle

    def faulty(self: PrefixCache, lease: Any, key: Any, num_computed: int) -> None:
        settle(self, lease, key, min(len(key) // 4, len(lease.table) * self.block_size))

    patch.setattr(PrefixCache, "settle", faulty)


def nobody_waits(patch: Patch) -> None:
    """Rows whose draw depends on the token before are planned without it."""
    patch.setattr(Request, "needs_result", property(lambda self: False))


def limits_are_forgotten(patch: Patch) -> None:
    """A row is planned after the last token that a request may have."""
    patch.setattr(Request, "ends_in_flight", property(lambda self: False))


def later_step_outlives_a_failure(patch: Patch) -> None:
    """A step is not taken back when the one before it failed."""
    patch.setattr(StepsInFlight, "void_later", lambda self, keep=(): None)


def failed_rows_are_built_upon(patch: Patch) -> None:
    """A step goes on though a row of the one before it failed."""
    patch.setattr(StepResult, "sound", property(lambda self: True))


def preempted_in_flight(patch: Patch) -> None:
    """Who gives way while a step is in flight is chosen as if there were none."""

    def faulty(self: StepPlanner, builder: Any) -> None:
        if not self.suspects and not any(request.needs_result for request in self.running):
            self._plan_batch(builder)

    patch.setattr(StepPlanner, "plan_ahead", faulty)


FAULTS: Sequence[Callable[[Patch], None]] = (
    extra_token_is_committed,
    blocks_are_freed_at_once,
    leases_end_with_the_request,
    settled_to_what_is_planned,
    nobody_waits,
    limits_are_forgotten,
    later_step_outlives_a_failure,
    failed_rows_are_built_upon,
    preempted_in_flight,
)


@pytest.mark.parametrize("plant", FAULTS)
def test_planted_faults_are_found(plant: Callable[[Patch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)

    def goes_wrong(load: Workload) -> bool:
        try:
            # The later step runs once the earlier one is collected, and in every third turn before.
            OverlappedRun(load, timing=(False, False, True)).check_outcomes()
        except Exception:
            return True
        return False

    find(workloads(guided=False), goes_wrong, settings=SEARCH)
