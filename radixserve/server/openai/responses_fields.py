"""What ``POST /v1/responses`` takes."""

from __future__ import annotations

from typing import Any

import msgspec

from radixserve.constraints import Constraint
from radixserve.errors import InvalidRequest, UnsupportedFeature
from radixserve.server.openai.chat_fields import effort_options
from radixserve.server.openai.constraints import constraint_field, parse_format, parse_named_schema
from radixserve.server.openai.fields import InertFields, StreamOptions

LOGPROBS = "message.output_text.logprobs"
# Asks for a sealed copy of the reasoning to send back later. It stands in the answer in plain text, and is taken back as
# such, so there is nothing to add.
ENCRYPTED_REASONING = "reasoning.encrypted_content"

_MAX_METADATA = 16
_MAX_METADATA_KEY = 64
_MAX_METADATA_VALUE = 512


class TextConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What the text must look like. ``format`` is OpenAI's flat shape, or one of the further types of chat completions."""

    format: dict[str, Any] | None = None
    verbosity: str | None = None


class ReasoningConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How to reason; ``generate_summary`` is the old name of ``summary``."""

    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None


class ResponsesRequest(InertFields, kw_only=True, forbid_unknown_fields=True):
    """OpenAI's fields and the extras of chat completions.

    ``store`` is on unless set to false; ``metadata``, ``user``, ``safety_identifier`` and ``prompt_cache_key`` are shown in
    the answer again.
    """

    input: str | list[Any] | None = None
    model: str | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    max_output_tokens: int | None = None
    top_logprobs: int | None = None
    include: list[str] | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    tools: list[Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    stop_content_only: bool | None = None
    truncation: str | None = None
    background: bool | None = None
    max_tool_calls: int | None = None
    conversation: str | dict[str, Any] | None = None
    prompt: dict[str, Any] | None = None

    @property
    def wants_logprobs(self) -> bool:
        """Whether the text's tokens are shown with their log-probabilities."""
        return LOGPROBS in (self.include or ())


def check_known(fields: ResponsesRequest) -> None:
    """Raise `UnsupportedFeature` for fields that are known and not done, unless they ask for what is done anyway."""
    for name, what in (
        ("conversation", "conversations are not kept; previous_response_id continues a response"),
        ("prompt", "there are no stored prompt templates"),
        ("max_tool_calls", "it counts calls of built-in tools, and there are none"),
        ("response_format", "is called text.format here"),
        ("prompt_logprobs", "are not part of a response; chat completions and completions have them"),
    ):
        if getattr(fields, name) is not None:
            raise UnsupportedFeature(name, what)
    if fields.background:
        raise UnsupportedFeature("background", "responses are made while the client waits")
    if fields.truncation == "auto":
        raise UnsupportedFeature("truncation", "input that is too long is refused, never shortened")
    if fields.truncation not in (None, "disabled"):
        raise InvalidRequest("truncation", f"must be disabled, not {fields.truncation[:50]!r}")
    if fields.n not in (None, 1):
        raise UnsupportedFeature("n", "a response is one sample")
    if fields.stream_options is not None and not fields.stream:
        raise InvalidRequest("stream_options", "may be given only with stream: true")
    _check_include(fields)
    _check_text_and_reasoning(fields)
    _check_metadata(fields.metadata)


def text_constraint(fields: ResponsesRequest) -> Constraint | None:
    """What ``text.format`` asks for, None where anything may come. Raises `InvalidRequest`."""
    given = fields.text.format if fields.text is not None else None
    if given is None:
        return None
    if given.get("type") == "json_schema":
        return parse_named_schema({key: value for key, value in given.items() if key != "type"}, "text.format")
    return parse_format(given, "text.format")


def response_constraint(fields: ResponsesRequest) -> str:
    """The name of the field that says what the answer must look like; of several that say the same, the first."""
    if fields.text is not None and fields.text.format is not None:
        return "text.format"
    return constraint_field(fields)


def template_options(fields: ResponsesRequest, source: str) -> dict[str, Any] | None:
    """``chat_template_kwargs`` and what ``reasoning.effort`` means to a template with that ``source``."""
    effort = fields.reasoning.effort if fields.reasoning is not None else None
    options = {**effort_options(effort, "reasoning.effort", source), **(fields.chat_template_kwargs or {})}
    return options or None


def _check_include(fields: ResponsesRequest) -> None:
    for index, value in enumerate(fields.include or ()):
        if value not in (LOGPROBS, ENCRYPTED_REASONING):
            raise UnsupportedFeature(
                f"include[{index}]", f"{value[:100]!r} is in no answer of this server; {LOGPROBS!r} can be"
            )
    if fields.top_logprobs and not fields.wants_logprobs:
        raise InvalidRequest("top_logprobs", f"may be given only with include: [{LOGPROBS!r}]")


def _check_text_and_reasoning(fields: ResponsesRequest) -> None:
    if fields.text is not None and fields.text.verbosity not in (None, "medium"):
        raise UnsupportedFeature("text.verbosity", "models here know no verbosity but the usual one, medium")
    if fields.reasoning is not None:
        for name in ("summary", "generate_summary"):
            # With "auto" a model gives the kind of summary that it can, and there is none.
            if getattr(fields.reasoning, name) not in (None, "auto"):
                raise UnsupportedFeature(
                    f"reasoning.{name}", "reasoning is given as it is and not summed up; only auto, which allows that"
                )


def _check_metadata(metadata: dict[str, str] | None) -> None:
    if metadata is None:
        return
    if len(metadata) > _MAX_METADATA:
        raise InvalidRequest("metadata", f"{len(metadata)} entries, at most {_MAX_METADATA} are kept")
    for key, value in metadata.items():
        if len(key) > _MAX_METADATA_KEY:
            raise InvalidRequest("metadata", f"a key has {len(key)} characters, at most {_MAX_METADATA_KEY} are kept")
        if len(value) > _MAX_METADATA_VALUE:
            raise InvalidRequest(
                f"metadata.{key}", f"has {len(value)} characters, at most {_MAX_METADATA_VALUE} are kept"
            )
