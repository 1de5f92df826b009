"""Two steps in flight: what comes out is what comes out one step at a time, and no plan counts on what did not come."""

from __future__ import annotations

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from tests.scheduler.overlapped import OverlappedRun
from tests.scheduler.workloads import Run, Workload, workloads

PACE = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
TIMINGS = st.lists(st.booleans(), min_size=1, max_size=5).map(tuple)


@settings(PACE, max_examples=130)
@given(workloads(guided=False), TIMINGS)
def test_every_request_ends_once_with_what_it_brings_alone(workload: Workload, timing: tuple[bool, ...]) -> None:
    """Aborts at any moment, steps and rows that fail, evictions and preemptions included."""
    run = OverlappedRun(workload, timing=timing)
    run.check_outcomes()
    stats = run.machine.scheduler.stats
    event(f"planned ahead: {run.machine.ahead > 0}, taken back: {run.machine.voided > 0}")
    event(f"preemptions: {stats.preemptions > 0}")
    event(f"failed steps: {stats.failed_steps > 0}")


@settings(PACE, max_examples=70)
@given(workloads(faults=False, guided=False), TIMINGS)
def test_the_account_is_that_of_a_run_without_overlap(workload: Workload, timing: tuple[bool, ...]) -> None:
    ahead, plain = OverlappedRun(workload, timing=timing), Run(workload)
    ahead.check_outcomes()
    assert not ahead.machine.blamed
    assert ahead.machine.samples == plain.machine.samples
    for stats in (one.machine.scheduler.stats for one in (ahead, plain)):
        event(f"preemptions: {stats.preemptions > 0}")
    one, other = ahead.machine.scheduler.stats, plain.machine.scheduler.stats
    assert (one.generated_tokens, one.forced_tokens, one.finished) == (
        other.generated_tokens,
        other.forced_tokens,
        other.finished,
    )


@settings(PACE, max_examples=40)
@given(workloads(), TIMINGS)
def test_guided_outputs_wait_for_their_tokens(workload: Workload, timing: tuple[bool, ...]) -> None:
    OverlappedRun(workload, timing=timing).check_outcomes()
