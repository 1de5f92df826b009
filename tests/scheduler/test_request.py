"""The state of one request."""

from __future__ import annotations

import pytest

from radixserve.cache.namespace import Namespace
from radixserve.cache.token_key import decode_tokens, encode_tokens
from radixserve.messages import FinishReason, SamplingParams
from radixserve.scheduler.request import Request, RequestState


def request(tokens: list[int], **sampling: object) -> Request:
    params = SamplingParams(**sampling)  # type: ignore[arg-type]
    return Request("r", encode_tokens(tokens), params, Namespace("m"), max_tokens=8, seed=7, created_at=5.0)


def test_the_callers_tokens_are_copied() -> None:
    tokens = bytearray(encode_tokens([1, 2, 3]))
    made = Request("r", tokens, SamplingParams(), Namespace("m"), max_tokens=8, seed=7)
    tokens[:] = encode_tokens([9, 9, 9])
    made.append(4)
    assert decode_tokens(made.key).tolist() == [1, 2, 3, 4]
    assert (made.num_prompt, made.num_tokens, made.num_output, made.remaining) == (3, 4, 1, 4)


@pytest.mark.parametrize(
    ("start", "limit", "first"), [(None, 9, 1), (0, 0, 1), (1, 0, 1), (4, 3, 4), (9, 8, 9), (10, 9, 10), (50, 9, 50)]
)
def test_what_may_come_from_the_cache(start: int | None, limit: int, first: int) -> None:
    """One token must be computed, and with prompt logprobs from ``start`` on the one before ``start`` too."""
    made = (
        request(list(range(10))) if start is None else request(list(range(10)), prompt_logprobs=0, logprob_start=start)
    )
    assert made.match_limit == limit
    assert made.group.first_logprob == first
    assert made.wants_prompt_logprobs == (start is not None and start < 10)
    made.logprob_next = 10
    assert made.match_limit == 9
    assert not made.wants_prompt_logprobs


def test_cached_tokens_are_counted_once_and_of_the_prompt_only() -> None:
    made = request(list(range(10)))
    made.count_cached(4)
    made.count_cached(2)
    assert made.group.cached_tokens == 4
    made.frontier = 8
    made.count_cached(6)
    assert made.group.cached_tokens == 4, "computed itself, then preempted and found again"
    made.append(1)
    made.count_cached(11)
    assert (made.group.cached_tokens, made.frontier) == (6, 11)


def test_a_sample_is_a_fresh_start_from_the_same_prompt() -> None:
    made = request([1, 2, 3], n=3, prompt_logprobs=0)
    made.arrival, made.started_step, made.frontier = 4, 2, 3
    twin = made.sample(2)
    assert (twin.rid, twin.sample_index, twin.order, twin.seed) == ("r#2", 2, (4, 2), 7)
    assert twin.group is made.group
    assert twin.forked and not made.forked
    assert not twin.wants_prompt_logprobs
    twin.append(9)
    assert made.num_tokens == 3, "the key is its own"
    twin.count_cached(3)
    assert made.group.cached_tokens == 0, "the prompt is not counted for every sample"


def test_a_request_finishes_once() -> None:
    made = request([1])
    made.finish(FinishReason.STOP, 5)
    assert (made.state, made.finish_reason, made.stop_reason) == (RequestState.FINISHED, FinishReason.STOP, 5)
    with pytest.raises(AssertionError):
        made.finish(FinishReason.ABORT)


def test_timings_are_counted_from_when_it_was_made() -> None:
    made = request([1])
    made.queued_step, made.started_step = 3, 7
    made.started_at, made.first_token_at, made.finished_at, made.num_preemptions = 6.0, 7.5, 9.0, 2
    timings = made.timings()
    assert (timings.queued_s, timings.first_token_s, timings.total_s) == (1.0, 2.5, 4.0)
    assert (timings.steps_waited, timings.preemptions) == (4, 2)


def test_timings_of_one_that_never_started() -> None:
    made = request([1])
    made.finished_at = 9.0
    timings = made.timings()
    assert timings.first_token_s is None
    assert timings.steps_waited == 0
    assert timings.total_s == 4.0
