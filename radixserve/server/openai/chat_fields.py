"""What ``POST /v1/chat/completions`` takes."""

from __future__ import annotations

from typing import Any

from radixserve.errors import InvalidRequest, UnsupportedFeature
from radixserve.server.openai.fields import InertFields, StreamOptions


class ChatRequest(InertFields, kw_only=True, forbid_unknown_fields=True):
    """OpenAI's fields and the usual extras.

    ``max_completion_tokens`` and ``max_tokens`` are two names of one limit. ``stop_content_only``: look for stop strings in the answer
    only and not in its reasoning (unless given, where the model reasons). ``chat_template_kwargs``: variables for the
    model's template.
    """

    messages: list[Any]
    model: str | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    tools: list[Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    functions: list[Any] | None = None
    function_call: str | dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    stop_content_only: bool | None = None
    reasoning_effort: str | None = None
    verbosity: str | None = None
    modalities: list[str] | None = None
    audio: dict[str, Any] | None = None
    prediction: dict[str, Any] | None = None
    web_search_options: dict[str, Any] | None = None
    chat_template: str | None = None


def check_known(fields: ChatRequest) -> None:
    """Raise `UnsupportedFeature` for fields that are known and not done, unless they ask for what is done anyway."""
    if fields.modalities is not None and fields.modalities != ["text"]:
        raise UnsupportedFeature("modalities", 'only ["text"] is done')
    if fields.verbosity not in (None, "medium"):
        raise UnsupportedFeature("verbosity", "models here know no verbosity but the usual one, medium")
    for name, what in (
        ("audio", "answers are text"),
        ("prediction", "predicted outputs are not done"),
        ("web_search_options", "there is no web search"),
        ("chat_template", "the model's own template is used"),
    ):
        if getattr(fields, name) is not None:
            raise UnsupportedFeature(name, what)
    if fields.top_logprobs is not None and not fields.logprobs:
        raise InvalidRequest("top_logprobs", "may be given only with logprobs: true")
    if fields.stream_options is not None and not fields.stream:
        raise InvalidRequest("stream_options", "may be given only with stream: true")


def output_limit(fields: ChatRequest) -> int | None:
    """The limit under whichever of its names; None where neither is given."""
    new, old = fields.max_completion_tokens, fields.max_tokens
    if new is not None and old is not None and new != old:
        raise InvalidRequest("max_tokens", f"is {old}, but max_completion_tokens, its newer name, is {new}")
    return old if new is None else new


def template_options(fields: ChatRequest, source: str) -> dict[str, Any] | None:
    """``chat_template_kwargs`` and what ``reasoning_effort`` means to a template with that ``source``."""
    options = {
        **effort_options(fields.reasoning_effort, "reasoning_effort", source),
        **(fields.chat_template_kwargs or {}),
    }
    return options or None


def effort_options(effort: str | None, param: str, source: str) -> dict[str, Any]:
    """What an effort of reasoning, given as ``param``, means to a template with that ``source``.

    Raises `UnsupportedFeature` where the template knows none.
    """
    if effort is None:
        return {}
    if effort == "none" and "enable_thinking" in source:
        return {"enable_thinking": False}
    if "reasoning_effort" in source:
        return {"reasoning_effort": effort}
    raise UnsupportedFeature(param, "the model's chat template knows no such setting")
