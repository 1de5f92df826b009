"""One turn of a conversation: from messages and tools to the model's answer taken apart, whole or as it comes.

What chat completions and responses have in common; they only write it down in different shapes.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from radixserve.chat.conversation import Conversation
from radixserve.chat.events import Event, ParsedMessage, ReasoningDelta, collect
from radixserve.chat.format import ChatPrompt
from radixserve.chat.output import OutputParser
from radixserve.chat.tools import Toolbox
from radixserve.constraints import StructuralTag
from radixserve.engine.client import Job
from radixserve.engine.stop_strings import StopMatcher
from radixserve.errors import InvalidRequest, UnsupportedFeature
from radixserve.messages import FinishReason, GenerationOutput, SamplingParams, TokenLogprob
from radixserve.server.callers import Caller
from radixserve.server.openai.constraints import renamed
from radixserve.server.service import Service

TOOL_CALLS = "tool_calls"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnOptions:
    """How a conversation is shown to the model, and where the request belongs.

    ``content_stops``: stop strings are looked for in the answer only and not in its reasoning; None does so where the
    model reasons. ``constraint_field``: what the request calls the constraint in its sampling parameters.
    """

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    template_options: Mapping[str, Any] | None = None
    content_stops: bool | None = None
    constraint_field: str = "response_format"
    priority: int | None = None
    cache_salt: str | None = None
    explain: bool | None = None


@dataclass(slots=True)
class TurnPiece:
    """What one chunk brought to sample ``index``.

    ``logprobs`` belong to the tokens behind ``events``, those of text that was held back come with it. ``finish_reason``
    comes once, with the sample's last piece, ``output`` with the last piece of all.
    """

    index: int
    events: list[Event]
    logprobs: list[TokenLogprob]
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    output: GenerationOutput | None = None


@dataclass(slots=True)
class TurnSample:
    """One whole sample."""

    message: ParsedMessage
    finish_reason: str
    stop_reason: str | int | None
    logprobs: list[TokenLogprob]


@dataclass(slots=True)
class _Reading:
    """One sample while it comes."""

    parser: OutputParser
    pending: list[TokenLogprob] = field(default_factory=list)
    done: bool = False


class ChatTurn:
    """A turn that was checked and can run once."""

    def __init__(
        self,
        service: Service,
        caller: Caller,
        name: str,
        job: Job,
        toolbox: Toolbox,
        prompt: ChatPrompt,
        stops: Sequence[str],
        constraint_field: str,
    ) -> None:
        self.name = name
        self.prompt = prompt
        self.reasoning_tokens = 0
        self._service = service
        self._caller = caller
        self._job = job
        self._toolbox = toolbox
        self._constraint_field = constraint_field
        self._readings = [_Reading(self._parser(stops)) for _ in range(job.sampling.n)]

    @classmethod
    def prepare(
        cls,
        service: Service,
        caller: Caller,
        name: str,
        conversation: Conversation,
        toolbox: Toolbox,
        sampling: SamplingParams,
        options: TurnOptions,
    ) -> ChatTurn:
        """Render, tokenize and check. Raises `InvalidRequest`."""
        chat = service.chat
        constraint = sampling.constraint
        free = constraint is None
        if toolbox.active:
            if isinstance(constraint, StructuralTag):
                raise UnsupportedFeature(options.constraint_field, "a structural tag cannot be enforced beside tools")
            # A forced call leaves no room for another format: it is the answer's format.
            constraint = chat.constraint(toolbox, constraint)
            free = free and not toolbox.forced
        salt = service.callers.salt(caller, options.cache_salt)
        prompt = chat.prompt(
            conversation,
            toolbox,
            add_generation_prompt=options.add_generation_prompt,
            continue_final_message=options.continue_final_message,
            template_options=options.template_options,
            close_reasoning=not free,
            salt=salt,
            check_least=lambda least: service.limits.check_least(least, "messages"),
        )
        changes: dict[str, Any] = {"constraint": constraint}
        if not chat.skip_special_tokens(toolbox):
            changes["skip_special_tokens"] = False
        stops: tuple[str, ...] = ()
        by_content = chat.traits.reasoning if options.content_stops is None else options.content_stops
        if by_content and sampling.stop:
            if sampling.min_tokens:
                raise UnsupportedFeature(
                    "min_tokens", "cannot hold off stop strings that are looked for in content only"
                )
            stops, changes["stop"] = sampling.stop, ()
        try:
            sampling = service.limits.check_sampling(sampling)
        except InvalidRequest as error:
            raise renamed(error, options.constraint_field) from None
        sampling = msgspec.structs.replace(sampling, **changes)
        try:
            service.limits.check_tokens(prompt.token_ids)
            service.limits.max_tokens(len(prompt.token_ids), sampling)
        except InvalidRequest as error:
            if error.param == "prompt":
                error.param = "messages"
            raise
        (job,) = service.jobs(
            caller,
            [prompt.token_ids],
            sampling,
            priority=options.priority,
            cache_salt=options.cache_salt,
            explain=options.explain,
        )
        return cls(service, caller, name, job, toolbox, prompt, stops, options.constraint_field)

    @property
    def sampling(self) -> SamplingParams:
        """The parameters that the engine was given."""
        return self._job.sampling

    async def pieces(self) -> AsyncGenerator[TurnPiece, None]:
        """The answer as it comes; raises as `Service.generate` does, and closing it aborts."""
        async with contextlib.aclosing(self._pieces()) as pieces:
            try:
                async for piece in pieces:
                    yield piece
            except InvalidRequest as error:
                raise self._named(error) from None

    async def _pieces(self) -> AsyncGenerator[TurnPiece, None]:
        chunks = self._service.generate(self._caller, self.name, [self._job])
        async with contextlib.aclosing(chunks):
            async for chunk in chunks:
                reading = self._readings[chunk.index]
                if chunk.output is not None:
                    self._remember(chunk.output)
                if reading.done:
                    # It ended by a stop string in its content; the engine did not know.
                    if chunk.output is not None:
                        yield TurnPiece(chunk.index, [], [], output=chunk.output)
                    continue
                events = reading.parser.push(chunk.text) if chunk.text else []
                reason, stop_reason = chunk.finish_reason, self._stop_reason(chunk.index, chunk.output)
                if reason is not None:
                    events += reading.parser.finish()
                if reading.parser.stopped is not None and reason is None:
                    events += reading.parser.finish()
                    reason, stop_reason = FinishReason.STOP, reading.parser.stopped
                reading.done = reason is not None
                reading.pending += chunk.logprobs
                if chunk.token_ids and any(isinstance(event, ReasoningDelta) for event in events):
                    self.reasoning_tokens += len(chunk.token_ids)
                logprobs: list[TokenLogprob] = []
                if events or reading.done:
                    logprobs, reading.pending = reading.pending, []
                if events or reading.done or chunk.output is not None:
                    yield TurnPiece(
                        chunk.index, events, logprobs, self._finish_reason(reading, reason), stop_reason, chunk.output
                    )
                if chunk.output is None and all(other.done for other in self._readings):
                    await self._service.client.abort([self._job.rid])

    async def collect(self) -> tuple[list[TurnSample], GenerationOutput]:
        """The whole answer: all samples in order, and what the engine says of them."""
        count = self.sampling.n
        events: list[list[Event]] = [[] for _ in range(count)]
        logprobs: list[list[TokenLogprob]] = [[] for _ in range(count)]
        ends: dict[int, tuple[str, str | int | None]] = {}
        output: GenerationOutput | None = None
        async with contextlib.aclosing(self.pieces()) as pieces:
            async for piece in pieces:
                events[piece.index] += piece.events
                logprobs[piece.index] += piece.logprobs
                if piece.finish_reason is not None:
                    ends[piece.index] = (piece.finish_reason, piece.stop_reason)
                output = piece.output or output
        assert output is not None, "the last piece brings the output"
        return [TurnSample(collect(events[at]), *ends[at], logprobs[at]) for at in range(count)], output

    def _named(self, error: InvalidRequest) -> InvalidRequest:
        """What the engine calls otherwise, by the name of the request's field that it came from."""
        param = error.param or ""
        if param == "rid":
            error.param = "request_id"
        if param.partition(".")[0] != "constraint":
            return error
        if self._toolbox.active and not param.startswith("constraint.otherwise"):
            return self._service.chat.refused(error, self._toolbox)
        error.param = self._constraint_field
        return error

    def _parser(self, stops: Sequence[str]) -> OutputParser:
        constraint = self._job.sampling.constraint
        return self._service.chat.output_parser(
            self._toolbox,
            self.prompt,
            stops=StopMatcher(stops) if stops else None,
            include_stop=self._job.sampling.include_stop,
            otherwise=isinstance(constraint, StructuralTag) and constraint.otherwise is not None,
        )

    def _finish_reason(self, reading: _Reading, reason: FinishReason | None) -> str | None:
        if reason is FinishReason.STOP and reading.parser.asks_for_calls:
            return TOOL_CALLS
        return None if reason is None else str(reason)

    @staticmethod
    def _stop_reason(index: int, output: GenerationOutput | None) -> str | int | None:
        if output is None:
            return None
        return output.samples[index].stop_reason if output.samples else output.stop_reason

    def _remember(self, output: GenerationOutput) -> None:
        for sample in output.all_samples:
            if sample.finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
                self._service.chat.remember(self._job.salt, self.prompt, sample.token_ids, sample.text)
