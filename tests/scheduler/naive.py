"""The obvious answers: what a request gets when it is alone, and in what order strict policies serve."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from radixserve.messages import FinishReason, SamplingParams, TokenLogprob
from radixserve.scheduler.request import Continuation, Follow
from tests.scheduler.fake_runner import draw, extend_state, score


@dataclass(slots=True)
class Sample:
    """What one sample of a request brought."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    error: str | None = None


def alone(
    prompt: Sequence[int],
    sampling: SamplingParams,
    max_tokens: int,
    seed: int,
    vocab_size: int,
    eos_ids: Sequence[int],
    continuation: Continuation | None = None,
) -> tuple[list[Sample], list[TokenLogprob]]:
    """All samples of a request and its prompt logprobs, without scheduler, cache or steps."""
    state, prompt_logprobs = 0, []
    for position, token in enumerate(prompt):
        if sampling.prompt_logprobs is not None and position >= max(1, sampling.logprob_start):
            prompt_logprobs.append(TokenLogprob(token, score(state, token), 1))
        state = extend_state(state, token)
    return [
        _one(
            state,
            sampling,
            max_tokens,
            seed,
            index,
            vocab_size,
            eos_ids,
            continuation.copy() if continuation is not None else None,
        )
        for index in range(sampling.n)
    ], prompt_logprobs


def _one(
    state: int,
    sampling: SamplingParams,
    max_tokens: int,
    seed: int,
    index: int,
    vocab_size: int,
    eos_ids: Sequence[int],
    continuation: Continuation | None,
) -> Sample:
    sample = Sample(finish_reason=FinishReason.LENGTH)
    follow = continuation.begin() if continuation is not None and max_tokens > 0 else Follow()
    due = deque(follow.tokens)
    while len(sample.token_ids) < max_tokens or not (due or follow.ending is None):
        if not due and follow.ending is not None:
            sample.finish_reason, sample.stop_reason = follow.ending.reason, follow.ending.stop_reason
            break
        forced = bool(due)
        token = due.popleft() if due else draw(state, sampling, seed, index, len(sample.token_ids), vocab_size, eos_ids)
        sample.token_ids.append(token)
        if sampling.logprobs is not None:
            sample.logprobs.append(TokenLogprob(token, score(state, token), 1, forced=forced))
        if token in sampling.stop_token_ids or (token in eos_ids and not sampling.ignore_eos):
            sample.finish_reason = FinishReason.STOP
            sample.stop_reason = token if token in sampling.stop_token_ids else None
            break
        state = extend_state(state, token)
        if continuation is not None and not forced:
            follow = continuation.after(token)
            due = deque(follow.tokens)
    return sample


@dataclass(frozen=True, slots=True)
class Job:
    """A request that shares nothing: ``prompt`` tokens, then ``output`` tokens; it comes before step ``at``."""

    at: int
    prompt: int
    output: int
    priority: int = 0


def service(jobs: Sequence[Job], *, rows: int, budget: int, by_priority: bool, static: bool) -> list[list[int]]:
    """Which jobs are in each step, under a strict order, whole prompts and a pool without end."""
    left = [job.output for job in jobs]
    running: list[int] = []
    waiting: list[int] = []
    steps: list[list[int]] = []
    todo = sorted(range(len(jobs)), key=lambda index: jobs[index].at)
    order = list(todo)
    while todo or waiting or running:
        while todo and jobs[todo[0]].at <= len(steps):
            waiting.append(todo.pop(0))
        waiting.sort(key=lambda index: (-jobs[index].priority if by_priority else 0, order.index(index)))
        room, claimed = budget - len(running), 0
        started: list[int] = []
        while waiting and not (static and running) and len(running) + len(started) < rows and claimed < room:
            if claimed and claimed + jobs[waiting[0]].prompt > room:
                break
            claimed += jobs[waiting[0]].prompt
            started.append(waiting.pop(0))
        step = running + started
        steps.append(step)
        for index in step:
            left[index] -= 1
        running = [index for index in step if left[index] > 0]
    return steps
