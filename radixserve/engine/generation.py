"""What the engine remembers of one generation while it runs: its samples' text, tokens and logprobs."""

from __future__ import annotations

from dataclasses import dataclass, field

from radixserve.engine.detokenizer import IncrementalDetokenizer, TokenBytes
from radixserve.messages import (
    Explanation,
    FinishReason,
    GenerationChunk,
    GenerationOutput,
    SampleOutput,
    TokenLogprob,
)
from radixserve.scheduler.request import Request


@dataclass(slots=True)
class Sample:
    """One sample's output so far. ``unsent_*``: tokens and logprobs that no chunk has carried yet."""

    detokenizer: IncrementalDetokenizer
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    error: str | None = None


class Generation:
    """All samples of one request, from its queueing to its last chunk."""

    def __init__(
        self, request: Request, prompt: list[int], tokenizer: TokenBytes, explanation: Explanation | None
    ) -> None:
        sampling = request.sampling
        self.request = request
        self.prompt = prompt
        self.explanation = explanation
        self.samples = [
            Sample(
                IncrementalDetokenizer(
                    tokenizer,
                    stop=sampling.stop,
                    include_stop=sampling.include_stop,
                    min_tokens=sampling.min_tokens,
                    skip_special_tokens=sampling.skip_special_tokens,
                )
            )
            for _ in range(sampling.n)
        ]

    @property
    def rid(self) -> str:
        """The generation's name."""
        return self.request.group.rid

    @property
    def finished(self) -> bool:
        """Whether every sample has ended."""
        return all(sample.finish_reason is not None for sample in self.samples)

    def push(self, index: int, token_ids: tuple[int, ...], logprobs: tuple[TokenLogprob, ...]) -> GenerationChunk:
        """Tokens were drawn for sample ``index``; what follows a stop string in them is dropped."""
        sample = self.samples[index]
        text = sample.detokenizer.push(token_ids)
        kept = len(token_ids)
        if sample.detokenizer.stopped is not None:
            kept = sample.detokenizer.num_tokens - len(sample.token_ids)
        sample.token_ids += token_ids[:kept]
        sample.logprobs += logprobs[:kept]
        return GenerationChunk(
            rid=self.rid, index=index, text=text, token_ids=list(token_ids[:kept]), logprobs=list(logprobs[:kept])
        )

    def finish(self, request: Request, index: int) -> GenerationChunk:
        """Sample ``index`` ended as ``request`` says.

        Its last chunk, with the whole output if it was the last sample.
        """
        sample = self.samples[index]
        text = sample.detokenizer.finish()
        sample.finish_reason, sample.stop_reason = request.finish_reason, request.stop_reason
        sample.error = request.error
        if sample.detokenizer.stopped is not None:
            # Held-back text can complete a stop string only at the very end.
            sample.finish_reason, sample.stop_reason = FinishReason.STOP, sample.detokenizer.stopped
        return GenerationChunk(
            rid=self.rid,
            index=index,
            text=text,
            finish_reason=sample.finish_reason,
            output=self.output() if self.finished else None,
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
            explanation=self.explanation,
        )

    def _prompt_logprobs(self) -> list[TokenLogprob | None] | None:
        """One entry a prompt token.

        None before the first that was asked for and after a generation that ended early.
        """
        if self.request.sampling.prompt_logprobs is None:
            return None
        group = self.request.group
        before = min(group.first_logprob, len(self.prompt))
        entries: list[TokenLogprob | None] = [None] * before
        entries += group.prompt_logprobs
        return entries + [None] * (len(self.prompt) - len(entries))
