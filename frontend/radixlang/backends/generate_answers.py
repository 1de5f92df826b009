"""radixserve's answers to ``/generate`` and ``/hold``, as outputs, logprobs and counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from radixlang.backends import wire
from radixlang.backends.base import Hold, Output, Sample, TokenScore, Usage
from radixlang.backends.score_trie import Answer

if TYPE_CHECKING:
    from radixserve.messages import HoldOutput

# What a server says of a token that cannot be drawn, or that a text was not asked for.
_IMPOSSIBLE = float("-inf")


def output_of(samples: Sequence[wire.Generated], *, logprobs: bool, wall_s: float) -> Output:
    """What one call brought; ``logprobs``: whether they were asked for. Raises `ValueError` for samples that have not ended."""
    metas = [sample.meta_info for sample in samples]
    return Output(
        samples=tuple(_sample(sample, logprobs=logprobs) for sample in samples),
        usage=_usage(
            # In a stream, times come with the last event of all.
            next((meta for meta in metas if meta.timings is not None), metas[0]),
            generated=sum(meta.completion_tokens for meta in metas),
            forced=sum(meta.forced_tokens or 0 for meta in metas),
            wall_s=wall_s,
        ),
        healed=metas[0].healed_tokens,
    )


def answer_of(meta: wire.Meta) -> Answer:
    """What a question of `score_trie` learns from the ``meta_info`` of its request."""
    places: list[dict[int, float]] = []
    told = meta.input_token_ids_logprobs
    for place, (logprob, token, _) in enumerate(meta.input_token_logprobs):
        entries = told[place] if place < len(told) else None
        places.append({**_by_token(entries), token: _known(logprob)})
    places += [_by_token(entries) for entries in meta.output_token_ids_logprobs[:1]]
    return Answer(tuple(places), _usage(meta))


def hold_of(held: wire.Held | HoldOutput, *, wall_s: float) -> Hold:
    """What became of a hold, told by a server or by an engine in the process."""
    return Hold(
        id=held.id,
        held=held.held_tokens,
        usage=Usage(
            prompt=held.prompt_tokens,
            cached=held.cached_tokens,
            computed=held.computed_tokens,
            forced=0,
            wall_s=wall_s,
            queue_s=held.timings.queued_s,
            first_token_s=held.timings.first_token_s,
        ),
        seconds=held.expires_in_s,
    )


def _sample(generated: wire.Generated, *, logprobs: bool) -> Sample:
    meta, finish = generated.meta_info, generated.meta_info.finish_reason
    if finish is None or meta.kept_tokens is None or meta.rest is None:
        raise ValueError("an output does not say how it ended and which of its tokens are kept")
    return Sample(
        text=generated.text,
        finish_reason=finish.type,
        token_ids=tuple(generated.output_ids),
        kept=meta.kept_tokens,
        rest=meta.rest,
        matched=finish.matched,
        logprobs=tuple(_scores(meta)) if logprobs else None,
    )


def _scores(meta: wire.Meta) -> Iterator[TokenScore]:
    tops, forced = meta.output_top_logprobs, set(meta.forced_at)
    for place, (logprob, token, text) in enumerate(meta.output_token_logprobs):
        top = (tops[place] if place < len(tops) else None) or []
        yield TokenScore(
            token_id=token,
            text=text or "",
            logprob=_known(logprob),
            top=tuple((other, name or "", _known(value)) for value, other, name in top),
            forced=place in forced,
        )


def _usage(meta: wire.Meta, *, generated: int = 0, forced: int = 0, wall_s: float = 0.0) -> Usage:
    prompt = meta.prompt_tokens - meta.healed_tokens
    return Usage(
        prompt=prompt,
        cached=meta.cached_tokens,
        computed=prompt - meta.cached_tokens,
        generated=generated,
        forced=forced,
        wall_s=wall_s,
        queue_s=None if meta.timings is None else meta.timings.queued_s,
        first_token_s=None if meta.timings is None else meta.timings.first_token_s,
    )


def _by_token(entries: Sequence[wire.Entry] | None) -> dict[int, float]:
    return {token: _known(logprob) for logprob, token, _ in entries or ()}


def _known(logprob: float | None) -> float:
    return _IMPOSSIBLE if logprob is None else logprob
