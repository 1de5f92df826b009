"""What the rows of a plan say."""

from __future__ import annotations

import pytest

from radixserve.cache.namespace import Namespace
from radixserve.cache.prefix_cache import PrefixCache
from radixserve.cache.token_key import encode_tokens
from radixserve.config import CacheConfig
from radixserve.messages import SamplingParams
from radixserve.scheduler.output import SchedulerStats
from radixserve.scheduler.plan_builder import PlanBuilder
from radixserve.scheduler.request import Request
from radixserve.scheduler.steps_in_flight import StepsInFlight
from tests.scheduler.machine import Machine


def test_history_is_given_only_where_a_penalty_looks_at_it_and_a_token_is_drawn() -> None:
    machine = Machine(max_batch_tokens=64)
    machine.add("plain", list(range(100)), 3)
    machine.add("penalty", list(range(100)), 3, repetition_penalty=1.2)
    rows = [row for plan in machine.run() for row in plan.rows]
    assert all(row.history is None for row in rows if row.rid == "plain")
    penalties = [row for row in rows if row.rid == "penalty"]
    assert all((row.history is not None) == (row.num_samples == 1) for row in penalties)
    assert [len(row.history) for row in penalties if row.history is not None] == [100, 101, 102]


@pytest.mark.parametrize("budget", [1, 7, 16, 40, 200])
@pytest.mark.parametrize("start", [0, 1, 5, 16, 38, 39, 40])
def test_prompt_logprobs_are_wanted_once_each_whatever_the_chunks(budget: int, start: int) -> None:
    """Position p is predicted by the row that computes p - 1, so a chunk's last token predicts the next chunk's first."""
    machine = Machine(max_batch_tokens=budget, max_running=1)
    prompt = [100 + position for position in range(40)]
    machine.add("warm", prompt, 1)
    machine.run()
    request = machine.add("a", prompt, 2, prompt_logprobs=0, logprob_start=start)
    plans = machine.run()
    wanted = []
    for plan in plans:
        for row in plan.rows:
            if row.prompt_logprob_targets is not None:
                assert row.start <= row.prompt_logprob_start < row.end
                places = range(row.prompt_logprob_start, row.prompt_logprob_start + len(row.prompt_logprob_targets))
                assert places[-1] < row.end
                wanted += list(zip(places, row.prompt_logprob_targets.tolist(), strict=True))
    assert wanted == [(position - 1, prompt[position]) for position in range(max(1, start), 40)]
    expected = max(0, start - 1) if start < 40 else 39
    assert request.group.cached_tokens == expected
    assert len(request.group.prompt_logprobs) == len(wanted)
    machine.check_idle()


def test_a_plan_is_a_snapshot() -> None:
    """Nothing that happens to the scheduler before the step is executed shows in the plan."""
    machine = Machine(max_batch_tokens=64)
    for index in range(3):
        machine.add(f"r{index}", list(range(30)), 9)
    machine.step()
    plan = machine.plan()
    assert plan is not None
    before = [(row.tokens.tolist(), row.table.tolist(), row.end) for row in plan.rows]
    machine.scheduler.abort("r0")
    machine.add("more", list(range(40)), 3)
    machine.cache.flush()
    for request in list(machine.scheduler.running):
        if request.lease is not None:
            request.lease.table.append(99)
            request.lease.table.pop()
        request.key[:4] = b"\xff\xff\xff\xff"
        request.key[:4] = b"\x00\x00\x00\x00"
    assert [(row.tokens.tolist(), row.table.tolist(), row.end) for row in plan.rows] == before
    machine.complete(plan)
    machine.collect()
    machine.run()
    machine.check_idle()


