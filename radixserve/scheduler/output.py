"""The output of sequences: tokens that are drawn, tokens that must follow them, and the news of both."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from radixserve.cache.token_key import TOKEN_BYTES, decode_tokens
from radixserve.errors import MatcherFailed
from radixserve.messages import FinishReason, TokenLogprob
from radixserve.scheduler.request import Ending, Follow, Request


class Update(msgspec.Struct, frozen=True):
    """News of one request: tokens of its output, or that it ended (its ``finish_reason`` is set then).

    ``shared``: of all its samples, which had not parted yet. ``forced``: nobody drew these tokens, they had to follow.
    """

    request: Request
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    shared: bool = False
    forced: bool = False


@dataclass(slots=True)
class SchedulerStats:
    """Counters since the start; of steps, those that have run or failed."""

    steps: int = 0
    rows: int = 0
    computed_tokens: int = 0
    generated_tokens: int = 0
    forced_tokens: int = 0
    preemptions: int = 0
    failed_steps: int = 0
    finished: Counter[str] = field(default_factory=Counter)


class OutputLog:
    """Appends to requests what they bring, and keeps the news until they are taken.

    ``finish``: ends a request, as `Scheduler.finish` does. ``eos_ids`` end a sequence unless its sampling ignores them.
    ``fast_forward``: forced tokens are appended at once and computed in one step, not one a step.
    """

    def __init__(
        self, stats: SchedulerStats, finish: Callable[..., None], eos_ids: Sequence[int], *, fast_forward: bool
    ) -> None:
        self.updates: list[Update] = []
        self._stats = stats
        self._finish = finish
        self._eos_ids = frozenset(eos_ids)
        self._fast_forward = fast_forward

    def take(self) -> list[Update]:
        """All news since the last call, in order."""
        updates, self.updates = self.updates, []
        for update in updates:
            update.request.untold = 0
        return updates

    def ended(self, request: Request) -> None:
        """``request`` has its finish reason."""
        self.updates.append(Update(request, shared=not request.forked))

    def begin(self, request: Request) -> None:
        """``request`` was queued: what its output must begin with is appended."""
        if request.continuation is not None and request.max_tokens > 0:
            self._continue(request, request.continuation.begin)

    def draw(self, request: Request, token: int, logprobs: tuple[TokenLogprob, ...]) -> None:
        """``token`` was drawn for ``request``."""
        request.append(token)
        self._emit(request, (token,), logprobs)
        continuation = request.continuation
        repeats = continuation is not None and continuation.repeats(token)
        ending = None if repeats else self._stop(request, token)
        request.num_repeated += repeats
        if ending is not None:
            self._finish(request, ending.reason, ending.stop_reason)
        elif continuation is not None:
            self._continue(request, lambda: continuation.after(token))
        elif request.num_output >= request.max_tokens:
            self._finish(request, FinishReason.LENGTH)

    def _stop(self, request: Request, token: int) -> Ending | None:
        """The end of a sequence that ``token`` makes."""
        if token in request.sampling.stop_token_ids:
            return Ending(FinishReason.STOP, token)
        if token in self._eos_ids and not request.sampling.ignore_eos:
            return Ending(FinishReason.STOP)
        return None

    def _emit(
        self, request: Request, tokens: tuple[int, ...], logprobs: tuple[TokenLogprob, ...], *, forced: bool = False
    ) -> None:
        count = 1 if request.forked else request.sampling.n
        self._stats.generated_tokens += count * len(tokens)
        if request.first_token_at is None:
            request.first_token_at = time.monotonic()
        request.untold += len(tokens)
        self.updates.append(Update(request, tokens, logprobs, shared=not request.forked, forced=forced))

    def _continue(self, request: Request, ask: Callable[[], Follow]) -> None:
        """Take in what must come next; a matcher that cannot say it fails its own request only."""
        try:
            follow = ask()
        except MatcherFailed as error:
            request.error_param = "constraint"
            self._finish(request, FinishReason.ERROR, error=str(error))
        else:
            self._follow(request, follow)

    def _follow(self, request: Request, follow: Follow) -> None:
        """``follow`` comes after the tokens of ``request``, as far as limits and stop tokens let it.

        With ``fast_forward`` it is appended now and computed in one step. Otherwise, and until their logprobs are known where
        they are wanted, the tokens wait.
        """
        if follow.max_tokens is not None:
            request.max_tokens = follow.max_tokens
        room = request.max_tokens - request.num_output
        tokens, ending = list(follow.tokens[:room]), follow.ending
        if len(tokens) == room and (ending is None or len(follow.tokens) > room):
            ending = Ending(FinishReason.LENGTH)
        for index, token in enumerate(tokens):
            stop = self._stop(request, token)
            if stop is not None:
                tokens, ending = tokens[: index + 1], stop
                break
        self._stats.forced_tokens += len(tokens)
        request.ending = ending
        if not self._fast_forward:
            request.forced.extend(tokens)
        elif tokens:
            request.append(*tokens)
            if request.sampling.logprobs is None:
                self._emit(request, tuple(tokens), (), forced=True)
            else:
                request.unscored = len(tokens)
        if ending is not None and not (request.forced or request.unscored or request.wants_prompt_logprobs):
            self._finish(request, ending.reason, ending.stop_reason)

    def score(self, request: Request, logprobs: tuple[TokenLogprob, ...]) -> None:
        """The next of the tokens that were appended without being drawn have their ``logprobs``."""
        first = request.num_tokens - request.unscored
        tokens = decode_tokens(request.key[first * TOKEN_BYTES : (first + len(logprobs)) * TOKEN_BYTES])
        request.unscored -= len(logprobs)
        self._emit(request, tuple(tokens.tolist()), logprobs, forced=True)

    def append_forced(self, request: Request, logprobs: tuple[TokenLogprob, ...]) -> None:
        """The next forced token takes the place of one that would be drawn."""
        token = request.forced.popleft()
        request.append(token)
        self._emit(request, (token,), logprobs, forced=True)
        if not request.forced and request.ending is not None:
            self._finish(request, request.ending.reason, request.ending.stop_reason)
