"""Random workloads: what comes out is what each request brings alone, whatever the scheduler did meanwhile."""

from __future__ import annotations

from hypothesis import HealthCheck, event, given, settings

from tests.scheduler.workloads import Run, Workload, workloads

PACE = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@settings(PACE, max_examples=400)
@given(workloads())
def test_every_request_ends_once_with_what_it_brings_alone(workload: Workload) -> None:
    """Aborts at any moment, steps and rows that fail, evictions and preemptions included."""
    run = Run(workload)
    run.check_outcomes()
    stats = run.machine.scheduler.stats
    event(f"preemptions: {stats.preemptions > 0}")
    event(f"evictions: {run.machine.cache.stats.evictions > 0}")
    event(f"failed steps: {stats.failed_steps > 0}")
    event(f"holds: {run.held}, under pressure: {run.machine.cache.holds.stats.gave_way > 0}")


@settings(PACE, max_examples=250)
@given(workloads(faults=False))
def test_nothing_fails_where_nothing_is_broken(workload: Workload) -> None:
    """However small the pool: no error, no abort, no blame."""
    run = Run(workload)
    run.check_outcomes()
    assert not run.machine.blamed
    assert not {"error", "abort"} & set(run.machine.scheduler.stats.finished)


@settings(PACE, max_examples=80)
@given(workloads())
def test_the_same_input_gives_the_same_plans(workload: Workload) -> None:
    assert Run(workload).plans == Run(workload).plans
