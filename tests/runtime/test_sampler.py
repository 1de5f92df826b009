from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from radixserve.errors import RequestFailed
from radixserve.messages import SamplingParams
from radixserve.runtime.random_numbers import uniform
from radixserve.runtime.sampler import Sampler
from radixserve.scheduler.plan import PlanRow, RowResult

EOS = (1,)


def make_row(
    sampling: SamplingParams,
    *,
    history: list[int] | None = None,
    num_prompt: int = 1,
    seed: int = 0,
    num_samples: int = 1,
    first_sample: int = 0,
) -> PlanRow:
    tokens = np.array(history or [0], np.int32)
    return PlanRow(
        rid="r",
        start=len(tokens) - 1,
        tokens=tokens[-1:],
        table=np.zeros(1, np.int32),
        sampling=sampling,
        seed=seed,
        num_prompt=num_prompt,
        num_samples=num_samples,
        first_sample=first_sample,
        history=tokens if sampling.needs_history else None,
    )


def sample_one(row: PlanRow, logits: np.ndarray[Any, np.dtype[np.float32]]) -> RowResult:
    (result,) = Sampler(len(logits), EOS).sample([row], torch.from_numpy(logits)[None])
    return result


# --- A slow and obvious reference -------------------------------------------------------------------------------------


def reference_logits(logits: list[float], history: list[int], num_prompt: int, sampling: SamplingParams) -> list[float]:
    processed = list(logits)
    output = history[num_prompt:]
    for token in range(len(logits)):
        if token in history:
            penalty = sampling.repetition_penalty
            processed[token] = processed[token] / penalty if processed[token] > 0 else processed[token] * penalty
        if token in output:
            processed[token] -= sampling.frequency_penalty * output.count(token) + sampling.presence_penalty
        processed[token] += sampling.logit_bias.get(token, 0.0)
        ends = token in sampling.stop_token_ids or (token in EOS and not sampling.ignore_eos)
        if ends and len(output) < sampling.min_tokens:
            processed[token] = -math.inf
    return processed


def by_value(values: dict[int, float]) -> list[int]:
    return sorted(values, key=lambda token: (-values[token], token))


def reference_weights(logits: list[float], sampling: SamplingParams, top_p: float) -> dict[int, float]:
    """Unnormalised probabilities of the tokens that may be drawn."""
    kept = by_value(dict(enumerate(logits)))
    if sampling.top_k > 0:
        kept = kept[: sampling.top_k]
    weights = {token: math.exp((logits[token] - max(logits)) / sampling.temperature) for token in kept}
    if sampling.top_p < 1:
        inside: list[int] = []
        for token in by_value(weights):
            inside.append(token)
            if math.fsum(weights[i] for i in inside) >= top_p * math.fsum(weights.values()):
                break
        weights = {token: weights[token] for token in inside}
    return {token: weight for token, weight in weights.items() if weight >= sampling.min_p}


def fits_draw(token: int, weights: dict[int, float], draw: float) -> bool:
    """Whether ``draw`` lies in the token's part of the cumulative distribution in id order, give or take rounding."""
    total = math.fsum(weights.values())
    below = math.fsum(weight for other, weight in weights.items() if other < token)
    return token in weights and below - 1e-9 * total <= draw * total <= below + weights[token] + 1e-9 * total


def check_logprobs(result: RowResult, values: dict[int, float], top: int) -> None:
    """Log-softmax over ``values``, rank and top of every drawn token."""
    peak = max(values.values())
    normalizer = peak + math.log(math.fsum(math.exp(value - peak) for value in values.values()))
    order = [token for token in by_value(values) if values[token] > -math.inf]
    assert len(result.logprobs) == len(result.token_ids)
    for token, entry in zip(result.token_ids, result.logprobs, strict=True):
        assert entry.token_id == token
        assert entry.logprob == pytest.approx(values[token] - normalizer, abs=1e-9)
        assert entry.rank == order.index(token) + 1
        assert [other for other, _ in entry.top] == order[:top]
        assert [logprob for _, logprob in entry.top] == pytest.approx(
            [values[other] - normalizer for other in order[:top]], abs=1e-9
        )


