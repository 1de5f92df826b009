"""The state of one sequence that is being generated, and its transitions; no I/O, no cache, no policy.

::

    WAITING ──admit──▶ RUNNING ──finish──▶ FINISHED
       ▲                  │                    ▲
       └────preempt───────┘                    │
       └──────────────────abort────────────────┘
"""

from __future__ import annotations

import enum
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from radixserve.cache.namespace import Namespace
from radixserve.cache.token_key import Key, encode_token, encode_tokens, key_length
from radixserve.messages import FinishReason, Pooling, SamplingParams, Timings, TokenLogprob
from radixserve.scheduler.pooling import Pool

if TYPE_CHECKING:
    from radixserve.cache.lease import Lease


class RequestState(enum.StrEnum):
    """Where a request is."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a sequence ends by itself, without a limit or a stop token."""

    reason: FinishReason
    stop_reason: str | int | None = None


@dataclass(frozen=True, slots=True)
class Follow:
    """What must come next: ``tokens`` that nobody draws, and after them the end, if ``ending`` says so.

    ``max_tokens``: the limit of the output from now on, where it has changed.
    """

    tokens: tuple[int, ...] = ()
    ending: Ending | None = None
    max_tokens: int | None = None


class Continuation(Protocol):
    """Follows one sequence's output and says what must come next, where it leaves no choice."""

    def begin(self) -> Follow:
        """What the output begins with. Asked once, before anything is drawn."""

    def after(self, token: int) -> Follow:
        """What follows ``token``, which was just drawn. Raises `MatcherFailed`, which ends the sequence with an error."""

    def repeats(self, token: int) -> bool:
        """Whether ``token``, which was just drawn, only repeats text of the prompt: then it ends nothing and counts for nothing."""

    def copy(self) -> Continuation:
        """One at the same place that goes its own way: samples part here."""

    @property
    def over(self) -> bool:
        """Whether it has no more to say: whatever is drawn from now on, nothing has to follow and nothing repeats."""


@dataclass(slots=True)
class SampleGroup:
    """What the ``n`` parallel samples of one generation share.

    ``rid``: the caller's name for the generation. ``samples``: the requests, once the prompt is computed all ``n``
    of them.
    ``prompt_logprobs``: in order, for the prompt tokens from ``first_logprob`` on.
    """

    rid: str
    samples: list[Request] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    first_logprob: int = 1
    cached_tokens: int = 0


