"""Strict orders against a naive scheduler, and the plain queues."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixserve.cache.namespace import Namespace
from radixserve.cache.prefix_cache import PrefixCache
from radixserve.cache.token_key import encode_tokens
from radixserve.config import CacheConfig, SchedulerConfig
from radixserve.messages import SamplingParams
from radixserve.scheduler.policy import ByPriority, FirstComeFirstServed, OrderedQueue
from radixserve.scheduler.request import Request
from radixserve.scheduler.tree_policy import DepthFirstWeight, LongestPrefixMatch
from radixserve.scheduler.waiting_queue import waiting_queue
from tests.scheduler.machine import Machine
from tests.scheduler.naive import Job, service

JOBS = st.lists(
    st.builds(Job, st.sampled_from([0, 0, 1, 3, 8]), st.integers(1, 30), st.integers(1, 9), st.integers(0, 2)),
    min_size=1,
    max_size=12,
)


@settings(deadline=None, max_examples=200)
@given(JOBS, st.integers(1, 5), st.sampled_from([5, 12, 30, 100]), st.booleans(), st.booleans())
def test_strict_orders_serve_as_a_naive_scheduler_does(
    jobs: list[Job], rows: int, budget: int, by_priority: bool, static: bool
) -> None:
    """Whole prompts, nothing shared, blocks enough: step by step the same requests."""
    machine = Machine(
        max_running=rows,
        max_batch_tokens=budget,
        policy="priority" if by_priority else "fcfs",
        batching="static" if static else "continuous",
        chunked_prefill=False,
        check=False,
    )
    served: list[list[str]] = []
    todo = sorted(range(len(jobs)), key=lambda index: jobs[index].at)
    while todo or machine.scheduler.has_work:
        while todo and jobs[todo[0]].at <= len(served):
            job = jobs[todo[0]]
            machine.add(
                f"r{todo.pop(0)}", [1000 + len(machine.prompts)] * job.prompt, job.output, priority=job.priority
            )
        plan = machine.step()
        served.append([] if plan is None else sorted(row.rid for row in plan.rows))
    expected = service(jobs, rows=rows, budget=budget, by_priority=by_priority, static=static)
    assert served == [sorted(f"r{index}" for index in step) for step in expected]
    machine.check_idle()


def request(arrival: int, priority: int = 0, sample: int = 0) -> Request:
    made = Request(
        f"r{arrival}", encode_tokens([1]), SamplingParams(), Namespace("m"), max_tokens=1, seed=0, priority=priority
    )
    made.arrival, made.sample_index = arrival, sample
    return made


@pytest.mark.parametrize("kind", [FirstComeFirstServed, ByPriority])
@settings(deadline=None, max_examples=100)
@given(st.integers(0, 2**32), st.integers(0, 150))
def test_plain_queues_pop_in_the_order_of_their_key(kind: type[OrderedQueue], seed: int, count: int) -> None:
    """Against a sorted list, with removals, returns, and samples of one arrival."""
    rng, queue = random.Random(seed), kind()
    waiting: list[Request] = []
    arrivals = iter(range(10**6))
    for _ in range(count):
        choice = rng.random()
        if choice < 0.5:
            waiting.append(request(next(arrivals), rng.randrange(3), rng.randrange(2)))
            queue.add(waiting[-1])
        elif choice < 0.7 and waiting:
            gone = waiting.pop(rng.randrange(len(waiting)))
            assert queue.remove(gone)
            assert not queue.remove(gone)
            if rng.random() < 0.5:
                queue.add(gone)
                waiting.append(gone)
        elif waiting:
            first = min(waiting, key=queue.key)
            assert queue.pop() is first
            waiting.remove(first)
            assert queue.slack(first) == 0
        assert len(queue) == len(waiting)
        assert {id(item) for item in queue} == {id(item) for item in waiting}
    while waiting:
        first = min(waiting, key=queue.key)
        assert queue.pop() is first
        waiting.remove(first)
    assert queue.pop() is None


def test_a_plain_queue_does_not_grow_with_what_left_it() -> None:
    queue = FirstComeFirstServed()
    stays = request(0)
    queue.add(stays)
    for _ in range(10_000):
        queue.remove(stays)
        queue.add(stays)
    assert len(queue._heap) <= 2 * len(queue) + 64
    assert queue.pop() is stays


@pytest.mark.parametrize(
    ("policy", "mode", "queue"),
    [
        ("lpm", "on", LongestPrefixMatch),
        ("dfs-weight", "on", DepthFirstWeight),
        ("fcfs", "on", FirstComeFirstServed),
        ("priority", "on", ByPriority),
        ("lpm", "off", FirstComeFirstServed),
        ("dfs-weight", "force_miss", FirstComeFirstServed),
        ("priority", "off", ByPriority),
    ],
)
def test_orders_that_look_at_the_tree_need_one(policy: str, mode: str, queue: type) -> None:
    cache = PrefixCache(CacheConfig(num_blocks=8, prefix_cache=mode))  # type: ignore[arg-type]
    assert type(waiting_queue(SchedulerConfig(policy=policy), cache, 64)) is queue  # type: ignore[arg-type]