@st.composite
def sampling_params(draw: st.DrawFn, vocab_size: int) -> SamplingParams:
    tokens = st.integers(0, vocab_size - 1)
    return SamplingParams(
        temperature=draw(st.sampled_from((0.0, 0.01, 0.3, 1.0, 1.7, 100.0))),
        top_k=draw(st.sampled_from((0, -1, 1, 2, 5, vocab_size, vocab_size + 1))),
        top_p=draw(st.sampled_from((1.0, 0.99, 0.9, 0.5, 0.1, 1e-6))),
        min_p=draw(st.sampled_from((0.0, 0.0, 0.03, 0.2, 1.0))),
        repetition_penalty=draw(st.sampled_from((1.0, 1.0, 1.25, 0.5))),
        frequency_penalty=draw(st.sampled_from((0.0, 0.0, 0.5, -0.25))),
        presence_penalty=draw(st.sampled_from((0.0, 0.0, 0.75, -1.0))),
        logit_bias=draw(st.dictionaries(tokens, st.sampled_from((-100.0, -0.5, 0.25, 3.0)), max_size=4)),
        min_tokens=draw(st.integers(0, 4)),
        stop_token_ids=tuple(draw(st.lists(tokens.filter(lambda token: token != 0), max_size=2))),
        ignore_eos=draw(st.booleans()),
        logprobs=draw(st.sampled_from((None, 0, 1, 3))),
        logprobs_mode=draw(st.sampled_from(("raw", "processed"))),
    )


@settings(deadline=None, max_examples=300)
@given(st.sampled_from((2, 3, 8, 40, 700)), st.integers(0, 2**32 - 1), st.data())
def test_sampler_agrees_with_the_reference(vocab_size: int, seed: int, data: st.DataObject) -> None:
    sampling = data.draw(sampling_params(vocab_size))
    rng = np.random.default_rng(seed)
    # Quarters, so that ties are frequent and everything else is far from one.
    logits = (rng.integers(-12, 20, vocab_size) / 4).astype(np.float32)
    history = rng.integers(0, vocab_size, rng.integers(1, 12)).tolist()
    num_prompt = int(rng.integers(1, len(history) + 1))
    row = make_row(sampling, history=history, num_prompt=num_prompt, seed=seed, num_samples=3, first_sample=2)
    result = sample_one(row, logits)

    raw = logits.tolist()
    processed = reference_logits(raw, history, num_prompt, sampling)
    assert result.error is None
    assert len(result.token_ids) == 3
    values = dict(enumerate(processed))
    if sampling.temperature == 0:
        assert set(result.token_ids) == {by_value(values)[0]}
    else:
        # Where a sum meets top_p up to rounding, either side of it is right.
        nearby = [reference_weights(processed, sampling, sampling.top_p * factor) for factor in (1 - 1e-12, 1 + 1e-12)]
        fits = [
            all(
                fits_draw(token, weights, uniform(seed, 2 + index, len(history)))
                for index, token in enumerate(result.token_ids)
            )
            for weights in nearby
        ]
        assert any(fits)
        values = {token: processed[token] / sampling.temperature for token in nearby[fits.index(True)]}
    if sampling.logprobs is None:
        assert result.logprobs == ()
    else:
        check_logprobs(result, dict(enumerate(raw)) if sampling.logprobs_mode == "raw" else values, sampling.logprobs)


# --- Greedy -----------------------------------------------------------------------------------------------------------


def test_greedy_ties_go_to_the_lowest_id() -> None:
    logits = torch.zeros(5, 1000)
    for index, ids in enumerate(([999, 3, 500], [0, 999], [17], [998, 999])):
        logits[index, ids] = 5.0
    logits[4] = -torch.inf
    logits[4, [40, 30]] = -7.0
    rows = [make_row(SamplingParams(temperature=0.0, logprobs=1)) for _ in range(5)]
    results = Sampler(1000, EOS).sample(rows, logits)
    assert [result.token_ids for result in results] == [(3,), (0,), (17,), (998,), (30,)]
    assert [result.logprobs[0].rank for result in results] == [1] * 5
    ((token, logprob),) = results[4].logprobs[0].top
    assert token == 30
    assert logprob == pytest.approx(-math.log(2))


def test_negative_zero_ties_with_zero() -> None:
    assert sample_one(make_row(SamplingParams(temperature=0.0)), np.array([-1, -0.0, 0.0], np.float32)).token_ids == (
        1,
    )


# --- Random draws -----------------------------------------------------------------------------------------------------


