"""Fields that several endpoints take, in OpenAI's spelling and the usual extras of vLLM and SGLang.

Every field is done, or refused by `radixserve.server.openai.sampling`, or inert (it concerns OpenAI's own service and
nothing that a model writes): which is which stands in docs/server.md.
"""

from __future__ import annotations

from typing import Any

import msgspec


class ConstraintFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What the output must look like. Several of these may be given only if they ask for the same.

    ``guided_decoding_backend`` is inert: there is one, and nothing that it does not enforce is accepted.
    """

    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: dict[str, Any] | bool | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    guided_decoding_backend: str | None = None
    regex: str | None = None
    ebnf: str | None = None
    json_schema: dict[str, Any] | str | None = None
    finish_json: bool | None = None


class SamplingFields(ConstraintFields, kw_only=True, forbid_unknown_fields=True):
    """How to draw tokens, and where the request belongs."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    n: int | None = None
    stop: str | list[str | int] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    skip_special_tokens: bool | None = None
    prompt_logprobs: int | None = None
    priority: int | None = None
    cache_salt: str | None = None
    explain_cache: bool | None = None
    request_id: str | None = None


class StreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What a stream carries besides the output. ``include_obfuscation`` is inert."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class InertFields(SamplingFields, kw_only=True, forbid_unknown_fields=True):
    """Fields of OpenAI's own service, accepted and without effect here."""

    user: str | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
