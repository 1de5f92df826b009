"""What ``/v1/responses`` answers."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from radixserve.messages import Timings
from radixserve.server.errors import ErrorDetail
from radixserve.server.openai import answers


class OutputText(msgspec.Struct, kw_only=True, tag_field="type", tag="output_text"):
    """A message's text. ``annotations`` is always empty; ``logprobs`` has one entry a token where they were asked for."""

    text: str
    annotations: list[Any] = []
    logprobs: list[answers.TokenLogprobEntry] = []


class ReasoningText(msgspec.Struct, kw_only=True, tag_field="type", tag="reasoning_text"):
    """Reasoning as the model wrote it."""

    text: str


class OutputMessage(msgspec.Struct, kw_only=True, tag_field="type", tag="message"):
    """Text for the user."""

    id: str
    status: str
    content: list[OutputText]
    role: str = "assistant"


class OutputCall(msgspec.Struct, kw_only=True, tag_field="type", tag="function_call"):
    """A call of one of the request's functions; ``call_id`` is what its output must name."""

    id: str
    status: str
    call_id: str
    name: str
    arguments: str


class OutputReasoning(msgspec.Struct, kw_only=True, tag_field="type", tag="reasoning"):
    """What the model wrote before its answer; ``summary`` is always empty."""

    id: str
    status: str
    content: list[ReasoningText]
    summary: list[Any] = []


OutputItem = OutputMessage | OutputCall | OutputReasoning


class InputTokensDetails(msgspec.Struct, kw_only=True):
    """``cached_tokens``: did not have to be computed; ``cache_write_tokens``: were computed, and are in the cache now."""

    cached_tokens: int
    cache_write_tokens: int


class OutputTokensDetails(msgspec.Struct, kw_only=True):
    """``reasoning_tokens``: inside the model's reasoning."""

    reasoning_tokens: int


class ResponseUsage(msgspec.Struct, kw_only=True):
    """Token counts. ``reused_output_tokens``: as in `answers.Usage`."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int
    reused_output_tokens: int


class IncompleteDetails(msgspec.Struct, kw_only=True):
    """Why the answer ends early."""

    reason: str


class ResponseError(msgspec.Struct, kw_only=True):
    """Why there is no answer."""

    code: str
    message: str


class ResponseReasoning(msgspec.Struct, kw_only=True):
    """What was asked of the reasoning."""

    effort: str | None
    summary: str | None


class ResponseText(msgspec.Struct, kw_only=True):
    """What was asked of the text."""

    format: dict[str, Any]
    verbosity: str = "medium"


class ResponseObject(msgspec.Struct, kw_only=True):
    """A response.

    ``status``: ``in_progress`` while it streams, then ``completed``, ``incomplete`` (cut by its limit), ``cancelled``
    (aborted) or ``failed``. ``usage``, ``timings`` and ``cache`` are there when it has ended, ``matched_stop`` where a stop
    string or token of the request ended it.
    """

    id: str
    object: str = "response"
    created_at: int
    status: str
    model: str
    output: list[OutputItem]
    instructions: str | None
    previous_response_id: str | None
    max_output_tokens: int | None
    temperature: float
    top_p: float
    top_logprobs: int
    text: ResponseText
    reasoning: ResponseReasoning
    tools: list[dict[str, Any]]
    tool_choice: str | dict[str, Any]
    parallel_tool_calls: bool
    store: bool
    metadata: dict[str, str]
    user: str | None
    safety_identifier: str | None
    prompt_cache_key: str | None
    completed_at: int | None = None
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    usage: ResponseUsage | None = None
    truncation: str = "disabled"
    background: bool = False
    max_tool_calls: int | None = None
    service_tier: str | None = None
    matched_stop: str | int | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET
    cache: answers.CacheReport | UnsetType = UNSET


class ResponseEvent(msgspec.Struct, kw_only=True):
    """An event of a stream; which of the fields it has follows from its ``type``.

    ``output_index`` and ``content_index`` are places in the response's ``output`` and in the item's ``content``.
    """

    type: str
    sequence_number: int
    response: ResponseObject | UnsetType = UNSET
    output_index: int | UnsetType = UNSET
    item_id: str | UnsetType = UNSET
    content_index: int | UnsetType = UNSET
    item: OutputItem | UnsetType = UNSET
    part: OutputText | ReasoningText | UnsetType = UNSET
    delta: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    logprobs: list[answers.TokenLogprobEntry] | UnsetType = UNSET
    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    code: str | UnsetType | None = UNSET
    message: str | UnsetType = UNSET
    param: str | UnsetType | None = UNSET
    error: ErrorDetail | UnsetType = UNSET


class DeletedResponse(msgspec.Struct, kw_only=True):
    """A response that is forgotten."""

    id: str
    object: str = "response"
    deleted: bool = True


class ItemList(msgspec.Struct, kw_only=True):
    """Items, and whether there are more behind ``last_id``."""

    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: str = "list"
