"""``POST /v1/completions``: continue text or token ids."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from radixserve.engine.client import Job
from radixserve.errors import InvalidRequest, UnsupportedFeature
from radixserve.messages import GenerationChunk, GenerationOutput, Timings, TokenLogprob
from radixserve.server import bodies
from radixserve.server.callers import Caller
from radixserve.server.errors import JSONResponse
from radixserve.server.openai import answers
from radixserve.server.openai.completion_logprobs import CompletionLogprobs, TextOffsets, completion_logprobs
from radixserve.server.openai.constraints import constraint_field, renamed
from radixserve.server.openai.fields import InertFields, StreamOptions
from radixserve.server.openai.prompts import parse_prompts
from radixserve.server.openai.sampling import sampling_of
from radixserve.server.requests import caller_of, off_loop, service_of
from radixserve.server.service import Service, new_id
from radixserve.server.streaming import DONE, event, start, while_connected

DEFAULT_MAX_TOKENS = 16


class CompletionRequest(InertFields, kw_only=True, forbid_unknown_fields=True):
    """OpenAI's fields and the usual extras."""

    prompt: str | list[Any]
    model: str | None = None
    max_tokens: int | None = None
    logprobs: int | None = None
    echo: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    suffix: str | None = None
    best_of: int | None = None


class CompletionChoice(msgspec.Struct, kw_only=True):
    """One sample of one prompt; in a stream, a piece of it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    matched_stop: str | int | UnsetType | None = UNSET
    prompt_logprobs: answers.PromptLogprobs | UnsetType = UNSET


class Completion(msgspec.Struct, kw_only=True):
    """The answer; a stream's events have the same shape."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    object: str = "text_completion"
    system_fingerprint: str | None = None
    usage: answers.Usage | UnsetType | None = UNSET
    timings: Timings | UnsetType = UNSET
    cache: answers.CacheReport | list[answers.CacheReport] | UnsetType = UNSET


async def completions(request: Request) -> Response:
    """Handle one request."""
    service, caller = service_of(request), caller_of(request)
    fields = await bodies.read(request, CompletionRequest, service.body_limit)
    run = await off_loop(request, _Run.of, service, caller, fields)
    if fields.stream:
        return await start(run.events(), request.receive, service.options.keepalive_s)
    return JSONResponse(await while_connected(request.receive, run.answer()))


@dataclass(slots=True)
class _Choice:
    """A choice on its way out."""

    index: int
    offsets: TextOffsets = field(default_factory=TextOffsets)
    echoed: bool = False


