"""OpenAI's fields to `SamplingParams`."""

from __future__ import annotations

from typing import Any

import msgspec

from radixserve.errors import InvalidRequest
from radixserve.messages import SamplingParams
from radixserve.server.openai.constraints import constraint_of
from radixserve.server.openai.fields import SamplingFields

# Fields whose names and meanings are the engine's own.
_SAME = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "seed",
    "n",
    "ignore_eos",
    "min_tokens",
    "skip_special_tokens",
    "prompt_logprobs",
)


def sampling_of(fields: SamplingFields, defaults: SamplingParams, **more: Any) -> SamplingParams:
    """The parameters that ``fields`` ask for, on the model's own ``defaults``; ``more`` are set by the endpoint.

    Ranges are checked by `SamplingParams.validate`, under the same names. Raises `InvalidRequest`.
    """
    values: dict[str, Any] = {name: value for name in _SAME if (value := getattr(fields, name)) is not None}
    if fields.logit_bias is not None:
        values["logit_bias"] = {token_id(token): bias for token, bias in fields.logit_bias.items()}
    if fields.include_stop_str_in_output is not None:
        values["include_stop"] = fields.include_stop_str_in_output
    strings, ids = _stops(fields)
    if strings:
        values["stop"] = strings
    if ids:
        values["stop_token_ids"] = ids
    constraint = constraint_of(fields)
    if constraint is not None:
        values["constraint"] = constraint
    if fields.finish_json is not None:
        values["finish_json"] = fields.finish_json
    return msgspec.structs.replace(defaults, **values, **more)


def _stops(fields: SamplingFields) -> tuple[tuple[str, ...], tuple[int, ...]]:
    given = fields.stop or []
    entries = [given] if isinstance(given, str) else given
    strings = tuple(entry for entry in entries if isinstance(entry, str))
    ids = tuple(entry for entry in entries if isinstance(entry, int))
    return strings, (*ids, *(fields.stop_token_ids or ()))


def token_id(token: str) -> int:
    """The id that a key of ``logit_bias`` names. Raises `InvalidRequest` unless it is a plain number."""
    # ``int`` alone would also take "1_0" and " 1".
    if not (token.isascii() and token.isdecimal() and len(token) < 12):
        raise InvalidRequest("logit_bias", f"{token[:50]!r} is not a token id")
    return int(token)
