"""Pieces of OpenAI's answers that several endpoints share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from radixserve.messages import Explanation, FinishReason, GenerationOutput, TokenLogprob
from radixserve.model.tokenizer import Tokenizer


class PromptTokensDetails(msgspec.Struct, kw_only=True):
    """``cached_tokens``: prompt tokens that did not have to be computed."""

    cached_tokens: int = 0


class CompletionTokensDetails(msgspec.Struct, kw_only=True):
    """``reasoning_tokens``: output tokens inside the model's reasoning block."""

    reasoning_tokens: int = 0


class Usage(msgspec.Struct, kw_only=True):
    """Token counts of a request, over all its prompts and samples.

    ``reused_output_tokens``: tokens of earlier answers in the prompt that were taken as they were generated instead of
    being tokenized again.
    """

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails
    reused_output_tokens: int = 0


class TopLogprob(msgspec.Struct, kw_only=True):
    """One of the most likely tokens at a place."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprobEntry(msgspec.Struct, kw_only=True):
    """An output token with its log-probability. ``forced``: it was the only one that the constraint left."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]
    forced: bool | UnsetType = UNSET


class PromptLogprob(msgspec.Struct, kw_only=True):
    """A token at a place of the prompt, as vLLM spells it."""

    logprob: float
    rank: int | None
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]


def usage(outputs: Iterable[GenerationOutput], *, reused: int = 0, reasoning: int = 0) -> Usage:
    """The counts of a finished request."""
    prompt = completion = cached = 0
    for output in outputs:
        prompt += output.prompt_tokens
        completion += output.completion_tokens
        cached += output.cached_tokens
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=cached),
        completion_tokens_details=CompletionTokensDetails(reasoning_tokens=reasoning),
        reused_output_tokens=reused,
    )


def logprob_entries(tokenizer: Tokenizer, logprobs: Sequence[TokenLogprob]) -> list[TokenLogprobEntry]:
    """Chat's ``logprobs.content``."""
    return [
        TokenLogprobEntry(
            token=tokenizer.token_text(entry.token_id),
            logprob=entry.logprob,
            bytes=list(tokenizer.token_bytes(entry.token_id)),
            top_logprobs=[
                TopLogprob(token=tokenizer.token_text(token), logprob=logprob, bytes=list(tokenizer.token_bytes(token)))
                for token, logprob in entry.top
            ],
            forced=True if getattr(entry, "forced", False) else UNSET,
        )
        for entry in logprobs
    ]


def prompt_logprobs(tokenizer: Tokenizer, entries: Sequence[TokenLogprob | None] | None) -> PromptLogprobs | None:
    """VLLM's ``prompt_logprobs``: for each prompt token the most likely tokens at its place, and itself."""
    if entries is None:
        return None
    shown: PromptLogprobs = []
    for entry in entries:
        if entry is None:
            shown.append(None)
            continue
        place = {
            str(token): PromptLogprob(logprob=logprob, rank=rank, decoded_token=tokenizer.token_text(token))
            for rank, (token, logprob) in enumerate(entry.top, 1)
        }
        place.setdefault(
            str(entry.token_id),
            PromptLogprob(logprob=entry.logprob, rank=entry.rank, decoded_token=tokenizer.token_text(entry.token_id)),
        )
        shown.append(place)
    return shown


def finish_reason(reason: FinishReason | None) -> str | None:
    """As OpenAI spells it; an aborted request says ``abort``."""
    return None if reason is None else str(reason)


class CacheReport(msgspec.Struct, kw_only=True):
    """Why a prompt hit no more of the cache, as `radixserve.messages.Explanation` has it."""

    reason: str
    position: int
    cached_tokens: int
    prompt_tokens: int
    detail: str
    text: str | None
    held_tokens: int


def cache_report(explanation: Explanation) -> CacheReport:
    """For the wire."""
    return CacheReport(
        reason=explanation.reason,
        position=explanation.position,
        cached_tokens=explanation.cached_tokens,
        prompt_tokens=explanation.prompt_tokens,
        detail=explanation.detail,
        text=explanation.text,
        held_tokens=explanation.held_tokens,
    )


def extras(outputs: Sequence[GenerationOutput]) -> Mapping[str, Any]:
    """Fields of ours beside OpenAI's: ``timings``, and ``cache`` where it was asked for; of the first prompt."""
    found: dict[str, Any] = {"timings": outputs[0].timings}
    reports = [cache_report(output.explanation) for output in outputs if output.explanation is not None]
    if reports:
        found["cache"] = reports[0] if len(outputs) == 1 else reports
    return found
