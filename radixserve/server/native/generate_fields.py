"""The body of ``POST /generate``, and its prompts one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from radixserve.errors import InvalidRequest, UnsupportedFeature
from radixserve.messages import SamplingParams
from radixserve.server.native.sampling import GenerateSampling, named_as_sent, sampling_of
from radixserve.server.openai.prompts import MAX_PROMPTS, parse_prompts
from radixserve.server.service import Service

MAX_RID_LENGTH = 256

_UNDONE = {
    "input_embeds": "prompts are texts or token ids",
    "image_data": "prompts are texts or token ids",
    "video_data": "prompts are texts or token ids",
    "audio_data": "prompts are texts or token ids",
    "modalities": "prompts are texts or token ids",
    "lora_path": "adapters are not served",
    "lora_id": "adapters are not served",
    "session_params": "send the whole prompt: what is in the cache is not computed again",
    "custom_logit_processor": "programs of clients are not run",
    "return_hidden_states": "see /v1/embeddings for pooled hidden states",
    "background": "a request ends with its connection",
    "bootstrap_host": "prefill and decode are not parted",
    "bootstrap_port": "prefill and decode are not parted",
    "bootstrap_room": "prefill and decode are not parted",
    "data_parallel_rank": "there is one engine",
}


class GenerateRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """SGLang's fields, and ``cache_salt``, ``explain_cache`` and ``heal`` of ours.

    A prompt is in ``text`` or ``input_ids``; a list of them is a batch, and then ``sampling_params``, ``rid`` and the fields of
    logprobs may be lists too, one entry a prompt. ``logprob_start_len``: prompt logprobs from this position on, -1 for none
    (the default where anything is generated). ``heal``: the last tokens of a prompt may be replaced by others that begin with their
    text; ``output_ids`` begin with the replacements then, and ``text`` leaves that text out. ``log_metrics`` is inert.
    """

    text: str | list[str] | None = None
    input_ids: list[Any] | None = None
    sampling_params: GenerateSampling | list[GenerateSampling] | None = None
    rid: str | list[str] | None = None
    return_logprob: bool | list[bool] | None = None
    logprob_start_len: int | list[int] | None = None
    top_logprobs_num: int | list[int] | None = None
    token_ids_logprob: list[Any] | None = None
    return_text_in_logprobs: bool | None = None
    stream: bool | None = None
    priority: int | None = None
    cache_salt: str | None = None
    explain_cache: bool | None = None
    heal: bool | None = None
    log_metrics: bool | None = None
    input_embeds: Any = None
    image_data: Any = None
    video_data: Any = None
    audio_data: Any = None
    modalities: Any = None
    lora_path: Any = None
    lora_id: Any = None
    session_params: Any = None
    custom_logit_processor: Any = None
    return_hidden_states: Any = None
    background: Any = None
    bootstrap_host: Any = None
    bootstrap_port: Any = None
    bootstrap_room: Any = None
    data_parallel_rank: Any = None


@dataclass(frozen=True, slots=True)
class Part:
    """One prompt of a request; ``fields`` and their ``place`` are what ``sampling`` was made of.

    ``logprob_start``: the first position whose logprob is shown; past the end for none.
    """

    token_ids: list[int]
    sampling: SamplingParams
    fields: GenerateSampling
    place: str
    wants_logprobs: bool
    logprob_start: int


def parts_of(fields: GenerateRequest, service: Service) -> tuple[list[Part], bool]:
    """The prompts of a request, and whether they are a batch. Raises `InvalidRequest` naming the field."""
    for name, why in _UNDONE.items():
        # False is how some clients spell out that they do not ask for it.
        if getattr(fields, name) not in (None, False):
            raise UnsupportedFeature(name, f"is not done here; {why}")
    prompts, batch = _prompts(fields)
    count = len(prompts)
    _check_rids(fields.rid, count if batch else None)
    sampling_params = _spread(
        "sampling_params",
        GenerateSampling() if fields.sampling_params is None else fields.sampling_params,
        count,
        batch,
    )
    wants = _spread("return_logprob", fields.return_logprob, count, batch)
    starts = _spread("logprob_start_len", fields.logprob_start_len, count, batch)
    tops = _spread("top_logprobs_num", fields.top_logprobs_num, count, batch)
    asked = _asked(fields.token_ids_logprob, count, batch)
    parts = []
    for index, (place, prompt) in enumerate(prompts):
        which = f"sampling_params[{index}]" if isinstance(fields.sampling_params, list) else "sampling_params"
        want = _LogprobWish(bool(wants[index]), starts[index], tops[index] or 0, asked[index])
        parts.append(_part(service, place, prompt, which, sampling_params[index], want))
    return parts, batch


@dataclass(frozen=True, slots=True)
class _LogprobWish:
    """What one prompt's fields of logprobs say."""

    wanted: bool
    start: int | None
    top: int
    asked: tuple[int, ...]

    def check(self) -> None:
        if self.start is not None and self.start < -1:
            raise InvalidRequest("logprob_start_len", f"must be at least -1, not {self.start}")
        if not self.wanted:
            for name, given in (
                ("top_logprobs_num", self.top != 0),
                ("token_ids_logprob", bool(self.asked)),
                ("logprob_start_len", self.start is not None and self.start >= 0),
            ):
                if given:
                    raise InvalidRequest(name, "needs return_logprob: true")


