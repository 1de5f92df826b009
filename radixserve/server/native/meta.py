"""``meta_info``: what SGLang tells of a generation besides its text."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from radixserve.messages import (
    FinishReason,
    GenerationChunk,
    GenerationOutput,
    SampleOutput,
    Timings,
    TokenLogprob,
)
from radixserve.model.tokenizer import Tokenizer
from radixserve.server.native.generate_fields import Part
from radixserve.server.native.token_logprobs import Entry, LogprobWriter
from radixserve.server.openai.answers import CacheReport, cache_report


class Finish(msgspec.Struct, kw_only=True):
    """Why the output ended. ``matched``: the stop string, stop token or pattern; ``length``: output tokens."""

    type: Literal["stop", "length", "abort"]
    matched: str | int | UnsetType | None = UNSET
    length: int | UnsetType = UNSET
    message: str | UnsetType = UNSET


class Meta(msgspec.Struct, kw_only=True):
    """SGLang's fields, and those from ``healed_tokens`` on of ours.

    Those of logprobs come with ``return_logprob``; the ``input`` ones cover the prompt from ``logprob_start_len`` on. In the
    events of a stream everything is cumulative; before a sample's last one only ``output_token_logprobs`` is among them.
    A sample's last one has: ``healed_tokens``: how many tokens at the prompt's end the first output tokens replace.
    ``kept_tokens``: how many output tokens lie inside ``text``; ``rest``: the text after those. ``forced_tokens``: output tokens that
    the constraint left no choice of. ``forced_at``, with logprobs: which ones, where there are any.
    """

    id: str
    finish_reason: Finish | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    e2e_latency: float | UnsetType = UNSET
    input_token_logprobs: list[Entry] | UnsetType = UNSET
    output_token_logprobs: list[Entry] | UnsetType = UNSET
    input_top_logprobs: list[list[Entry] | None] | UnsetType = UNSET
    output_top_logprobs: list[list[Entry] | None] | UnsetType = UNSET
    input_token_ids_logprobs: list[list[Entry] | None] | UnsetType = UNSET
    output_token_ids_logprobs: list[list[Entry] | None] | UnsetType = UNSET
    healed_tokens: int | UnsetType = UNSET
    kept_tokens: int | UnsetType = UNSET
    rest: str | UnsetType = UNSET
    forced_tokens: int | UnsetType = UNSET
    forced_at: list[int] | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET
    cache: CacheReport | UnsetType = UNSET


class Generated(msgspec.Struct, kw_only=True):
    """One sample. ``index``: its place, in streams of several."""

    text: str
    output_ids: list[int]
    meta_info: Meta
    index: int | UnsetType = UNSET


class MetaWriter:
    """Writes the ``meta_info`` of one prompt's samples, from when the request arrives. ``name``: the prompt's ``rid``."""

    def __init__(self, tokenizer: Tokenizer, name: str, part: Part, *, texts: bool) -> None:
        self._name = name
        self._part = part
        self._writer = LogprobWriter(tokenizer, texts=texts)
        self._began = time.perf_counter()
        self._cached = 0
        self._healed = 0
        self._prompt_logprobs: list[TokenLogprob | None] | None = None
        # What the events of each sample showed of its tokens so far.
        self._shown: dict[int, list[Entry]] = {}

    def learn(self, chunk: GenerationChunk) -> None:
        """Keep what the first chunk says of the prompt."""
        if chunk.cached_tokens is not None:
            self._cached = chunk.cached_tokens
        if chunk.healed_tokens is not None:
            self._healed = chunk.healed_tokens
        if chunk.prompt_logprobs is not None:
            self._prompt_logprobs = chunk.prompt_logprobs

    def running(self, sample: SampleOutput) -> Meta:
        """Of a sample while its prompt goes on; everything that is long comes with its last event only."""
        meta = self._meta(sample, self._cached)
        if not self._part.wants_logprobs:
            return meta
        if sample.finish_reason is not None:
            self._add_logprobs(meta, sample, self._prompt_logprobs)
            return meta
        shown = self._shown.setdefault(sample.index, [])
        shown += self._writer.tokens(sample.token_ids[len(shown) :], (sample.logprobs or [])[len(shown) :])
        meta.output_token_logprobs = shown
        return meta

    def final(self, output: GenerationOutput, sample: SampleOutput) -> Meta:
        """Of a sample of a prompt that is done."""
        self._healed = output.healed_tokens
        meta = self._meta(sample, output.cached_tokens)
        if self._part.wants_logprobs:
            self._add_logprobs(meta, sample, output.prompt_logprobs)
        meta.timings = output.timings
        if output.explanation is not None:
            meta.cache = cache_report(output.explanation)
        return meta

    def _meta(self, sample: SampleOutput, cached: int) -> Meta:
        meta = Meta(
            id=self._name if self._part.sampling.n == 1 else f"{self._name}_{sample.index}",
            finish_reason=_finish(sample),
            prompt_tokens=len(self._part.token_ids),
            completion_tokens=len(sample.token_ids),
            cached_tokens=cached,
        )
        if sample.finish_reason is not None:
            meta.e2e_latency = time.perf_counter() - self._began
            meta.healed_tokens = self._healed
            meta.kept_tokens, meta.rest = sample.kept_tokens, sample.rest
            meta.forced_tokens = sample.forced_tokens
        return meta

    def _add_logprobs(
        self, meta: Meta, sample: SampleOutput, prompt_logprobs: Sequence[TokenLogprob | None] | None
    ) -> None:
        writer, sampling, begin = self._writer, self._part.sampling, self._part.logprob_start
        ids = self._part.token_ids[begin:]
        given = list((prompt_logprobs or [])[begin:])
        given += [None] * (len(ids) - len(given))
        drawn = sample.logprobs or []
        meta.input_token_logprobs = writer.tokens(ids, given)
        meta.output_token_logprobs = writer.tokens(sample.token_ids, drawn)
        meta.forced_at = [place for place, entry in enumerate(drawn) if entry.forced] or UNSET
        if sampling.logprobs:
            meta.input_top_logprobs = writer.tops(given, sampling.logprobs)
            meta.output_top_logprobs = writer.tops(drawn, sampling.logprobs)
        if sampling.logprob_token_ids:
            meta.input_token_ids_logprobs = writer.asked(given)
            meta.output_token_ids_logprobs = writer.asked(drawn)


def _finish(sample: SampleOutput) -> Finish | None:
    match sample.finish_reason:
        case None:
            return None
        case FinishReason.STOP:
            # The model's own end tokens are no stop reason; SGLang names them.
            matched = sample.stop_reason
            if matched is None and sample.token_ids:
                matched = sample.token_ids[-1]
            return Finish(type="stop", matched=matched)
        case FinishReason.LENGTH:
            return Finish(type="length", length=len(sample.token_ids))
        case _:
            return Finish(type="abort", message=sample.error or "the request was aborted")