@dataclass(slots=True)
class _Run:
    """One request, checked and ready to go."""

    service: Service
    caller: Caller
    fields: CompletionRequest
    name: str
    jobs: list[Job]
    texts: list[str]
    created: int = field(default_factory=lambda: int(time.time()))

    @classmethod
    def of(cls, service: Service, caller: Caller, fields: CompletionRequest) -> _Run:
        service.check_model(fields.model)
        if fields.suffix is not None and fields.suffix != "":
            raise UnsupportedFeature("suffix", "inserting text before a suffix is not done")
        if fields.best_of is not None and fields.best_of != (fields.n or 1):
            raise UnsupportedFeature("best_of", "only as many samples as n are drawn")
        if fields.stream_options is not None and not fields.stream:
            raise InvalidRequest("stream_options", "may be given only with stream: true")
        more: dict[str, Any] = {"logprobs": fields.logprobs}
        if fields.echo and fields.logprobs is not None and fields.prompt_logprobs is None:
            more["prompt_logprobs"] = fields.logprobs
        defaults = service.info.default_sampling
        limit = fields.max_tokens if fields.max_tokens is not None else (defaults.max_tokens or DEFAULT_MAX_TOKENS)
        try:
            sampling = service.limits.check_sampling(sampling_of(fields, defaults, max_tokens=limit, **more))
        except InvalidRequest as error:
            raise renamed(error, constraint_field(fields)) from None
        prompts = parse_prompts(fields.prompt, "prompt", service, sampling)
        jobs = service.jobs(
            caller,
            [prompt.token_ids for prompt in prompts],
            sampling,
            priority=fields.priority,
            cache_salt=fields.cache_salt,
            explain=fields.explain_cache,
        )
        decode = service.text.tokenizer.decode
        texts = ["" if not fields.echo else prompt.text or decode(prompt.token_ids) for prompt in prompts]
        return cls(service, caller, fields, fields.request_id or new_id("cmpl-"), jobs, texts)

    # ---------------------------------------------------------------- whole

    async def answer(self) -> Completion:
        try:
            outputs = await self.service.collect(self.caller, self.name, self.jobs)
        except InvalidRequest as error:
            raise self._named(error) from None
        choices = []
        for place, output in enumerate(outputs):
            for sample in output.all_samples:
                index = place * self._per_prompt + sample.index
                entries: list[TokenLogprob | None] = []
                if self.fields.logprobs is not None:
                    entries = [*(output.prompt_logprobs or [])] if self.fields.echo else []
                    entries += sample.logprobs or []
                prompt = output.prompt_token_ids if self.fields.echo else []
                choices.append(
                    CompletionChoice(
                        index=index,
                        text=self.texts[place] + sample.text,
                        logprobs=self._logprobs(prompt, sample.token_ids, entries, TextOffsets()),
                        finish_reason=answers.finish_reason(sample.finish_reason),
                        matched_stop=sample.stop_reason,
                        prompt_logprobs=self._prompt_logprobs(output),
                    )
                )
        return self._piece(choices, usage=answers.usage(outputs), **answers.extras(outputs))

    # ---------------------------------------------------------------- stream

    async def events(self) -> AsyncIterator[bytes]:
        try:
            async with contextlib.aclosing(self._events()) as events:
                async for data in events:
                    yield data
        except InvalidRequest as error:
            raise self._named(error) from None

    async def _events(self) -> AsyncGenerator[bytes, None]:
        wants_usage = self.fields.stream_options is not None and bool(self.fields.stream_options.include_usage)
        usage: dict[str, Any] = {"usage": None} if wants_usage else {}
        choices: dict[int, _Choice] = {}
        outputs: list[GenerationOutput] = []
        async with contextlib.aclosing(self.service.generate(self.caller, self.name, self.jobs)) as chunks:
            async for chunk in chunks:
                index = chunk.prompt_index * self._per_prompt + chunk.index
                choice = choices.setdefault(index, _Choice(index))
                piece = self._chunk(choice, chunk)
                if piece is not None:
                    yield event(self._piece([piece], **usage))
                if chunk.output is not None:
                    outputs.append(chunk.output)
        if wants_usage:
            yield event(self._piece([], usage=answers.usage(outputs), **answers.extras(outputs)))
        yield DONE

    def _chunk(self, choice: _Choice, chunk: GenerationChunk) -> CompletionChoice | None:
        """The event for a chunk, None where it brings nothing."""
        job = self.jobs[chunk.prompt_index]
        text, prompt = "", list[int]()
        known: list[TokenLogprob | None] = [*chunk.logprobs]
        if self.fields.echo and not choice.echoed:
            choice.echoed = True
            text, prompt = self.texts[chunk.prompt_index], job.token_ids
            known = [*(chunk.prompt_logprobs or []), *known]
        text += chunk.text
        tokens = bool(prompt or chunk.token_ids)
        if not (text or tokens or chunk.finish_reason is not None):
            return None
        logprobs = self._logprobs(prompt, chunk.token_ids, known, choice.offsets) if tokens else None
        return CompletionChoice(
            index=choice.index,
            text=text,
            logprobs=logprobs,
            finish_reason=answers.finish_reason(chunk.finish_reason),
        )

    # ---------------------------------------------------------------- parts

    def _named(self, error: InvalidRequest) -> InvalidRequest:
        """What the engine calls otherwise, by the name of the field that it came from."""
        if error.param == "rid":
            error.param = "request_id"
        return renamed(error, constraint_field(self.fields))

    @property
    def _per_prompt(self) -> int:
        return self.jobs[0].sampling.n

    def _piece(self, choices: list[CompletionChoice], **more: Any) -> Completion:
        service = self.service
        return Completion(
            id=self.name,
            created=self.created,
            model=service.name,
            choices=choices,
            system_fingerprint=service.fingerprint,
            **more,
        )

    def _prompt_logprobs(self, output: GenerationOutput) -> answers.PromptLogprobs | UnsetType:
        if self.fields.prompt_logprobs is None:
            return UNSET
        return answers.prompt_logprobs(self.service.text.tokenizer, output.prompt_logprobs) or []

    def _logprobs(
        self,
        prompt: Sequence[int],
        ids: Sequence[int],
        entries: Sequence[TokenLogprob | None],
        offsets: TextOffsets,
    ) -> CompletionLogprobs | None:
        if self.fields.logprobs is None:
            return None
        tokenizer = self.service.text.tokenizer
        hidden = tokenizer.special_ids if self.jobs[0].sampling.skip_special_tokens else frozenset[int]()
        return completion_logprobs(tokenizer, [*prompt, *ids], entries, offsets, hidden=hidden, num_prompt=len(prompt))