def _part(
    service: Service,
    place: str,
    prompt: str | list[int],
    which: str,
    fields: GenerateSampling,
    wish: _LogprobWish,
) -> Part:
    wish.check()
    begin = wish.start
    if begin is None:
        # Nothing is generated: whoever asks for logprobs can only mean those of the prompt.
        begin = 0 if fields.max_new_tokens == 0 else -1
    logprobs: dict[str, Any] = {}
    if wish.wanted:
        logprobs = {"logprobs": wish.top, "logprob_token_ids": wish.asked}
        if begin >= 0:
            logprobs |= {"prompt_logprobs": wish.top, "logprob_start": begin}
    sampling = sampling_of(fields, which, service.info.default_sampling, service.limits, **logprobs)
    with named_as_sent(fields, which):
        (parsed,) = parse_prompts(prompt, place, service, sampling)
    length = len(parsed.token_ids)
    if wish.wanted and begin >= length:
        raise InvalidRequest("logprob_start_len", f"{begin} is past the end of {place}, which has {length} tokens")
    return Part(
        token_ids=parsed.token_ids,
        sampling=sampling,
        fields=fields,
        place=which,
        wants_logprobs=wish.wanted,
        logprob_start=begin if wish.wanted and begin >= 0 else length,
    )


def _prompts(fields: GenerateRequest) -> tuple[list[tuple[str, str | list[int]]], bool]:
    """Every prompt with the name of its place, and whether they came as a list."""
    if (fields.text is None) == (fields.input_ids is None):
        raise InvalidRequest("text", "exactly one of text and input_ids must be given", "missing_required_parameter")
    if isinstance(fields.text, str):
        return [("text", fields.text)], False
    name = "text" if fields.text is not None else "input_ids"
    items: list[Any] = [*(fields.text or []), *(fields.input_ids or [])]
    if not items:
        raise InvalidRequest(name, "must not be empty", "empty_prompt")
    if name == "input_ids" and all(type(item) is int for item in items):
        return [(name, items)], False
    if len(items) > MAX_PROMPTS:
        raise InvalidRequest(name, f"holds {len(items)} prompts, at most {MAX_PROMPTS} are taken")
    prompts: list[tuple[str, str | list[int]]] = []
    for index, item in enumerate(items):
        place = f"{name}[{index}]"
        if name == "input_ids" and not (isinstance(item, list) and all(type(token) is int for token in item)):
            raise InvalidRequest(place, "must be a list of token ids", "invalid_type")
        prompts.append((place, item))
    return prompts, True


def _spread(name: str, value: Any, count: int, batch: bool) -> Sequence[Any]:
    """``value`` for each of ``count`` prompts."""
    if not isinstance(value, list):
        return [value] * count
    _check_list(name, value, count if batch else None)
    return value


def _asked(value: list[Any] | None, count: int, batch: bool) -> Sequence[tuple[int, ...]]:
    """``token_ids_logprob``: one list of ids for all prompts, or a list of such, or nulls, one a prompt."""
    if not value:
        return [()] * count
    if all(type(token) is int for token in value):
        return [tuple(value)] * count
    _check_list("token_ids_logprob", value, count if batch else None)
    for index, item in enumerate(value):
        if item is not None and not (isinstance(item, list) and all(type(token) is int for token in item)):
            raise InvalidRequest(f"token_ids_logprob[{index}]", "must be a list of token ids", "invalid_type")
    return [tuple(item or ()) for item in value]


def _check_rids(value: str | list[str] | None, count: int | None) -> None:
    given = [value] if isinstance(value, str) else value or []
    if isinstance(value, list):
        _check_list("rid", value, count)
        if len(set(value)) != len(value):
            raise InvalidRequest("rid", "holds a name twice")
    for rid in given:
        check_rid(rid)


def check_rid(rid: str) -> None:
    """Raise `InvalidRequest` for a name that is too long or empty."""
    if not 0 < len(rid) <= MAX_RID_LENGTH:
        raise InvalidRequest("rid", f"must have between 1 and {MAX_RID_LENGTH} characters")


def _check_list(name: str, value: Sequence[Any], count: int | None) -> None:
    if count is None:
        raise InvalidRequest(name, "may be a list only where the prompts are one", "invalid_type")
    if len(value) != count:
        raise InvalidRequest(name, f"has {len(value)} entries for {count} prompts")
