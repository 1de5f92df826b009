"""How long a request can be kept waiting by others."""

from __future__ import annotations

import math

import pytest

from radixserve.scheduler.request import Request
from tests.scheduler.machine import Machine

FLOOD = 10_000


def passed_by(machine: Machine, loner: Request) -> int:
    """Later arrivals that were started before ``loner``."""
    assert loner.started_step is not None
    return sum(
        request.arrival > loner.arrival
        and request.started_step is not None
        and request.started_step < loner.started_step
        for request in machine.requests.values()
    )


@pytest.mark.parametrize(("age_weight", "expected"), [(8.0, 64), (2.0, 256)])
def test_a_request_that_shares_nothing_waits_no_longer_than_its_age_allows(age_weight: float, expected: int) -> None:
    """A match of 512 tokens is worth 512 / age_weight arrivals; the bound follows from the context of 1,024 tokens."""
    machine = Machine(
        num_blocks=400, max_running=4, age_weight=age_weight, context_length=1024, max_batch_tokens=256, check=False
    )
    prefix = list(range(512))
    machine.add("first", prefix, 1)
    machine.run()
    machine.add("busy", [9000], 3)
    machine.step()
    loner = machine.add("loner", [1000 + index for index in range(40)], 1)
    for index in range(FLOOD):
        machine.add(f"s{index}", [*prefix, 2000 + index], 1)
    while loner.started_step is None:
        machine.step()
    assert expected - 4 <= passed_by(machine, loner) <= expected
    assert expected <= math.ceil(1024 / age_weight)


@pytest.mark.parametrize("priority", [0, 40, 1000])
def test_nobody_is_passed_without_end_by_high_priorities(priority: int) -> None:
    """A match of 512 tokens is worth 64 arrivals, and the priority up to 64 more."""
    machine = Machine(num_blocks=400, max_running=4, context_length=1024, max_batch_tokens=256, check=False)
    prefix = list(range(512))
    machine.add("first", prefix, 1)
    machine.run()
    machine.add("busy", [9000], 3)
    machine.step()
    loner = machine.add("loner", [1000 + index for index in range(40)], 1)
    for index in range(1000):
        machine.add(f"s{index}", [*prefix, 2000 + index], 1, priority=priority)
    while loner.started_step is None:
        machine.step()
    expected = 64 + min(priority, 64)
    assert expected - 4 <= passed_by(machine, loner) <= expected


def test_fcfs_knows_no_priorities() -> None:
    machine = Machine(num_blocks=400, max_running=1, policy="fcfs")
    for index in range(5):
        machine.add(f"r{index}", [index], 1, priority=index)
    machine.run()
    steps = [machine.requests[f"r{index}"].started_step or 0 for index in range(5)]
    assert steps == sorted(steps)


def test_one_that_does_not_fit_becomes_a_barrier() -> None:
    """It needs half of the pool, which sharers that always fit would keep from it for ever."""
    machine = Machine(
        num_blocks=64,
        max_running=8,
        age_weight=16.0,
        context_length=512,
        watermark=0.0,
        admission="reserve_max",
        check=False,
    )
    prefix = list(range(256))
    machine.add("first", prefix, 1)
    machine.run()
    for index in range(8):
        machine.add(f"w{index}", [*prefix, 1000 + index], 60)
    machine.step()
    loner = machine.add("loner", [5000 + index for index in range(400)], 100)
    for index in range(FLOOD):
        machine.add(f"s{index}", [*prefix, 2000 + index], 40 + index % 30)
    bound = math.ceil(512 / 16.0)
    closed = 0
    while loner.started_step is None:
        before = len(machine.scheduler.waiting)
        machine.step()
        admitted = before - len(machine.scheduler.waiting)
        done = sum(
            request.arrival > loner.arrival for request in machine.requests.values() if request.started_step is not None
        )
        assert done <= bound
        if done == bound and loner.started_step is None:
            closed += 1
            assert admitted == 0 or closed == 1, "nothing overtakes a barrier"
        assert machine.scheduler.step < 5000
    assert bound - 8 <= passed_by(machine, loner) <= bound
    assert closed > 10, "there was room for sharers all the while"


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_a_strict_order_lets_nobody_pass_one_that_does_not_fit(policy: str) -> None:
    machine = Machine(num_blocks=20, max_running=8, policy=policy, watermark=0.0, admission="reserve_max")
    machine.add("running", [1], 100)
    machine.step()
    large = machine.add("large", [2] * 200, 60)
    small = machine.add("small", [3], 1)
    machine.run()
    assert large.started_step is not None and small.started_step is not None
    assert small.started_step >= large.started_step > 100
    machine.check_idle()


def test_lpm_lets_others_pass_one_that_does_not_fit() -> None:
    machine = Machine(num_blocks=20, max_running=8, watermark=0.0, admission="reserve_max")
    machine.add("running", [1], 100)
    machine.step()
    large = machine.add("large", [2] * 200, 60)
    small = machine.add("small", [3], 1)
    machine.run()
    assert large.started_step is not None and small.started_step is not None
    assert small.started_step == 2
    assert large.started_step > 100


@pytest.mark.parametrize("policy", ["lpm", "fcfs", "dfs-weight", "priority"])
@pytest.mark.parametrize("late", [0, 1, 2])
def test_a_short_prompt_beside_two_long_ones_has_its_first_token_within_two_steps(policy: str, late: int) -> None:
    """Two prompts of 6,000 tokens need six steps; whoever comes beside them does not wait for their end."""
    machine = Machine(policy=policy, max_batch_tokens=2048, num_blocks=1000, check=False)
    for index in range(2):
        machine.add(f"long{index}", [index] * 6000, 1)
    for _ in range(late):
        machine.step()
    machine.add("short", [7] * 10, 1)
    steps = 0
    while not machine.tokens("short"):
        machine.step()
        steps += 1
    assert steps <= 2
    assert not machine.tokens("long1")
    machine.run()
    machine.check_idle()


def test_a_prompt_goes_on_however_little_the_decodes_leave() -> None:
    """Less than a block of budget: the chunk ends inside a block, but it ends further on."""
    machine = Machine(max_running=12, max_batch_tokens=16)
    for index in range(8):
        machine.add(f"d{index}", [index], 1000)
    machine.step()
    machine.add("long", list(range(100, 140)), 1)
    plans = [machine.step() for _ in range(5)]
    assert machine.tokens("long")
    assert [plan.num_tokens for plan in plans if plan is not None] == [16] * 5
