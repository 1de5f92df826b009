"""A stand-in for the offline engine: it answers with the words of the prompt, a word a chunk, and records its calls."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from radixserve.cli.engine import Message
from radixserve.config import EngineConfig
from radixserve.errors import ContextLengthExceeded
from radixserve.messages import Explanation, FinishReason, SampleOutput, SamplingParams, Timings


class FakeOutput(msgspec.Struct, kw_only=True):
    text: str
    finish_reason: FinishReason | None
    error: str | None = None
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    timings: Timings
    samples: list[SampleOutput] = []
    explanation: Explanation | None = None


class FakeChunk(msgspec.Struct, frozen=True, kw_only=True):
    rid: str
    index: int
    prompt_index: int
    text: str
    finish_reason: FinishReason | None = None
    output: FakeOutput | None = None


class FakeEngine:
    """``interrupt_after``: raises SIGINT when that many chunks of an answer were given; ``error``: every request fails
    with it; prompts of more than ``context`` words are refused.
    """

    default_sampling = SamplingParams(temperature=0.5)

    def __init__(
        self, *, interrupt_after: int | None = None, error: str | None = None, context: int = 1000, **options: Any
    ) -> None:
        self.config = EngineConfig.from_options(**options)
        self.options = options
        self.interrupt_after = interrupt_after
        self.error = error
        self.context = context
        self.generated: list[tuple[list[str], SamplingParams | None, int, str | None]] = []
        self.chats: list[tuple[list[Message], SamplingParams | None]] = []
        self.aborted: list[str] = []
        self.seen_words = 0
        self.closed = False

    def generate(
        self,
        prompt: list[str],
        sampling: SamplingParams | None = None,
        *,
        stream: Literal[True],
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> Iterator[FakeChunk]:
        self.generated.append((prompt, sampling, priority, cache_salt))
        # Later prompts and samples come first: the printer has to put them in order.
        for number in reversed(range(len(prompt))):
            yield from self._answer(f"r{number}", number, prompt[number], 0, sampling)

    def chat(
        self,
        messages: list[Message],
        sampling: SamplingParams | None = None,
        *,
        stream: Literal[True],
        priority: int = 0,
        cache_salt: str | None = None,
        explain: bool = False,
    ) -> Iterator[FakeChunk]:
        words = sum(len(message["content"].split()) for message in messages)
        if words > self.context:
            raise ContextLengthExceeded(self.context, words, 0)
        self.chats.append((messages, sampling))
        cached, self.seen_words = self.seen_words, words
        yield from self._answer(f"c{len(self.chats)}", 0, messages[-1]["content"], cached, sampling)

    def cache_stats(self) -> dict[str, Any]:
        return {"blocks": {"free": 7, "total": 9}, "hit_rate": 0.51234567}

    def abort(self, rid: str) -> None:
        self.aborted.append(rid)

    def close(self) -> None:
        self.closed = True

    def _answer(
        self, rid: str, number: int, text: str, cached: int, sampling: SamplingParams | None
    ) -> Iterator[FakeChunk]:
        words = text.split()
        said = 0
        for word in words:
            if rid in self.aborted:
                break
            if said == self.interrupt_after:
                signal.raise_signal(signal.SIGINT)
            said += 1
            yield FakeChunk(rid=rid, index=0, prompt_index=number, text=f"{word}~ ")
        reason = FinishReason.ABORT if rid in self.aborted else FinishReason.STOP
        samples = 1 if sampling is None else sampling.n
        output = FakeOutput(
            text="".join(f"{word}~ " for word in words[:said]),
            finish_reason=FinishReason.ERROR if self.error else reason,
            error=self.error,
            prompt_tokens=len(words) + cached,
            cached_tokens=cached,
            completion_tokens=said,
            timings=Timings(first_token_s=0.5, total_s=1.0),
            explanation=Explanation("diverged", cached, cached, len(words) + cached, "something else was there", "x"),
        )
        for index in reversed(range(1, samples)):
            yield FakeChunk(rid=rid, index=index, prompt_index=number, text="other", finish_reason=FinishReason.STOP)
        yield FakeChunk(
            rid=rid, index=0, prompt_index=number, text="", finish_reason=output.finish_reason, output=output
        )
