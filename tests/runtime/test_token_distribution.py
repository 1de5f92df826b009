from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixserve.messages import SamplingParams
from radixserve.runtime.token_distribution import TokenDistribution

BELOW_ONE = 1 - 2**-53


@settings(deadline=None, max_examples=100)
@given(
    st.sampled_from((1, 2, 100, 256, 257, 600)),
    st.integers(0, 2**32 - 1),
    st.floats(0, BELOW_ONE) | st.sampled_from((0.0, BELOW_ONE)),
)
def test_the_draw_inverts_the_cumulative_distribution_in_id_order(size: int, seed: int, uniform: float) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 3, size).astype(np.float32)
    logits[rng.random(size) < 0.5] = -np.inf
    logits[rng.integers(size)] = 1.0
    distribution = TokenDistribution.of(logits, SamplingParams())
    token = distribution.token(uniform)
    weights = distribution.weights.tolist()
    total, slack = math.fsum(weights), 1e-12 * math.fsum(weights)
    assert weights[token] > 0
    assert math.fsum(weights[:token]) - slack <= uniform * total <= math.fsum(weights[: token + 1]) + slack


@pytest.mark.parametrize("size", [1, 3, 256, 257, 1024])
def test_equal_weights_are_drawn_in_equal_parts(size: int) -> None:
    distribution = TokenDistribution.of(np.zeros(size, np.float32), SamplingParams())
    assert [distribution.token((i + 0.5) / size) for i in range(size)] == list(range(size))
    assert distribution.token(0.0) == 0
    assert distribution.token(BELOW_ONE) == size - 1


def test_a_token_of_weight_zero_is_never_drawn() -> None:
    """Neither at the ends of the range, nor where a whole block of weights is zero."""
    logits = np.full(1024, -np.inf, np.float32)
    logits[[300, 700]] = 0.0
    distribution = TokenDistribution.of(logits, SamplingParams())
    drawn = [distribution.token(uniform) for uniform in (0.0, 0.5 - 2**-53, 0.5, BELOW_ONE)]
    assert drawn == [300, 300, 700, 700]


def test_weights_too_small_to_add_to_the_sum_are_harmless() -> None:
    logits = np.array([0.0, -50.0, -800.0], np.float32)
    distribution = TokenDistribution.of(logits, SamplingParams())
    assert distribution.token(BELOW_ONE) == 0


@pytest.mark.parametrize("temperature", [1e-6, 1e-300, 5e-324])
def test_a_tiny_temperature_is_greedy_and_not_nan(temperature: float) -> None:
    logits = np.array([3e38, -3e38, 3e38, 1.0, -np.inf], np.float32)
    distribution = TokenDistribution.of(logits, SamplingParams(temperature=temperature))
    assert distribution.weights.tolist() == [1.0, 0.0, 1.0, 0.0, 0.0]
    assert distribution.token(BELOW_ONE) == 2


def test_top_k_leaves_out_the_least_likely_token_alone() -> None:
    logits = np.array([0.0, -1.0, 2.0, -1.0], np.float32)
    kept = {k: TokenDistribution.of(logits, SamplingParams(top_k=k)).ids for k in (1, 2, 3, 4)}
    assert {k: None if ids is None else ids.tolist() for k, ids in kept.items()} == {
        1: [2],
        2: [0, 2],
        3: [0, 1, 2],
        4: None,
    }


def test_filters_apply_in_order() -> None:
    """top_p counts on what top_k left: of four equal tokens top_k keeps two, of which half is one."""
    logits = np.array([0.0, 1.0, 1.0, 1.0, 1.0], np.float32)
    distribution = TokenDistribution.of(logits, SamplingParams(top_k=2, top_p=0.5))
    assert distribution.ids is not None
    assert distribution.ids.tolist() == [1]
    distribution = TokenDistribution.of(logits, SamplingParams(top_k=-1, top_p=0.9, min_p=0.5))
    assert distribution.ids is not None
    assert distribution.ids.tolist() == [1, 2, 3, 4]


def test_temperature_zero_leaves_the_distribution_alone() -> None:
    logits = np.array([0.0, 1.0, 2.0], np.float32)
    plain = TokenDistribution.of(logits, SamplingParams())
    greedy = TokenDistribution.of(logits, SamplingParams(temperature=0.0, top_k=1, top_p=0.1, min_p=1.0))
    assert greedy.ids is None
    assert np.array_equal(greedy.weights, plain.weights)
