"""A runner without a model: it gives the answers that are known beforehand, and words where none is known.

It keeps nothing between steps: what it draws follows from a request's tokens, its seed and the index of the sample.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from radixserve.cache.token_key import TOKEN_BYTES, decode_tokens
from radixserve.engine.healing import HealedOutput
from radixserve.messages import TokenLogprob
from radixserve.model.tokenizer import Tokenizer
from radixserve.planner.trace import Intent
from radixserve.runtime.selection import IndexArray
from radixserve.runtime.token_choice import Choices, TokenChoice
from radixserve.scheduler.plan import Int32Array, PlanRow, RowResult, StepPlan, StepResult
from radixserve.scheduler.request import Request

_WORD = re.compile(rb" [a-z]{2,12}")
_PRINTABLE = re.compile(rb"[ -~]+")
_WORDS = 4096
# More tokens than this are allowed only where no text is healed any more.
_MOST_COVERING = 8192


@runtime_checkable
class EndingOutput(Protocol):
    """A continuation that knows a way to a valid end."""

    def way_out(self, limit: int) -> list[int] | None:
        """At most ``limit`` tokens that bring the output to a valid end, None if none were found."""


class StandIn:
    """``output_tokens``: how long an output is taken to be where its end is not known (never longer than ``max_tokens``).

    `attach` it to the core that it serves. ``strays``: known answers that could not be given, because a constraint forbids them.
    """

    def __init__(self, tokenizer: Tokenizer, eos_ids: Sequence[int], *, output_tokens: int) -> None:
        self.output_tokens = output_tokens
        self.strays = 0
        self._eos = eos_ids[0] if eos_ids else None
        texts = tokenizer.all_token_bytes()
        plain = [token for token in range(len(texts)) if token not in tokenizer.special_ids]
        words = [token for token in plain if _WORD.fullmatch(texts[token])][:_WORDS]
        printable = [token for token in plain if _PRINTABLE.fullmatch(texts[token])]
        self._words = np.array(words or printable or plain, np.intp)
        self._likely = np.zeros(len(texts), np.int8)
        self._likely[printable] = 1
        self._likely[words] = 2
        self._requests: Mapping[str, Request] = {}
        self._intent: Callable[[str], Intent] = lambda rid: Intent()

    def attach(self, requests: Mapping[str, Request], intent: Callable[[str], Intent]) -> None:
        """``requests``: the scheduler's own, by row; ``intent``: what is known of a request, by its name."""
        self._requests, self._intent = requests, intent

    def execute(self, plan: StepPlan, choices: Choices | None = None) -> StepResult:
        """Draw for every row that wants it; reads and writes no KV."""
        found = choices.wait() if choices is not None else {}
        return StepResult(plan.step, tuple(self._row(row, found.get(row.rid)) for row in plan.rows))

    def _row(self, row: PlanRow, choice: TokenChoice | None) -> RowResult:
        if choice is not None and choice.error is not None:
            return RowResult(error=choice.error, error_param="constraint")
        request = self._requests[row.rid]
        intent = self._intent(request.group.rid)
        tokens: tuple[int, ...] = ()
        logprobs: tuple[TokenLogprob, ...] = ()
        for index in range(row.first_sample, row.first_sample + row.num_samples):
            token = self._draw(row, request, intent, index, choice)
            tokens += (token,)
            if row.sampling.logprobs is not None:
                logprobs += (self._drawn_logprob(row, request, intent, index, token),)
        return RowResult(
            tokens,
            logprobs,
            prompt_logprobs=self._target_logprobs(
                request,
                intent,
                row.prompt_logprob_start,
                row.prompt_logprob_targets,
                row.sampling.prompt_logprobs or 0,
            ),
            forced_logprobs=self._target_logprobs(
                request, intent, row.forced_start, row.forced_targets, row.sampling.logprobs or 0, forced=True
            ),
        )

    # ---------------------------------------------------------------- tokens

    def _draw(self, row: PlanRow, request: Request, intent: Intent, index: int, choice: TokenChoice | None) -> int:
        token = self._known(row, request, intent, index)
        if token is not None and choice is not None and token not in choice.allowed:
            self.strays += 1
            token = None
        if token is None:
            token = self._made_up(row, request, index, choice)
        return choice.settle(token) if choice is not None and choice.settle is not None else token

    def _known(self, row: PlanRow, request: Request, intent: Intent, index: int) -> int | None:
        """The next token of a known answer; its end where it has no more."""
        if intent.answers is None or index >= len(intent.answers):
            return None
        # Tokens that repeat what healing took off the prompt are of the output here.
        answer, place = intent.answers[index].token_ids, row.end - request.num_prompt
        if place < len(answer):
            return answer[place]
        return None if request.sampling.ignore_eos else self._eos

    def _made_up(self, row: PlanRow, request: Request, index: int, choice: TokenChoice | None) -> int:
        place = row.end - row.num_prompt
        # What has a form is brought to its end in time; what has none goes on to its limit where that is shorter.
        limit = request.max_tokens + 1 if choice is None else request.max_tokens // 2
        ends = place >= max(min(self.output_tokens, limit), request.sampling.min_tokens, 1) - 1
        draw = _mixed(request, row.end, () if request.sampling.temperature == 0 else (row.seed, index))
        if choice is None:
            if ends and self._eos is not None and not request.sampling.ignore_eos:
                return self._eos
            return int(self._words[draw % len(self._words)])
        allowed = choice.allowed
        if self._eos is not None and self._eos in allowed and (ends or len(allowed) == 1):
            return self._eos
        if ends and isinstance(request.continuation, EndingOutput):
            way = request.continuation.way_out(max(1, request.max_tokens - place))
            if way and way[0] in allowed:
                return way[0]
        if isinstance(request.continuation, HealedOutput) and (repeated := _repeated(request.continuation, allowed)):
            return repeated
        rest = allowed[allowed != self._eos] if len(allowed) > 1 else allowed
        ranks = self._likely[rest]
        best = rest[ranks == ranks.max()]
        return int(best[draw % len(best)])

    # ---------------------------------------------------------------- logprobs

    def _drawn_logprob(self, row: PlanRow, request: Request, intent: Intent, index: int, token: int) -> TokenLogprob:
        place = row.end - request.num_prompt
        if intent.answers is not None and index < len(intent.answers):
            answer = intent.answers[index]
            if place < len(answer.logprobs) and answer.token_ids[place] == token:
                logprob, top = answer.logprobs[place]
                return TokenLogprob(token, logprob, 1, top, asked=self._asked(request, intent, row.end))
        return self._entry(request, intent, row.end, token, row.sampling.logprobs or 0)

    def _target_logprobs(
        self,
        request: Request,
        intent: Intent,
        first: int,
        targets: Int32Array | None,
        count: int,
        *,
        forced: bool = False,
    ) -> tuple[TokenLogprob, ...]:
        """Of ``targets``, which follow the positions from ``first`` on."""
        wanted = [] if targets is None else targets.tolist()
        return tuple(
            self._entry(request, intent, first + 1 + offset, token, count, forced=forced)
            for offset, token in enumerate(wanted)
        )

    def _entry(
        self, request: Request, intent: Intent, length: int, token: int, count: int, *, forced: bool = False
    ) -> TokenLogprob:
        """Of ``token`` after the first ``length`` tokens of ``request``, with ``count`` others beside it."""
        logprob = self._score(request, intent, length, token)
        others = [(other, self._score(request, intent, length, other)) for other in self._words[:count].tolist()]
        top = tuple(sorted(others, key=lambda pair: (-pair[1], pair[0])))
        return TokenLogprob(token, logprob, 1, top, forced, self._asked(request, intent, length))

    def _asked(self, request: Request, intent: Intent, length: int) -> tuple[tuple[int, float], ...]:
        return tuple(
            (token, self._score(request, intent, length, token)) for token in request.sampling.logprob_token_ids
        )

    def _score(self, request: Request, intent: Intent, length: int, token: int) -> float:
        """A known logprob, else one that is made up of the tokens, between -16 and 0."""
        if intent.scores:
            key = request.key[intent.base * TOKEN_BYTES : length * TOKEN_BYTES]
            known = intent.scores.get(tuple(decode_tokens(key).tolist()), {}).get(token)
            if known is not None:
                return known
        return -(_mixed(request, length, (token,)) % 2**16 + 1) / 2**12


def _repeated(output: HealedOutput, allowed: IndexArray) -> int | None:
    """The token that brings only what healing took off the prompt, so that the prompt stays as it was written; None if there is none."""
    if len(allowed) > _MOST_COVERING:
        return None
    return next((token for token in allowed.tolist() if output.repeats(token)), None)


def _mixed(request: Request, length: int, more: tuple[int, ...]) -> int:
    """A number made of the first ``length`` tokens of a request, and of ``more``; the same in every process."""
    state = zlib.crc32(request.key[: length * TOKEN_BYTES])
    # Twice, because the low bits of a checksum of few bytes say little.
    return zlib.crc32(zlib.crc32(repr(more).encode(), state).to_bytes(4, "big"))
