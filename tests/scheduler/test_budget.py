"""Shares, chunks, the estimate of outputs and the cost model."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixserve.messages import SamplingParams
from radixserve.scheduler.budget import CostModel, OutputEstimate, chunk_end, fair_shares, split_budget, step_work
from radixserve.scheduler.plan import PlanRow, StepPlan

NEEDS = st.lists(st.integers(0, 40), max_size=8)


def by_single_tokens(needs: Sequence[int], budget: int) -> list[int]:
    """Max-min fairness, token by token: each goes to the smallest share that can grow; of several, to the largest need."""
    shares = [0] * len(needs)
    for _ in range(budget):
        growing = [index for index, need in enumerate(needs) if shares[index] < need]
        if not growing:
            break
        shares[min(growing, key=lambda index: (shares[index], -needs[index], index))] += 1
    return shares


@settings(deadline=None, max_examples=300)
@given(NEEDS, st.integers(0, 200))
def test_fair_shares_are_those_of_filling_token_by_token(needs: list[int], budget: int) -> None:
    shares = fair_shares(needs, budget)
    assert sum(shares) == min(budget, sum(needs))
    assert all(0 <= share <= need for share, need in zip(shares, needs, strict=True))
    assert shares == by_single_tokens(needs, budget)


def test_fair_shares_of_known_needs() -> None:
    assert fair_shares([], 7) == []
    assert fair_shares([100, 10, 100], 90) == [40, 10, 40]
    assert fair_shares([6000, 6000, 10], 2048) == [1019, 1019, 10]
    assert fair_shares([5, 5, 5], 2) == [1, 1, 0]


@pytest.mark.parametrize(
    ("start", "total", "grant", "end"),
    [
        (0, 100, 100, 100),
        (0, 100, 99, 96),
        (0, 100, 15, 0),
        (0, 100, 16, 16),
        (10, 100, 6, 16),
        (10, 100, 5, 10),
        (96, 100, 4, 100),
    ],
)
def test_a_chunk_ends_with_the_sequence_or_at_a_block_boundary(start: int, total: int, grant: int, end: int) -> None:
    assert chunk_end(start, total, grant, 16) == end


@st.composite
def spans(draw: st.DrawFn) -> list[tuple[int, int]]:
    pairs = draw(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 60)), min_size=1, max_size=7))
    return [(start, start + need) for start, need in pairs]


@settings(deadline=None, max_examples=300)
@given(spans(), st.integers(1, 200), st.sampled_from([1, 4, 16]), st.randoms(use_true_random=False))
def test_split_budget_is_aligned_and_within_budget(
    todo: list[tuple[int, int]], budget: int, size: int, rng: random.Random
) -> None:
    seniority = list(range(len(todo)))
    rng.shuffle(seniority)
    grants = split_budget(todo, budget, size, seniority)
    assert 0 < sum(grants) <= budget, "something goes on, never more than the budget"
    whole_blocks = [
        grant
        for (start, end), grant in zip(todo, grants, strict=True)
        if grant and start + grant < end and (start + grant) % size
    ]
    assert not whole_blocks or grants == [0] * seniority[0] + whole_blocks + [0] * (len(todo) - seniority[0] - 1)
    assert all(0 <= grant <= end - start for (start, end), grant in zip(todo, grants, strict=True))
    # Nobody has less than its fair share by more than what alignment costs.
    fair = fair_shares([end - start for start, end in todo], budget)
    assert all(grant > share - size for grant, share in zip(grants, fair, strict=True))


def test_the_remainder_goes_to_the_oldest() -> None:
    assert split_budget([(0, 100), (0, 100)], 48, 16, [1, 0]) == [16, 32]
    assert split_budget([(0, 100), (0, 100)], 48, 16, [0, 1]) == [32, 16]
    assert split_budget([(0, 100), (0, 100)], 12, 16, [1, 0]) == [0, 12]


def test_the_estimate_follows_what_is_used_and_jumps_at_a_preemption() -> None:
    estimate = OutputEstimate()
    assert estimate.tokens(100) == 50
    for _ in range(100):
        estimate.finished(10, 100)
    assert estimate.share == pytest.approx(0.1, abs=1e-3)
    before = estimate.share
    estimate.preempted()
    assert estimate.share == pytest.approx(1.5 * before + 0.05)
    for _ in range(20):
        estimate.preempted()
    assert estimate.tokens(100) == 100
    for _ in range(200):
        estimate.finished(0, 100)
    assert estimate.tokens(100) > 0, "something is always reserved"
    assert estimate.tokens(0) == 0


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=30))
def test_the_estimate_reserves_no_more_than_may_be_drawn(history: list[tuple[int, int]]) -> None:
    estimate = OutputEstimate()
    for used, allowed in history:
        estimate.finished(min(used, allowed), allowed)
        estimate.preempted()
        assert 0 <= estimate.tokens(allowed) <= allowed
        assert 0 < estimate.share <= 1


def row(start: int, count: int) -> PlanRow:
    return PlanRow(
        f"{start}/{count}", start, np.zeros(count, np.int32), np.zeros(1, np.int32), SamplingParams(), 0, count
    )


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 100), st.integers(1, 30)), max_size=5))
def test_step_work_counts_every_token_and_its_context(rows: list[tuple[int, int]]) -> None:
    tokens, work = step_work(StepPlan(1, tuple(row(start, count) for start, count in rows)))
    assert tokens == sum(count for _, count in rows)
    assert work == sum(position + 1 for start, count in rows for position in range(start, start + count))


FIXED, TOKEN, CONTEXT = 8e-3, 5.7e-4, 2e-7


def taught(seed: int, *, noise: float = 0.0, steps: int = 200) -> CostModel:
    """A model that has seen steps of all kinds."""
    rng = random.Random(seed)
    model = CostModel()
    for _ in range(steps):
        tokens = rng.choice([rng.randint(1, 64), rng.randint(64, 2048)])
        work = tokens * rng.randint(1, 8000)
        seconds = FIXED + TOKEN * tokens + CONTEXT * work
        model.observe(tokens, work, seconds * (1 + rng.uniform(-noise, noise)))
    return model


def test_the_cost_model_learns_what_a_step_costs() -> None:
    model = taught(0)
    assert model.coefficients == pytest.approx((FIXED, TOKEN, CONTEXT), rel=0.01)
    assert model.predict(100, 50_000) == pytest.approx(FIXED + 100 * TOKEN + 50_000 * CONTEXT, rel=0.01)


def test_the_cost_model_lives_with_noise_and_forgets() -> None:
    model = taught(1, noise=0.1)
    assert model.predict(500, 10**6) == pytest.approx(FIXED + 500 * TOKEN + 10**6 * CONTEXT, rel=0.1)
    rng = random.Random(2)
    for _ in range(600):
        tokens = rng.randint(1, 2048)
        model.observe(tokens, tokens * 100, 3 * (FIXED + TOKEN * tokens + CONTEXT * tokens * 100))
    assert model.predict(500, 50_000) == pytest.approx(3 * (FIXED + 500 * TOKEN + 50_000 * CONTEXT), rel=0.05)


def test_ten_thousand_equal_steps_do_not_unsettle_the_cost_model() -> None:
    """Decodes alone excite one direction only; what was learned of the others must not drift into nonsense."""
    model = taught(3)
    for index in range(10_000):
        model.observe(32, 32 * (500 + index % 3), FIXED + 32 * TOKEN + CONTEXT * 32 * (500 + index % 3))
    assert all(np.isfinite(model.coefficients))
    assert min(model.coefficients) >= 0
    assert model.predict(32, 16_000) == pytest.approx(FIXED + 32 * TOKEN + CONTEXT * 16_000, rel=0.01)


@settings(deadline=None, max_examples=200)
@given(st.integers(1, 64), st.integers(0, 8000), st.integers(0, 8000), st.floats(0.001, 3.0), st.integers(0, 4096))
def test_tokens_within_fill_the_target_and_do_not_pass_it(
    tokens: int, context: int, start: int, target: float, limit: int
) -> None:
    model = taught(4)
    work = tokens * context
    count = model.tokens_within(target, tokens, work, start, limit)

    def seconds(count: int) -> float:
        return model.predict(tokens + count, work + count * start + count * (count + 1) // 2)

    assert 0 <= count <= limit
    if count:
        assert seconds(count) <= target * (1 + 1e-9)
    if count < limit:
        assert seconds(count + 1) > target * (1 - 1e-9)


def test_before_it_knows_anything_the_cost_model_is_careful() -> None:
    model = CostModel()
    assert model.tokens_within(1.0, 4, 100, 0, 4096) == 64
    for _ in range(50):
        model.observe(4, 100, 0.01)
    # Steps of four tokens say nothing of what a prompt costs: no leap, but doubling.
    assert model.tokens_within(1.0, 4, 100, 0, 4096) == 64
    model.observe(68, 3000, 0.02)
    assert model.tokens_within(1.0, 4, 100, 0, 4096) == 136
    assert model.tokens_within(1.0, 4, 100, 0, 50) == 50
