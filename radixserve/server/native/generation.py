"""``POST /generate``: text or token ids in, text, token ids and logprobs out, in SGLang's shape."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.responses import Response

from radixserve.engine.client import Job
from radixserve.messages import GenerationChunk, SampleOutput
from radixserve.server import bodies
from radixserve.server.callers import Caller
from radixserve.server.errors import JSONResponse
from radixserve.server.native.generate_fields import GenerateRequest, Part, parts_of
from radixserve.server.native.meta import Generated, Meta, MetaWriter
from radixserve.server.native.sampling import named_as_sent
from radixserve.server.requests import caller_of, off_loop, service_of
from radixserve.server.service import Service, new_id
from radixserve.server.streaming import DONE, event, start, while_connected


async def generate(request: Request) -> Response:
    """Handle one request."""
    service, caller = service_of(request), caller_of(request)
    fields = await bodies.read(request, GenerateRequest, service.body_limit)
    run = await off_loop(request, _Run.of, service, caller, fields)
    if fields.stream:
        return await start(run.events(), request.receive, service.options.keepalive_s)
    return JSONResponse(await while_connected(request.receive, run.answer()))


@dataclass(slots=True)
class _Run:
    """One request, checked and ready to go.

    ``names``: what each of ``jobs`` is called. ``many``: the answer is a list. ``samples``: what streamed so far, by the
    place of its prompt and its index.
    """

    service: Service
    caller: Caller
    name: str
    names: list[str]
    jobs: list[Job]
    parts: list[Part]
    many: bool
    texts: bool
    samples: dict[tuple[int, int], SampleOutput] = field(default_factory=dict)

    @classmethod
    def of(cls, service: Service, caller: Caller, fields: GenerateRequest) -> _Run:
        """Raises `InvalidRequest` for whatever is wrong with ``fields``."""
        parts, batch = parts_of(fields, service)
        jobs = service.jobs(
            caller,
            [part.token_ids for part in parts],
            [part.sampling for part in parts],
            priority=fields.priority,
            cache_salt=fields.cache_salt,
            explain=fields.explain_cache,
            heal=fields.heal,
        )
        name = fields.rid if isinstance(fields.rid, str) else new_id("gen-")
        names = [f"{name}_{index}" for index in range(len(parts))] if batch else [name]
        if isinstance(fields.rid, list):
            names = fields.rid
        many = batch or any(part.sampling.n > 1 for part in parts)
        return cls(service, caller, name, names, jobs, parts, many, bool(fields.return_text_in_logprobs))

    async def answer(self) -> Generated | list[Generated]:
        writers = self._writers()
        with self._named_as_sent():
            outputs = await self.service.collect(self.caller, self.name, self.jobs, names=self.names)
        generated = [
            Generated(text=sample.text, output_ids=sample.token_ids, meta_info=writers[place].final(output, sample))
            for place, output in enumerate(outputs)
            for sample in output.all_samples
        ]
        return generated if self.many else generated[0]

    async def events(self) -> AsyncIterator[bytes]:
        """Every event repeats the text so far, as SGLang's clients expect it."""
        writers = self._writers()
        chunks = self.service.generate(self.caller, self.name, self.jobs, names=self.names)
        with self._named_as_sent():
            async with contextlib.aclosing(chunks):
                async for chunk in chunks:
                    sample = self._take(chunk)
                    writer = writers[chunk.prompt_index]
                    writer.learn(chunk)
                    if chunk.output is not None:
                        final = chunk.output.all_samples[chunk.index]
                        yield self._event(chunk, sample, writer.final(chunk.output, final))
                    elif chunk.text or chunk.token_ids or chunk.finish_reason is not None:
                        yield self._event(chunk, sample, writer.running(sample))
        yield DONE

    def _take(self, chunk: GenerationChunk) -> SampleOutput:
        sample = self.samples.setdefault(
            (chunk.prompt_index, chunk.index), SampleOutput(index=chunk.index, token_ids=[], logprobs=[])
        )
        sample.text += chunk.text
        sample.token_ids += chunk.token_ids
        assert sample.logprobs is not None, "set above"
        sample.logprobs += chunk.logprobs
        sample.finish_reason, sample.stop_reason = chunk.finish_reason, chunk.stop_reason
        sample.kept_tokens, sample.rest = chunk.kept_tokens or 0, chunk.rest or ""
        sample.forced_tokens = chunk.forced_tokens or 0
        return sample

    def _event(self, chunk: GenerationChunk, sample: SampleOutput, meta: Meta) -> bytes:
        generated = Generated(text=sample.text, output_ids=sample.token_ids, meta_info=meta)
        if self.many:
            before = sum(part.sampling.n for part in self.parts[: chunk.prompt_index])
            generated.index = before + chunk.index
        return event(generated)

    def _named_as_sent(self) -> contextlib.AbstractContextManager[None]:
        """What the engine refuses is refused under the request's own names.

        It does not tell which prompt's constraint it was; the first that has one stands for all.
        """
        part = next((part for part in self.parts if part.sampling.constraint is not None), self.parts[0])
        return named_as_sent(part.fields, part.place)

    def _writers(self) -> list[MetaWriter]:
        tokenizer = self.service.text.tokenizer
        return [
            MetaWriter(tokenizer, name, part, texts=self.texts)
            for name, part in zip(self.names, self.parts, strict=True)
        ]