def test_draws_follow_the_distribution() -> None:
    """12,800 draws over 12 tokens: chi-square with 11 degrees of freedom stays below its 0.999 quantile, 31.3."""
    logits = np.random.default_rng(3).normal(0, 1, 12).astype(np.float32)
    sampling = SamplingParams(temperature=0.8)
    counts: Counter[int] = Counter()
    for position in range(1, 101):
        counts.update(
            sample_one(make_row(sampling, history=[0] * position, seed=11, num_samples=128), logits).token_ids
        )
    weights = reference_weights(logits.tolist(), sampling, 1.0)
    total = math.fsum(weights.values())
    expected = {token: 12800 * weight / total for token, weight in weights.items()}
    assert sum((counts[token] - mean) ** 2 / mean for token, mean in expected.items()) < 31.3


def test_seed_sample_and_position_fix_the_draw() -> None:
    logits = np.zeros(5000, np.float32)

    def draw(**where: Any) -> tuple[int, ...]:
        return sample_one(make_row(SamplingParams(), **where), logits).token_ids

    base = draw(seed=1, history=[0, 0], num_samples=4)
    assert base == draw(seed=1, history=[0, 0], num_samples=4)
    assert base[2:] == draw(seed=1, history=[0, 0], num_samples=2, first_sample=2), "a fork is its own sample alone"
    assert len(set(base)) == 4
    assert base[:1] != draw(seed=2, history=[0, 0])
    assert base[:1] != draw(seed=1, history=[0, 0, 0])
    assert base[:1] == draw(seed=1, history=[4, 9], num_prompt=2), "the tokens before do not count, their number does"


def mixed_batch(vocab_size: int) -> tuple[list[PlanRow], torch.Tensor]:
    """Rows of every kind, of logits that range from flat to sharp."""
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 0.0, "logprobs": 5},
        {"temperature": 0.7, "top_p": 0.9, "logprobs": 3},
        {"top_k": 50, "min_p": 0.02, "logprobs": 4, "logprobs_mode": "processed"},
        {"repetition_penalty": 1.3, "frequency_penalty": 0.4, "presence_penalty": 0.1, "logprobs": 2},
        {"temperature": 1.3, "logit_bias": {5: 4.0}, "min_tokens": 50, "logprobs": 0},
        {"min_p": 0.1, "temperature": 2.0},
    ]
    rng = np.random.default_rng(0)
    rows = [
        make_row(
            SamplingParams(**kind),
            history=rng.integers(0, vocab_size, 30).tolist(),
            num_prompt=10,
            seed=index,
            num_samples=2 if index % 2 else 1,
        )
        for index, kind in enumerate(kinds)
    ]
    scales = np.linspace(0.5, 5, len(rows))[:, None]
    return rows, torch.from_numpy((rng.normal(size=(len(rows), vocab_size)) * scales).astype(np.float32))


@pytest.mark.parametrize("vocab_size", [1001, 49152])
def test_a_row_does_not_depend_on_its_neighbours(vocab_size: int) -> None:
    """Equal bits alone, in a batch, in another order, beside a poisoned row, with padded rows, on any thread count."""
    rows, logits = mixed_batch(vocab_size)
    sampler = Sampler(vocab_size, EOS)
    alone = [sampler.sample([row], logits[index : index + 1].clone())[0] for index, row in enumerate(rows)]
    assert all(result.error is None for result in alone)
    before = logits.clone()
    assert sampler.sample(rows, logits) == alone
    assert torch.equal(logits, before), "the logits are only read"
    threads = torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            assert sampler.sample(rows[::-1], logits.flip(0)) == alone[::-1]
    finally:
        torch.set_num_threads(threads)
    poisoned = torch.cat([logits, torch.full((1, vocab_size), torch.nan)])
    results = sampler.sample([*rows, rows[0]], poisoned)
    assert results[:-1] == alone
    assert results[-1].error is not None
    padded = torch.zeros(len(rows), vocab_size + 3)[:, :vocab_size]
    padded.copy_(logits)
    assert sampler.sample(rows, padded) == alone
    transposed = logits.t().contiguous().t()
    assert sampler.sample(rows, transposed) == alone


def test_rows_that_draw_nothing_take_no_logits() -> None:
    chunk = make_row(SamplingParams(), num_samples=0)
    last = make_row(SamplingParams(temperature=0.0))
    results = Sampler(3, EOS).sample([chunk, last, chunk], torch.tensor([[0.0, 0.0, 1.0]]))
    assert results == [RowResult(), RowResult((2,)), RowResult()]
    assert Sampler(3, EOS).sample([chunk], torch.empty(0, 3)) == [RowResult()]


