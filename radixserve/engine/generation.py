"""What the engine remembers of one generation while it runs: its samples' text, tokens and logprobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from radixserve.engine.detokenizer import IncrementalDetokenizer, TokenBytes
from radixserve.engine.healing import Healed
from radixserve.grammar.stop_patterns import StopPatterns
from radixserve.messages import (
    Explanation,
    FinishReason,
    GenerationChunk,
    GenerationOutput,
    HeldPrefix,
    SampleOutput,
    TokenLogprob,
)
from radixserve.scheduler.request import Request


@dataclass(slots=True)
class Sample:
    """One sample's output so far."""

    detokenizer: IncrementalDetokenizer
    token_ids: list[int] = field(default_factory=list)
    forced: int = 0
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    error: str | None = None
    error_param: str | None = None


class Generation:
    """All samples of one request, from its queueing to its last chunk.

    ``rid``: its name. ``prompt``: as it was sent; the request's own lacks the tokens that are ``healed``. ``eos_ids``: the model's own end
    tokens.
    ``patterns``: what `SamplingParams.stop_regex` asks for. ``hold_s``: for how long the prompt is to be held; ``hold`` says what
    became of that.
    """

    def __init__(
        self,
        request: Request,
        prompt: list[int],
        tokenizer: TokenBytes,
        explanation: Explanation | None,
        eos_ids: Sequence[int] = (),
        patterns: StopPatterns | None = None,
        healed: Healed | None = None,
        hold_s: float | None = None,
    ) -> None:
        sampling = request.sampling
        # Tokens that end a sample and are no part of its text.
        self._ends = frozenset((*sampling.stop_token_ids, *(() if sampling.ignore_eos else eos_ids)))
        if sampling.include_stop:
            self._ends &= tokenizer.special_ids if sampling.skip_special_tokens else frozenset()
        self.healed = healed
        self.hold_s = hold_s
        self.hold: HeldPrefix | None = None
        self.rid = request.group.rid
        self.request = request
        self.prompt = prompt
        self.explanation = explanation
        self._began = False
        self.samples = [
            Sample(
                IncrementalDetokenizer(
                    tokenizer,
                    stop=sampling.stop,
                    include_stop=sampling.include_stop,
                    min_tokens=sampling.min_tokens,
                    skip_special_tokens=sampling.skip_special_tokens,
                    patterns=None if patterns is None else patterns.copy(),
                    prefix=b"" if healed is None else healed.text,
                )
            )
            for _ in range(sampling.n)
        ]

    @property
    def finished(self) -> bool:
        """Whether every sample has ended."""
        return all(sample.finish_reason is not None for sample in self.samples)

    def push(
        self, index: int, token_ids: tuple[int, ...], logprobs: tuple[TokenLogprob, ...], *, forced: bool = False
    ) -> GenerationChunk:
        """Tokens were drawn for sample ``index``, or were ``forced``; what follows a stop string in them is dropped."""
        sample = self.samples[index]
        ends = bool(token_ids) and token_ids[-1] in self._ends and not sample.detokenizer.repeats(token_ids[-1])
        text = sample.detokenizer.push(token_ids[:-1] if ends else token_ids)
        if sample.detokenizer.stopped is not None:
            kept = sample.detokenizer.num_tokens - len(sample.token_ids)
            token_ids, logprobs = token_ids[:kept], logprobs[:kept]
        sample.token_ids += token_ids
        sample.forced += len(token_ids) if forced else 0
        if self._began and not logprobs:
            return GenerationChunk(rid=self.rid, index=index, text=text, token_ids=list(token_ids))
        sample.logprobs += logprobs
        return GenerationChunk(
            rid=self.rid,
            index=index,
            text=text,
            token_ids=list(token_ids),
            logprobs=list(logprobs),
            **self._first_facts(),
        )

    def finish(self, request: Request, index: int) -> GenerationChunk:
        """Sample ``index`` ended as ``request`` says.

        Its last chunk, with the whole output if it was the last sample.
        """
        sample = self.samples[index]
        text = sample.detokenizer.finish()
        sample.finish_reason, sample.stop_reason = request.finish_reason, request.stop_reason
        sample.error, sample.error_param = request.error, request.error_param
        if sample.detokenizer.stopped is not None:
            # Held-back text can complete a stop string only at the very end.
            sample.finish_reason, sample.stop_reason = FinishReason.STOP, sample.detokenizer.stopped
        return GenerationChunk(
            rid=self.rid,
            index=index,
            text=text,
            finish_reason=sample.finish_reason,
            stop_reason=sample.stop_reason,
            output=self.output() if self.finished else None,
            kept_tokens=sample.detokenizer.kept_tokens,
            rest=sample.detokenizer.rest,
            forced_tokens=sample.forced,
            **self._first_facts(),
        )

    def output(self) -> GenerationOutput:
        """The generation as it is now."""
        request, first = self.request, self.samples[0]
        sampling = request.sampling
        wants = sampling.logprobs is not None
        samples = [
            SampleOutput(
                index=index,
                text=sample.detokenizer.text,
                token_ids=list(sample.token_ids),
                finish_reason=sample.finish_reason,
                stop_reason=sample.stop_reason,
                logprobs=list(sample.logprobs) if wants else None,
                error=sample.error,
                kept_tokens=sample.detokenizer.kept_tokens,
                rest=sample.detokenizer.rest,
                forced_tokens=sample.forced,
            )
            for index, sample in enumerate(self.samples)
        ]
        return GenerationOutput(
            rid=self.rid,
            prompt_token_ids=self.prompt,
            text=samples[0].text,
            token_ids=samples[0].token_ids,
            finish_reason=first.finish_reason,
            stop_reason=first.stop_reason,
            logprobs=samples[0].logprobs,
            prompt_logprobs=self._prompt_logprobs(),
            prompt_tokens=len(self.prompt),
            cached_tokens=request.group.cached_tokens,
            completion_tokens=sum(len(sample.token_ids) for sample in self.samples),
            timings=request.timings(),
            samples=samples if sampling.n > 1 else [],
            error=next((sample.error for sample in self.samples if sample.error is not None), None),
            error_param=next((sample.error_param for sample in self.samples if sample.error is not None), None),
            explanation=self.explanation,
            embedding=None if request.pool is None else request.pool.vector(),
            kept_tokens=samples[0].kept_tokens,
            rest=samples[0].rest,
            forced_tokens=samples[0].forced_tokens,
            healed_tokens=self._num_healed,
            hold=self.hold,
        )

    @property
    def _num_healed(self) -> int:
        return 0 if self.healed is None else len(self.healed.tokens)

    def _first_facts(self) -> dict[str, Any]:
        """What the first chunk of all says of the prompt, which is computed by then; nothing for the others."""
        if self._began:
            return {}
        self._began = True
        return {
            "cached_tokens": self.request.group.cached_tokens,
            "prompt_logprobs": self._prompt_logprobs(),
            "healed_tokens": self._num_healed,
        }

    def _prompt_logprobs(self) -> list[TokenLogprob | None] | None:
        """One entry a prompt token.

        None before the first that was asked for, after a generation that ended early, and for what was healed.
        """
        if self.request.sampling.prompt_logprobs is None:
            return None
        group = self.request.group
        before = min(group.first_logprob, len(self.prompt))
        entries: list[TokenLogprob | None] = [None] * before
        entries += group.prompt_logprobs
        return entries + [None] * (len(self.prompt) - len(entries))
