"""Answers of OpenAI's API, whole or in events, as outputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import msgspec

from radixlang.backends.base import Output, Reason, Sample, TokenScore, Usage
from radixlang.errors import BackendError

# Texts are all that a server tells of tokens.
_NO_ID = -1
# Servers' words for why an output ended.
_REASONS: dict[str, Reason] = {"stop": "stop", "eos": "stop", "length": "length", "abort": "abort"}


class ChatToken(msgspec.Struct, frozen=True):
    """A token of a chat answer and how likely it was."""

    token: str
    logprob: float
    top_logprobs: list[ChatToken] = []


class Logprobs(msgspec.Struct, frozen=True):
    """``content``: of chat. The rest: parallel lists of completions."""

    content: list[ChatToken] | None = None
    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] | None = None
    text_offset: list[int] | None = None


class ChatText(msgspec.Struct, frozen=True):
    """A message, or what an event adds to one."""

    content: str | None = None
    refusal: str | None = None


class Choice(msgspec.Struct, frozen=True):
    """One sample, or what an event adds to it."""

    index: int = 0
    text: str | None = None
    message: ChatText | None = None
    delta: ChatText | None = None
    finish_reason: str | None = None
    logprobs: Logprobs | None = None

    @property
    def written(self) -> str:
        """Its text. Raises `BackendError` where the model refused to write any."""
        said = self.message or self.delta
        if said is None:
            return self.text or ""
        if said.refusal:
            raise BackendError(f"the model refused to answer: {said.refusal}")
        return said.content or ""


class PromptDetails(msgspec.Struct, frozen=True):
    """More about a prompt's tokens."""

    cached_tokens: int | None = None


class TokenCounts(msgspec.Struct, frozen=True):
    """``usage``."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: PromptDetails | None = None


class Answer(msgspec.Struct, frozen=True):
    """An answer of chat or completions, or an event of one."""

    choices: list[Choice] = []
    usage: TokenCounts | None = None


@dataclass(slots=True)
class Gathering:
    """A sample while its pieces come."""

    text: str = ""
    reason: str | None = None
    scores: list[TokenScore] = field(default_factory=list)

    def take(self, choice: Choice) -> str:
        """Add what ``choice`` brings; returns the text of it."""
        written = choice.written
        self.text += written
        self.reason = choice.finish_reason or self.reason
        if choice.logprobs is not None:
            self.scores += _scores(choice.logprobs)
        return written

    def sample(self, *, logprobs: bool) -> Sample:
        """The sample, which has ended. Raises `BackendError` for an end that is none."""
        reason = _REASONS.get(self.reason or "")
        if reason is None:
            raise BackendError(f"an output ended with finish_reason {self.reason!r}, which is no end of a text")
        if logprobs and self.text and not self.scores:
            raise BackendError("the server tells no logprobs, though they were asked for")
        return Sample(
            text=self.text, finish_reason=reason, rest=self.text, logprobs=tuple(self.scores) if logprobs else None
        )


def output_of(gathered: Iterable[Gathering], counts: TokenCounts | None, *, logprobs: bool, wall_s: float) -> Output:
    """What one call brought. ``counts``: as the server tells them, if it does."""
    return Output(
        samples=tuple(one.sample(logprobs=logprobs) for one in gathered), usage=usage_of(counts, wall_s=wall_s)
    )


def usage_of(counts: TokenCounts | None, *, wall_s: float) -> Usage:
    """A server's counts; cached tokens are None where it does not tell them."""
    if counts is None:
        return Usage(wall_s=wall_s)
    cached = None if counts.prompt_tokens_details is None else counts.prompt_tokens_details.cached_tokens
    return Usage(
        prompt=counts.prompt_tokens,
        cached=cached,
        computed=None if cached is None else counts.prompt_tokens - cached,
        generated=counts.completion_tokens,
        wall_s=wall_s,
    )


def _scores(logprobs: Logprobs) -> Iterator[TokenScore]:
    for entry in logprobs.content or ():
        top = tuple((_NO_ID, other.token, other.logprob) for other in entry.top_logprobs)
        yield TokenScore(_NO_ID, entry.token, entry.logprob, top)
    tops = logprobs.top_logprobs or []
    for place, (token, logprob) in enumerate(zip(logprobs.tokens, logprobs.token_logprobs, strict=False)):
        if logprob is not None:
            likely = (tops[place] if place < len(tops) else None) or {}
            yield TokenScore(_NO_ID, token, logprob, tuple((_NO_ID, text, value) for text, value in likely.items()))