@pytest.mark.parametrize("chunk", range(1, 42))
def test_chunks_of_every_size_give_the_same_tokens(chunk: int) -> None:
    """They end at block boundaries wherever one is within reach."""
    machine = Machine(max_batch_tokens=chunk, max_running=1, block_size=4)
    machine.add("a", list(range(41)), 3)
    plans = machine.run()
    ends = [plan.rows[0].end for plan in plans]
    assert ends[-1] == 43
    assert all(end % 4 == 0 for end in ends if end < 41) or chunk < 4
    whole = Machine(max_running=1, block_size=4)
    whole.add("a", list(range(41)), 3)
    whole.run()
    assert machine.tokens("a") == whole.tokens("a")


def test_a_copy_is_left_out_where_its_source_would_take_the_last_block() -> None:
    """Four blocks: the request needs all of them, so the cached part-filled block cannot stay beside them."""
    machine = Machine(num_blocks=4, block_size=4, max_running=2, chunked_prefill=False)
    machine.add("before", list(range(6)), 1)
    machine.run()
    request = machine.add("a", list(range(14)), 2)
    plan = machine.step()
    assert plan is not None
    assert len(plan.copies) == 0
    assert request.group.cached_tokens == 4
    machine.run()
    machine.check_idle()


PROMPT = list(range(20))


def follower(rid: str) -> Request:
    key = encode_tokens([*PROMPT, ord(rid)])
    return Request(rid, key, SamplingParams(), Namespace("m", "", b""), max_tokens=1, seed=0)


def test_without_a_row_nothing_is_held_of_a_step_that_is_only_planned() -> None:
    """Step 2 is planned behind step 1. Two requests follow a third one into what step 2 writes and then get no row in it.

    The one that step 1 computes goes back to what that writes; the one without any row lets go of everything.
    """
    cache = PrefixCache(CacheConfig(block_size=4, num_blocks=16))
    leader, second, third = follower("a"), follower("b"), follower("c")
    first = PlanBuilder(cache, 1)
    assert [first.extend(leader, 4, cut=True), first.extend(second, 4, cut=True)] == [4, 4]
    flights = StepsInFlight(cache, SchedulerStats())
    plan = flights.begin(first)

    ahead = PlanBuilder(cache, 2)
    assert ahead.extend(leader, 4, cut=True) == 4 and leader.num_computed == 12
    third.lease = cache.acquire(third.namespace, third.key, 4)
    third.num_computed = third.lease.leased_tokens
    assert [ahead.extend(second, 0, cut=True), ahead.extend(third, 0, cut=True)] == [0, 0]
    assert second.lease is not None and second.lease.node.pending == 1 and second.num_computed == 8
    assert third.lease is None and third.num_computed == 0
    cache.check()
    flights.begin(ahead)

    # What step 1 failed to write is gone, and so is what was planned on it.
    flights.fail(plan)
    cache.check()
    assert len(flights) == 0 and cache.pool.num_free == cache.pool.total
    assert leader.lease is second.lease is None and leader.num_computed == second.num_computed == 0


def test_a_step_that_is_taken_back_leaves_the_one_before_it_alone() -> None:
    """Of a request that is kept, for what it holds has to be thrown away, all that the later step writes is let go of first."""
    cache = PrefixCache(CacheConfig(block_size=4, num_blocks=16))
    bad, good = follower("a"), follower("b")
    flights = StepsInFlight(cache, SchedulerStats())
    first, ahead = PlanBuilder(cache, 1), PlanBuilder(cache, 2)
    first.extend(bad, 8, cut=True)
    plan = flights.begin(first)
    ahead.extend(bad, 8, cut=True)
    ahead.extend(good, 2, cut=False)
    flights.begin(ahead)
    flights.collect(plan)
    flights.void_later(keep=[bad])
    cache.check()
    assert bad.lease is not None and (bad.num_computed, bad.in_flight) == (8, 0)
    assert not bad.lease.node.pending and bad.lease.node.end == 8
    assert good.lease is None and good.num_computed == 0
    cache.disown(bad.lease)
    assert cache.pool.num_free == cache.pool.total
