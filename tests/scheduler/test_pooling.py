"""Pooling hidden states over steps: the same bits however the prompt was cut, and nothing computed twice or left out."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixserve.cache.namespace import Namespace
from radixserve.cache.token_key import encode_tokens
from radixserve.messages import SamplingParams
from radixserve.scheduler.pooling import Pool
from radixserve.scheduler.request import Request

LENGTH = 97
STATES = np.random.default_rng(0).normal(size=(LENGTH, 8)) * 10.0 ** np.random.default_rng(1).integers(
    -6, 6, (LENGTH, 8)
)


@given(st.lists(st.integers(1, LENGTH - 1), unique=True))
def test_the_mean_has_the_same_bits_for_every_cut(cuts: list[int]) -> None:
    whole = Pool("mean", LENGTH)
    whole.add(STATES)
    pool = Pool("mean", LENGTH)
    edges = [0, *sorted(cuts), LENGTH]
    for start, end in pairwise(edges):
        assert pool.vector() is None
        first = pool.start_in(start, end)
        assert first == start
        pool.add(STATES[first:end])
    assert pool.vector() == whole.vector()
    assert np.allclose(np.array(pool.vector()), STATES.mean(0) / np.linalg.norm(STATES.mean(0)))


def test_what_was_pooled_before_a_preemption_is_not_pooled_again() -> None:
    pool = Pool("mean", LENGTH)
    pool.add(STATES[:40])
    assert pool.start_in(0, 30) is None
    assert pool.start_in(0, 60) == 40
    assert pool.start_in(50, 60) == 50


def test_the_last_state_is_the_last_one() -> None:
    pool = Pool("last", LENGTH)
    assert pool.start_in(0, LENGTH - 1) is None
    assert pool.start_in(10, LENGTH) == LENGTH - 1
    pool.add(STATES[-1:])
    vector = pool.vector()
    assert vector is not None
    assert np.allclose(vector, STATES[-1] / np.linalg.norm(STATES[-1]))


def test_a_zero_vector_stays_one() -> None:
    pool = Pool("mean", 2)
    pool.add(np.zeros((2, 3)))
    assert pool.vector() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(("pooling", "limits"), [("mean", [0, 5]), ("last", [9, 9])])
def test_how_much_may_come_from_the_cache(pooling: str, limits: list[int]) -> None:
    request = Request(
        "r",
        encode_tokens(range(10)),
        SamplingParams(max_tokens=0),
        Namespace("m"),
        max_tokens=0,
        seed=0,
        pooling="mean" if pooling == "mean" else "last",
    )
    assert request.match_limit == limits[0]
    assert request.pool is not None
    if pooling == "mean":
        request.pool.add(STATES[:5])
    assert request.match_limit == limits[1]