class Request:
    """One sequence: a prompt and the tokens drawn so far.

    ``num_computed`` chases ``num_tokens``: there is no prefill and no decode phase. ``num_computed`` counts tokens
    whose KV is in place once all planned steps have run. ``awaits``: steps in flight that will draw a token of it, which nobody knows
    yet; ``num_tokens`` does not count it, ``num_computed`` does where a step after that one computes it already. ``untold``: its last
    tokens of which nobody has taken the news, which may be a reason to end it before them. ``last_row``: the (step, index of the row)
    that it was last planned in. ``arrival`` orders requests and survives preemption; ``order`` tells samples of one arrival apart.
    ``frontier``: positions below it were once counted as cached or computed. ``error_param``: the field of the request that an
    ``error`` is owed to; None for the engine's own failures.
    ``continuation`` says which tokens must follow those that are drawn. ``forced``: such tokens that were not appended yet (they
    come one a step); ``unscored``: how many of the last tokens were appended without being drawn and are still owed their
    logprobs; ``ending``: what happens when no more of either are left. ``num_repeated``: output tokens that only repeat text of the
    prompt. ``pool`` gathers the prompt's hidden states where they are wanted.
    """

    __slots__ = (
        "aborted",
        "arrival",
        "awaits",
        "continuation",
        "created_at",
        "ending",
        "error",
        "error_param",
        "finish_reason",
        "finished_at",
        "first_token_at",
        "forced",
        "forked",
        "frontier",
        "group",
        "in_flight",
        "key",
        "last_row",
        "lease",
        "logprob_next",
        "max_tokens",
        "namespace",
        "num_computed",
        "num_preemptions",
        "num_prompt",
        "num_repeated",
        "num_tokens",
        "pool",
        "priority",
        "queued_step",
        "rid",
        "sample_index",
        "sampling",
        "seed",
        "started_at",
        "started_step",
        "state",
        "stop_reason",
        "unscored",
        "untold",
    )

    def __init__(
        self,
        rid: str,
        tokens: Key,
        sampling: SamplingParams,
        namespace: Namespace,
        *,
        max_tokens: int,
        seed: int,
        priority: int = 0,
        created_at: float | None = None,
        continuation: Continuation | None = None,
        pooling: Pooling | None = None,
    ) -> None:
        self.rid = rid
        self.key = bytearray(tokens)
        self.num_prompt = self.num_tokens = key_length(tokens)
        self.num_computed = 0
        self.sampling = sampling
        self.namespace = namespace
        self.max_tokens = max_tokens
        self.seed = seed
        self.priority = priority
        self.group = SampleGroup(rid, [self])
        self.sample_index = 0
        self.forked = sampling.n == 1
        self.state = RequestState.WAITING
        self.arrival = 0
        self.lease: Lease | None = None
        self.in_flight = 0
        self.awaits = 0
        self.untold = 0
        self.last_row = (0, 0)
        self.aborted = False
        self.frontier = 0
        self.logprob_next = max(1, sampling.logprob_start)
        self.group.first_logprob = self.logprob_next
        self.num_preemptions = 0
        self.pool = None if pooling is None else Pool(pooling, self.num_prompt)
        self.continuation = continuation
        self.forced: deque[int] = deque()
        self.unscored = 0
        self.num_repeated = 0
        self.ending: Ending | None = None
        self.finish_reason: FinishReason | None = None
        self.stop_reason: str | int | None = None
        self.error: str | None = None
        self.error_param: str | None = None
        self.queued_step = 0
        self.started_step: int | None = None
        self.created_at = time.monotonic() if created_at is None else created_at
        self.started_at: float | None = None
        self.first_token_at: float | None = None
        self.finished_at: float | None = None

    @property
    def order(self) -> tuple[int, int]:
        """Sorts requests by seniority."""
        return (self.arrival, self.sample_index)

    @property
    def rows(self) -> int:
        """Rows of a batch that it takes once its samples have parted."""
        return 1 if self.forked else self.sampling.n

    @property
    def num_output(self) -> int:
        """Tokens drawn so far."""
        return self.num_tokens - self.num_prompt

    @property
    def remaining(self) -> int:
        """Tokens that are known, or drawn by a step in flight, and not computed."""
        return self.num_tokens + self.awaits - self.num_computed

    @property
    def ends_in_flight(self) -> bool:
        """Whether a step in flight brings the last that it may have, so that no row comes after it."""
        return self._all_in_flight and self._unguided and self.num_output + self.awaits >= self.max_tokens

    @property
    def needs_result(self) -> bool:
        """Whether its next row cannot be planned before a step in flight is collected.

        What must follow the token, what may be drawn after it, penalties and where samples part depend on the token itself.
        """
        if not self.in_flight:
            return False
        if self.unscored:
            return True
        free = self.forked and self._unguided and not self.sampling.needs_history
        return self._all_in_flight and not free and not self.ends_in_flight

    @property
    def _all_in_flight(self) -> bool:
        return self.in_flight > 0 and self.num_computed >= self.num_tokens

    @property
    def _unguided(self) -> bool:
        """Whether nothing but limits and stop tokens decides how it goes on."""
        guided = self.continuation is not None and not self.continuation.over
        return not (guided or self.forced) and self.ending is None

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether logprobs of prompt tokens are still to be computed."""
        return self.sampling.prompt_logprobs is not None and self.logprob_next < self.num_prompt

    @property
    def match_limit(self) -> int:
        """How many tokens may be served from the cache: one must be computed, and all whose logits are wanted."""
        # Forced tokens that are owed logprobs get them from the logits of the tokens before them.
        limit = self.num_tokens - 1 - self.unscored
        if self.pool is not None:
            limit = min(limit, self.pool.next)
        return min(limit, self.logprob_next - 1) if self.wants_prompt_logprobs else limit

    @property
    def draws(self) -> bool:
        """Whether a token is drawn once all known tokens are computed."""
        return self.max_tokens > 0 and not self.forced and self.ending is None

    def append(self, *tokens: int) -> None:
        """Tokens were drawn, or must follow one that was."""
        self.key += encode_token(tokens[0]) if len(tokens) == 1 else encode_tokens(tokens)
        self.num_tokens += len(tokens)

    def count_cached(self, upto: int) -> None:
        """Positions below ``upto`` are in place without this request having computed them."""
        if upto > self.frontier:
            self.group.cached_tokens += max(0, min(upto, self.num_prompt) - self.frontier)
            self.frontier = upto

    def sample(self, index: int) -> Request:
        """Parallel sample ``index`` of this request: the same tokens, nothing drawn, nothing leased."""
        twin = Request(
            f"{self.group.rid}#{index}",
            self.key,
            self.sampling,
            self.namespace,
            max_tokens=self.max_tokens,
            seed=self.seed,
            priority=self.priority,
            created_at=self.created_at,
        )
        twin.num_prompt = self.num_prompt
        twin.forced, twin.ending = deque(self.forced), self.ending
        twin.continuation = self.continuation.copy() if self.continuation is not None else None
        twin.group = self.group
        twin.sample_index = index
        twin.forked = True
        twin.arrival = self.arrival
        twin.frontier = self.frontier
        twin.logprob_next = self.num_prompt
        twin.queued_step, twin.started_step, twin.started_at = self.queued_step, self.started_step, self.started_at
        return twin

    def finish(self, reason: FinishReason, stop_reason: str | int | None = None, error: str | None = None) -> None:
        """Enter the final state; the first reason stands."""
        assert self.state is not RequestState.FINISHED, "a request finishes once"
        self.state = RequestState.FINISHED
        self.finish_reason, self.stop_reason, self.error = reason, stop_reason, error
        self.finished_at = time.monotonic()

    def timings(self) -> Timings:
        """Times since the request was made, in seconds."""
        now = self.finished_at or time.monotonic()
        started = self.started_at or now
        waited = (self.started_step - self.queued_step) if self.started_step is not None else 0
        return Timings(
            queued_s=started - self.created_at,
            first_token_s=self.first_token_at - self.created_at if self.first_token_at else None,
            total_s=now - self.created_at,
            steps_waited=waited,
            preemptions=self.num_preemptions,
        )
