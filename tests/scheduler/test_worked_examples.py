"""Examples whose numbers can be worked out by hand."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from radixserve.messages import FinishReason
from tests.scheduler.machine import Machine

EIGHT = [2, 5, 3, 8, 4, 3, 5, 6]


def tokens(seed: int, count: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(50_000) for _ in range(count)]


def few_shot(machine: Machine) -> None:
    """Sixteen requests at once behind one cold prefix of 1,000 tokens, with 64 tokens of their own."""
    prefix = tokens(0, 1000)
    for index in range(16):
        machine.add(f"r{index}", [*prefix, 60_000 + index, *tokens(index + 1, 63)], 1)


def test_sixteen_requests_compute_their_cold_prefix_once_in_one_step() -> None:
    """The first computes all its 1,064 tokens; each other leases the 62 full blocks of the prefix and computes the rest.

    The 8 tokens of the prefix that fill no block are computed by everyone: only written blocks are a source of copies.
    """
    machine = Machine(max_batch_tokens=4096)
    few_shot(machine)
    plan = machine.step()
    assert plan is not None
    assert plan.num_tokens == 992 + 16 * 72 == 2144
    assert [len(row.tokens) for row in plan.rows] == [1064] + [72] * 15
    assert [machine.requests[f"r{index}"].group.cached_tokens for index in range(16)] == [0] + [992] * 15
    machine.check_idle()


def test_a_small_budget_computes_the_prefix_once_over_several_steps() -> None:
    """Every position of the prefix's 62 full blocks is in exactly one row of all steps.

    The first request needs 1,064 tokens in 256 a step, so its prompt ends in step 5, and one follower is planned beside
    it from the pending blocks (992 of 1,064 tokens re-used); when the prefix is committed the other 14 copy its
    part-filled block as well and compute only their own 64: 1,064 + 72 + 14 x 64 = 2,032.
    """
    machine = Machine(max_batch_tokens=256)
    few_shot(machine)
    computed: Counter[int] = Counter()
    for plan in machine.run():
        for row in plan.rows:
            computed.update(range(row.start, row.end))
    assert all(computed[position] == 1 for position in range(992))
    assert computed[999] == 2
    assert all(computed[position] == 16 for position in range(1000, 1064))
    assert machine.scheduler.stats.computed_tokens == 2032
    assert machine.scheduler.stats.steps == 8
    machine.check_idle()


@pytest.mark.parametrize(
    ("batching", "steps", "useful", "fifth"), [("static", 14, 45 / 70, 9), ("continuous", 12, 0.75, 3)]
)
def test_eight_requests_on_four_rows(batching: str, steps: int, useful: float, fifth: int) -> None:
    """36 tokens in all. Static waits for the longest of each four (8 + 6 steps); continuous fills every row that ends."""
    machine = Machine(max_running=4, batching=batching)
    for index, length in enumerate(EIGHT):
        machine.add(f"r{index}", [index + 1], length)
    plans = machine.run()
    assert len(plans) == steps
    assert sum(len(plan.rows) for plan in plans) == sum(EIGHT) == 36
    assert sum(EIGHT) / (4 * steps) == pytest.approx(useful, abs=0.001)
    assert next(plan.step for plan in plans if any(row.rid == "r4" for row in plan.rows)) == fifth
    machine.check_idle()


def test_a_static_batch_of_unequal_outputs_is_mostly_idle() -> None:
    machine = Machine(max_running=4, batching="static", check=False)
    for index, length in enumerate([10, 50, 200, 2000]):
        machine.add(f"r{index}", [index + 1], length)
    plans = machine.run()
    assert len(plans) == 2000
    assert sum(len(plan.rows) for plan in plans) / (4 * len(plans)) == 0.2825
    machine.check_idle()


@pytest.mark.parametrize(("admission", "max_tokens", "admitted"), [("reserve_max", 7200, 50), ("adaptive", 8, 408)])
def test_how_many_requests_a_pool_of_411_525_tokens_holds(admission: str, max_tokens: int, admitted: int) -> None:
    """25,720 blocks of 16: 512 blocks each when 8,192 tokens are reserved, 63 when the 1,000 that are used are."""
    machine = Machine(
        num_blocks=411_525 // 16,
        max_running=1000,
        max_batch_tokens=10**6,
        admission=admission,
        watermark=0.0,
        check=False,
    )
    for index in range(450):
        machine.add(f"r{index}", [index + 1] * 992, max_tokens)
    plan = machine.plan()
    assert plan is not None and len(plan.rows) == admitted
    if admission == "adaptive":
        for index in range(admitted):
            assert machine.scheduler.requests[f"r{index}"].num_computed == 992
        held = 63 * 16
        assert (held - 1000) / held < 0.01
        assert machine.cache.pool.total // 63 == admitted


def test_decodes_beside_a_long_prompt_are_never_skipped() -> None:
    """32 decodes leave 2,016 of 2,048 tokens: 32,768 / 2,016 = 16.25, so 17 steps, and every one has 33 rows."""
    machine = Machine(max_running=64, max_batch_tokens=2048, context_length=40_000, num_blocks=4000, check=False)
    for index in range(32):
        machine.add(f"r{index}", [index + 1], 100)
    machine.step()
    machine.add("long", tokens(0, 32_768), 1)
    plans = []
    while "long" in machine.scheduler.requests:
        plan = machine.step()
        assert plan is not None and len(plan.rows) == 33
        plans.append(plan)
    assert len(plans) == 17
    assert [plan.num_tokens for plan in plans[:16]] == [2048] * 16
    assert all(len(machine.tokens(f"r{index}")) == 18 for index in range(32))


def test_a_shared_prefix_of_2010_tokens_hits_2010_tokens() -> None:
    """125 blocks by reference and 10 tokens of the next by copy."""
    machine = Machine()
    prefix = tokens(0, 2010)
    first = machine.add("a", [*prefix, 60_001, *tokens(1, 199)], 3)
    machine.run()
    second = machine.add("b", [*prefix, 60_002, *tokens(2, 199)], 3)
    plan = machine.step()
    assert plan is not None
    assert (first.group.cached_tokens, second.group.cached_tokens) == (0, 2010)
    assert (plan.num_tokens, len(plan.copies)) == (200, 1)
    machine.run()
    machine.check_idle()


@pytest.mark.parametrize("max_tokens", [1, 5, 16, 33])
def test_every_chat_turn_hits_all_that_was_committed_before(max_tokens: int) -> None:
    """All of a turn but its last drawn token, whose KV nobody has computed."""
    machine = Machine()
    history: list[int] = []
    committed = 0
    for turn in range(4):
        history += tokens(turn, 37)
        request = machine.add(f"t{turn}", history, max_tokens)
        machine.run()
        assert request.group.cached_tokens == committed
        assert request.finish_reason is FinishReason.LENGTH
        history += machine.tokens(f"t{turn}")
        committed = request.num_computed
        assert committed == len(history) - 1
    machine.check_idle()


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 32, 33])
def test_a_prompt_that_is_cached_whole_still_computes_one_token(length: int) -> None:
    machine = Machine()
    prompt = tokens(0, length)
    machine.add("a", prompt, 3)
    machine.run()
    again = machine.add("b", prompt, 3)
    plan = machine.step()
    assert plan is not None and plan.num_tokens == 1
    assert again.group.cached_tokens == length - 1
    machine.run()
    assert machine.tokens("a") == machine.tokens("b")
