"""SGLang's ``sampling_params`` to `SamplingParams`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import msgspec

from radixserve.constraints import Constraint
from radixserve.engine.intake import Limits
from radixserve.errors import InvalidRequest, UnsupportedFeature
from radixserve.grammar.stop_patterns import StopPatterns
from radixserve.messages import SamplingParams
from radixserve.server.openai.constraints import constraint_of
from radixserve.server.openai.fields import ConstraintFields
from radixserve.server.openai.sampling import token_id

DEFAULT_MAX_NEW_TOKENS = 128

# SGLang's name -> the engine's, with the same meaning.
_NAMES = {
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "repetition_penalty": "repetition_penalty",
    "n": "n",
    "ignore_eos": "ignore_eos",
    "skip_special_tokens": "skip_special_tokens",
    "no_stop_trim": "include_stop",
    "sampling_seed": "seed",
    "finish_json": "finish_json",
}
_PLACES = {engine: name for name, engine in _NAMES.items()}
_CONSTRAINTS = ("json_schema", "regex", "ebnf", "structural_tag")
# The engine's name -> the field beside ``sampling_params`` that sets it.
_LOGPROBS = {
    "logprobs": "top_logprobs_num",
    "prompt_logprobs": "top_logprobs_num",
    "logprob_start": "logprob_start_len",
    "logprob_token_ids": "token_ids_logprob",
}


class GenerateSampling(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """SGLang's fields, and ``finish_json`` of ours. ``stop_regex``: the output ends after the first match of one of them."""

    max_new_tokens: int | None = None
    min_new_tokens: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    stop_regex: str | list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    n: int | None = None
    json_schema: dict[str, Any] | str | None = None
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: dict[str, Any] | str | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    no_stop_trim: bool | None = None
    logit_bias: dict[str, float] | None = None
    sampling_seed: int | None = None
    custom_params: dict[str, Any] | None = None
    finish_json: bool | None = None
    stream_interval: int | None = None


def sampling_of(
    fields: GenerateSampling, place: str, defaults: SamplingParams, limits: Limits, **logprobs: Any
) -> SamplingParams:
    """The parameters that ``fields`` ask for, on the model's own ``defaults``; ``logprobs`` are the engine's fields.

    Raises `InvalidRequest` naming the field in ``place``.
    """
    try:
        _refuse_undone(fields)
        values = _values(fields, defaults)
    except InvalidRequest as error:
        error.param = f"{place}.{error.param}"
        raise
    with named_as_sent(fields, place):
        sampling = limits.check_sampling(msgspec.structs.replace(defaults, **values, **logprobs))
        # The engine would refuse the same, but not by this request's name.
        StopPatterns(sampling.stop_regex)
    return sampling


@contextlib.contextmanager
def named_as_sent(fields: GenerateSampling, place: str) -> Iterator[None]:
    """Refusals under the engine's names go on under those of ``fields``, which stand in ``place``."""
    try:
        yield
    except InvalidRequest as error:
        if error.param is not None:
            head, dot, rest = error.param.partition(".")
            if head == "constraint":
                head = next((name for name in _CONSTRAINTS if getattr(fields, name) is not None), head)
            if head in _LOGPROBS:
                error.param = _LOGPROBS[head]
            elif head in _PLACES or hasattr(fields, head):
                error.param = f"{place}.{_PLACES.get(head, head)}{dot}{rest}"
        raise


def _values(fields: GenerateSampling, defaults: SamplingParams) -> dict[str, Any]:
    limit = DEFAULT_MAX_NEW_TOKENS if defaults.max_tokens is None else defaults.max_tokens
    values: dict[str, Any] = {"max_tokens": limit}
    values |= {engine: value for name, engine in _NAMES.items() if (value := getattr(fields, name)) is not None}
    for name in ("stop", "stop_token_ids", "stop_regex"):
        given = getattr(fields, name)
        if given is not None:
            values[name] = (given,) if isinstance(given, str) else tuple(given)
    if fields.logit_bias is not None:
        values["logit_bias"] = {token_id(token): bias for token, bias in fields.logit_bias.items()}
    constraint = _constraint(fields)
    if constraint is not None:
        values["constraint"] = constraint
    return values


def _refuse_undone(fields: GenerateSampling) -> None:
    if fields.spaces_between_special_tokens is False:
        raise UnsupportedFeature(
            "spaces_between_special_tokens", "a text is exactly the bytes of its tokens, nothing is taken out of it"
        )
    if fields.custom_params is not None:
        raise UnsupportedFeature("custom_params", "there are no custom logit processors that would read them")
    if fields.stream_interval not in (None, 1):
        raise UnsupportedFeature("stream_interval", "every event is sent when it is there; only 1 is taken")


def _constraint(fields: GenerateSampling) -> Constraint | None:
    tag = fields.structural_tag
    try:
        return constraint_of(
            ConstraintFields(
                regex=fields.regex,
                ebnf=fields.ebnf,
                json_schema=fields.json_schema,
                structured_outputs=None if tag is None else {"structural_tag": tag},
            )
        )
    except InvalidRequest as error:
        if error.param is not None:
            error.param = error.param.replace("structured_outputs.structural_tag", "structural_tag")
            error.param = error.param.replace("structured_outputs", "structural_tag")
        raise
