"""Rows that may not draw every token: as if there were no others, and nothing else changes."""

from __future__ import annotations

import msgspec
import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from radixserve.messages import SamplingParams
from radixserve.runtime.logprobs import LogprobRow
from radixserve.runtime.sampler import Sampler
from radixserve.runtime.token_choice import TokenChoice
from radixserve.scheduler.plan import PlanRow, RowResult

VOCAB = 1000
EOS = (1, 2)


def make_row(sampling: SamplingParams, seed: int = 0, *, output: int = 3) -> PlanRow:
    history = np.arange(5 + output, dtype=np.int32)
    return PlanRow("r", len(history) - 1, history[-1:], np.zeros(1, np.int32), sampling, seed, 5, 2, history=history)


def draw(row: PlanRow, logits: np.ndarray[tuple[int], np.dtype[np.float32]], choice: TokenChoice | None) -> RowResult:
    choices = {"r": choice} if choice is not None else None
    (result,) = Sampler(len(logits), EOS).sample([row], torch.from_numpy(logits)[None], choices)
    return result


def random_logits(seed: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return (np.random.default_rng(seed).standard_normal(VOCAB) * 4).astype(np.float32)


@settings(max_examples=150)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 600),
    st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    st.sampled_from([0, 1, 5, 90]),
    st.sampled_from([1.0, 0.9, 0.2]),
    st.sampled_from([0.0, 0.1]),
)
def test_a_choice_is_a_smaller_vocabulary(
    seed: int, count: int, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    logits = random_logits(seed)
    allowed = np.sort(np.random.default_rng(seed + 1).choice(VOCAB, count, replace=False))
    row = make_row(SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p), seed)
    small = draw(row, np.ascontiguousarray(logits[allowed]), None)
    assert draw(row, logits, TokenChoice(allowed)).token_ids == tuple(int(allowed[token]) for token in small.token_ids)


def test_raw_logprobs_stay_the_models_own() -> None:
    logits = random_logits(3)
    allowed = np.array([5, 77, 200])
    result = draw(make_row(SamplingParams(logprobs=2)), logits, TokenChoice(allowed))
    whole = LogprobRow.raw(logits)
    assert result.logprobs == tuple(whole.entry(token, whole.top(2)) for token in result.token_ids)
    processed = draw(make_row(SamplingParams(logprobs=5, logprobs_mode="processed")), logits, TokenChoice(allowed))
    assert {token for token, _ in processed.logprobs[0].top} == set(allowed.tolist())


def test_a_bias_does_not_bring_a_token_in() -> None:
    sampling = SamplingParams(temperature=0.0, logit_bias={9: 1e4}, frequency_penalty=1.0)
    assert draw(make_row(sampling), random_logits(4), TokenChoice(np.array([3, 700]))).token_ids[0] in (3, 700)


def test_min_tokens_gives_way_where_nothing_else_is_left() -> None:
    sampling = SamplingParams(temperature=0.0, min_tokens=10, stop_token_ids=(8,))
    logits = random_logits(5)
    logits[[1, 8]] = 100.0
    assert draw(make_row(sampling), logits, TokenChoice(np.array([1, 8]))).token_ids[0] in (1, 8)
    assert draw(make_row(sampling), logits, TokenChoice(np.array([1, 8, 500]))).token_ids == (500, 500)


def test_what_settles_has_the_last_word() -> None:
    logits = random_logits(6)
    choice = TokenChoice(np.array([5, 77, 200]), settle=lambda token: 900)
    for mode in ("raw", "processed"):
        result = draw(make_row(SamplingParams(logprobs=1, logprobs_mode=mode, top_k=1)), logits, choice)
        assert result.token_ids == (900, 900)
        raw = LogprobRow.raw(logits)
        assert all(entry.forced and entry.logprob == raw.entry(900, ()).logprob for entry in result.logprobs)


def test_an_error_is_the_rows_alone() -> None:
    logits = torch.from_numpy(np.stack([random_logits(7), random_logits(8)]))
    rows = [make_row(SamplingParams(seed=1)), msgspec.structs.replace(make_row(SamplingParams(seed=1)), rid="other")]
    alone = Sampler(VOCAB, EOS).sample(rows[1:], logits[1:])
    first, second = Sampler(VOCAB, EOS).sample(
        rows, logits, {"r": TokenChoice(np.empty(0, np.intp), error="too complex")}
    )
    assert first == RowResult(error="too complex", error_param="constraint") and [second] == alone
