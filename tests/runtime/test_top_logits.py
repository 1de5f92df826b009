"""Rows that a few of their largest logits decide: which they are, and that they get what all logits would give them."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from radixserve.messages import SamplingParams
from radixserve.runtime.sampler import MOST_CANDIDATES, Sampler
from radixserve.runtime.top_logits import TopLogits
from radixserve.scheduler.plan import PlanRow
from tests.tiny_decoder import plan_row

EOS = (1,)
SHORT = (
    SamplingParams(temperature=0),
    SamplingParams(temperature=0.8, top_k=1),
    SamplingParams(temperature=0.8, top_k=7, top_p=0.9),
    SamplingParams(temperature=1.5, top_k=MOST_CANDIDATES, min_p=0.05),
)
LONG = (
    SamplingParams(temperature=0, logprobs=2),
    SamplingParams(temperature=0, logit_bias={5: 4.0}),
    SamplingParams(temperature=0, repetition_penalty=1.4),
    SamplingParams(temperature=0, min_tokens=3, stop_token_ids=(9,)),
    SamplingParams(temperature=0.8),
    SamplingParams(temperature=0.8, top_k=MOST_CANDIDATES + 1),
    SamplingParams(temperature=0.8, top_k=7, logprobs=0),
)


def row_of(sampling: SamplingParams, *, seed: int = 0, num_samples: int = 1, table: int = 0) -> PlanRow:
    tokens = np.random.default_rng(seed).integers(0, 131, 5)
    row = plan_row(tokens, [table], rid=str(table), num_samples=num_samples)
    history = row.tokens if sampling.needs_history else None
    return msgspec.structs.replace(row, sampling=sampling, seed=seed, history=history)


@pytest.mark.parametrize(("sampling", "count"), list(zip(SHORT, (1, 1, 7, MOST_CANDIDATES), strict=True)))
def test_rows_that_few_logits_decide(sampling: SamplingParams, count: int) -> None:
    assert Sampler(131, EOS).candidates(row_of(sampling)) == count


@pytest.mark.parametrize("sampling", LONG)
def test_rows_that_need_all(sampling: SamplingParams) -> None:
    assert Sampler(131, EOS).candidates(row_of(sampling)) is None


def test_a_filter_as_wide_as_the_vocabulary_is_none() -> None:
    row = row_of(SamplingParams(temperature=1.0, top_k=40))
    assert Sampler(40, EOS).candidates(row) is None
    assert Sampler(41, EOS).candidates(row) == 40


@st.composite
def short_sampling(draw: st.DrawFn) -> SamplingParams:
    return SamplingParams(
        temperature=draw(st.sampled_from((0.0, 0.01, 0.7, 1.0, 100.0))),
        top_k=draw(st.sampled_from((1, 2, 5, 30))),
        top_p=draw(st.sampled_from((1.0, 0.9, 0.3))),
        min_p=draw(st.sampled_from((0.0, 0.1, 1.0))),
    )


@settings(deadline=None, max_examples=200)
@given(sampling=short_sampling(), spare=st.integers(0, 20), seed=st.integers(0, 10**6), num_samples=st.integers(1, 3))
def test_the_largest_alone_give_the_same_result(
    sampling: SamplingParams, spare: int, seed: int, num_samples: int
) -> None:
    vocab = 300
    # Quarters, so that ties are frequent, also at the border of what is kept.
    logits = (np.random.default_rng(seed).integers(-12, 12, vocab) / 4).astype(np.float32)
    logits[::17] = -np.inf
    row, sampler = row_of(sampling, seed=seed, num_samples=num_samples), Sampler(vocab, EOS)
    count = sampler.candidates(row)
    assert count is not None
    order = np.argsort(-logits, kind="stable")[: count + spare]
    top = TopLogits(order[None].astype(np.int32), logits[order][None])
    assert sampler.sample_top([row], top) == sampler.sample([row], torch.from_numpy(logits)[None])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("sampling", SHORT)
def test_what_is_not_finite_is_the_same_error(sampling: SamplingParams, bad: float) -> None:
    logits = np.full(100, bad if bad == float("-inf") else 0.0, np.float32)
    logits[7] = bad
    top = TopLogits(np.full((1, 64), -1, np.int32), np.full((1, 64), bad, np.float32))
    row, sampler = row_of(sampling), Sampler(100, EOS)
    result = sampler.sample_top([row], top)
    assert result == sampler.sample([row], torch.from_numpy(logits)[None])
    assert result[0].error is not None