# --- Extreme inputs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "bad",
    [
        [0.0, math.nan, 1.0],
        [math.inf, 0.0, 0.0],
        [-math.inf] * 3,
        [math.inf, math.nan, 0.0],
        [-math.inf, 0.0, math.nan],
    ],
)
def test_non_finite_logits_fail_their_row_only(bad: list[float], temperature: float) -> None:
    row = make_row(SamplingParams(temperature=temperature, logprobs=1), history=[0] * 9)
    results = Sampler(3, EOS).sample([row, row, row], torch.tensor([[1.0, 0.0, 0.0], bad, [1.0, 0.0, 0.0]]))
    assert results[0] == results[2]
    assert results[0].error is None
    assert results[1].token_ids == ()
    assert results[1].error is not None
    assert results[1].error.startswith("non-finite logits at position 8 ")


def test_a_ban_on_everything_fails_the_row() -> None:
    sampling = SamplingParams(min_tokens=1, stop_token_ids=(0, 2), max_tokens=4)
    result = sample_one(make_row(sampling), np.zeros(3, np.float32))
    assert result.error is not None
    assert "min_tokens" in result.error


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 1e-6},
        {"temperature": 5e-324, "top_p": 1e-9},
        {"temperature": 100.0, "top_p": 1e-300},
        {"repetition_penalty": 5e-324, "temperature": 0.5},
        {"repetition_penalty": 100.0, "min_p": 1.0},
        {"logit_bias": {0: 1e4, 2: -1e4}},
    ],
)
def test_extreme_parameters_draw_a_token(sampling: dict[str, Any]) -> None:
    logits = np.array([3e38, -3e38, 3e38, -np.inf, 0.0], np.float32)
    for mode in ("raw", "processed"):
        params = SamplingParams(logprobs=5, logprobs_mode=mode, **sampling)
        result = sample_one(make_row(params, history=[0, 1, 2, 3, 4]), logits)
        assert result.error is None
        assert result.token_ids[0] in (0, 2)
        assert math.isfinite(result.logprobs[0].logprob)
        assert all(math.isfinite(logprob) for _, logprob in result.logprobs[0].top)


def test_a_vocabulary_of_one() -> None:
    result = sample_one(make_row(SamplingParams(top_p=0.5, top_k=1, min_p=0.5, logprobs=1)), np.zeros(1, np.float32))
    assert result.token_ids == (0,)
    assert result.logprobs[0].logprob == 0.0


# --- Prompt logprobs --------------------------------------------------------------------------------------------------


def prompt_row(targets: list[int], count: int, **sampling: Any) -> PlanRow:
    return PlanRow(
        rid="p",
        start=20,
        tokens=np.zeros(len(targets) + 3, np.int32),
        table=np.zeros(4, np.int32),
        sampling=SamplingParams(prompt_logprobs=count, **sampling),
        seed=0,
        num_prompt=64,
        prompt_logprob_start=22,
        prompt_logprob_targets=np.array(targets, np.int32),
    )


def test_prompt_logprobs_are_those_of_a_drawn_token() -> None:
    """In slices or at once, always raw: equal to the bits that a generated token gets from the same logits."""
    vocab_size = 777
    rng = np.random.default_rng(5)
    logits = torch.from_numpy(rng.normal(0, 3, (6, vocab_size)).astype(np.float32))
    sampler = Sampler(vocab_size, EOS)
    drawn = sampler.sample([make_row(SamplingParams(logprobs=3), seed=index) for index in range(6)], logits)
    row = prompt_row([result.token_ids[0] for result in drawn], 3, logprobs_mode="processed", logit_bias={5: 3.0})
    whole = sampler.prompt_logprobs(row, logits, 0)
    assert whole == [result.logprobs[0] for result in drawn]
    assert sampler.prompt_logprobs(row, logits[:2], 0) + sampler.prompt_logprobs(row, logits[2:], 2) == whole


def test_prompt_logprobs_of_non_finite_logits_fail_the_request() -> None:
    logits = torch.zeros(3, 4)
    logits[1, 2] = math.nan
    with pytest.raises(RequestFailed, match="request p: non-finite logits at position 25 "):
        Sampler(4, EOS).prompt_logprobs(prompt_row([0, 1, 2, 3, 1], 0), logits, 2)


def test_a_prompt_token_of_probability_zero() -> None:
    logits = torch.tensor([[0.0, -math.inf, 0.0]])
    (entry,) = Sampler(3, EOS).prompt_logprobs(prompt_row([1], 3), logits, 0)
    assert (entry.logprob, entry.rank) == (-math.inf, 3)
    assert [token for token, _ in entry.top] == [0, 2]
