"""What ``POST /v1/chat/completions`` answers."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from radixserve.chat.events import ContentDelta, Event, ReasoningDelta, ToolCall
from radixserve.messages import Timings
from radixserve.server.openai import answers


class CalledFunction(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A call's function; in a stream the name comes once and the arguments in pieces."""

    name: str | None = None
    arguments: str | UnsetType = UNSET


class CallEntry(msgspec.Struct, kw_only=True):
    """A tool call of a message."""

    id: str
    function: CalledFunction
    type: str = "function"


class CallDelta(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A piece of call number ``index``; ``id``, ``type`` and the name come with the first."""

    index: int
    id: str | None = None
    type: str | None = None
    function: CalledFunction


class ChatMessage(msgspec.Struct, kw_only=True):
    """The model's answer. ``content`` is null where there are only calls."""

    role: str = "assistant"
    content: str | None = None
    refusal: str | None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[CallEntry] | UnsetType = UNSET


class Delta(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A piece of the answer. Content and calls never share one."""

    role: str | None = None
    content: str | UnsetType | None = UNSET
    reasoning_content: str | None = None
    tool_calls: list[CallDelta] | None = None


class ChatLogprobs(msgspec.Struct, kw_only=True):
    """One entry a token."""

    content: list[answers.TokenLogprobEntry]
    refusal: None = None


class ChatChoice(msgspec.Struct, kw_only=True):
    """One sample."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    matched_stop: str | int | None = None


class ChunkChoice(msgspec.Struct, kw_only=True):
    """A piece of one sample."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    matched_stop: str | int | UnsetType = UNSET


class ChatCompletion(msgspec.Struct, kw_only=True):
    """The answer."""

    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: answers.Usage
    object: str = "chat.completion"
    system_fingerprint: str | None = None
    service_tier: str | None = None
    prompt_logprobs: answers.PromptLogprobs | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET
    cache: answers.CacheReport | list[answers.CacheReport] | UnsetType = UNSET


class ChatChunk(msgspec.Struct, kw_only=True):
    """An event of a stream."""

    id: str
    created: int
    model: str
    choices: list[ChunkChoice]
    object: str = "chat.completion.chunk"
    system_fingerprint: str | None = None
    usage: answers.Usage | UnsetType | None = UNSET
    prompt_logprobs: answers.PromptLogprobs | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET
    cache: answers.CacheReport | list[answers.CacheReport] | UnsetType = UNSET


def call_entries(calls: Sequence[ToolCall]) -> list[CallEntry] | UnsetType:
    """A message's calls; a message without any has no such field."""
    entries = [
        CallEntry(id=call.id, function=CalledFunction(name=call.name, arguments=call.arguments)) for call in calls
    ]
    return entries or UNSET


def delta_of(event: Event) -> Delta:
    """The delta for one event."""
    if isinstance(event, ContentDelta):
        return Delta(content=event.text)
    if isinstance(event, ReasoningDelta):
        return Delta(reasoning_content=event.text)
    first = event.id is not None
    function = CalledFunction(name=event.name, arguments=event.arguments)
    call = CallDelta(index=event.index, id=event.id, type="function" if first else None, function=function)
    return Delta(tool_calls=[call])
