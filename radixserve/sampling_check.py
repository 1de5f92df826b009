"""What a request may ask for: the ranges of all sampling fields, and the limits of how much of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from radixserve.constraints import check_constraint
from radixserve.errors import InvalidRequest

if TYPE_CHECKING:
    from radixserve.messages import SamplingParams

MAX_LOGPROBS = 128
MAX_SAMPLES = 128
MAX_STOP_STRINGS = 64
MAX_STOP_LENGTH = 4096
MAX_STOP_TOKENS = 1024
MAX_STOP_PATTERNS = 4
MAX_STOP_PATTERN_LENGTH = 1024
MAX_LOGIT_BIAS = 65536
MAX_LOGPROB_TOKENS = 128


def check_sampling(params: SamplingParams, vocab_size: int) -> None:
    """Raise `InvalidRequest` naming the first field that is of the wrong type or out of range."""
    _integer("max_tokens", params.max_tokens, 0, optional=True)
    _integer("min_tokens", params.min_tokens, 0)
    if params.max_tokens is not None and params.min_tokens > params.max_tokens:
        raise InvalidRequest("min_tokens", f"{params.min_tokens} is more than max_tokens ({params.max_tokens})")
    _number("temperature", params.temperature, 0.0, 100.0)
    _number("top_p", params.top_p, 0.0, 1.0, open_low=True)
    _integer("top_k", params.top_k, -1)
    _number("min_p", params.min_p, 0.0, 1.0)
    _number("repetition_penalty", params.repetition_penalty, 0.0, 100.0, open_low=True)
    _number("frequency_penalty", params.frequency_penalty, -2.0, 2.0)
    _number("presence_penalty", params.presence_penalty, -2.0, 2.0)
    _integer("seed", params.seed, -(2**63), 2**64 - 1, optional=True)
    _integer("n", params.n, 1, MAX_SAMPLES)
    _integer("logprobs", params.logprobs, 0, min(MAX_LOGPROBS, vocab_size), optional=True)
    _integer("prompt_logprobs", params.prompt_logprobs, 0, min(MAX_LOGPROBS, vocab_size), optional=True)
    _integer("logprob_start", params.logprob_start, 0)
    for name in ("include_stop", "ignore_eos", "skip_special_tokens", "finish_json"):
        if not isinstance(getattr(params, name), bool):
            raise InvalidRequest(name, "must be true or false", "invalid_type")
    if params.logprobs_mode not in ("raw", "processed"):
        raise InvalidRequest("logprobs_mode", f"must be 'raw' or 'processed', not {params.logprobs_mode!r}")
    _check_stops(params, vocab_size)
    _check_bias(params, vocab_size)
    if params.constraint is not None:
        check_constraint(params.constraint)
    elif params.finish_json:
        raise InvalidRequest("finish_json", "needs a constraint")
    _check_logprob_tokens(params, vocab_size)
    _check_patterns(params)


def _check_logprob_tokens(params: SamplingParams, vocab_size: int) -> None:
    if not isinstance(params.logprob_token_ids, (tuple, list)):
        raise InvalidRequest("logprob_token_ids", "must be a sequence of token ids", "invalid_type")
    if len(params.logprob_token_ids) > MAX_LOGPROB_TOKENS:
        raise InvalidRequest("logprob_token_ids", f"at most {MAX_LOGPROB_TOKENS} ids are taken")
    for token in params.logprob_token_ids:
        _integer("logprob_token_ids", token, 0, vocab_size - 1)
    if params.logprob_token_ids and params.logprobs is None and params.prompt_logprobs is None:
        raise InvalidRequest("logprob_token_ids", "needs logprobs or prompt_logprobs")


def _check_patterns(params: SamplingParams) -> None:
    if not isinstance(params.stop_regex, (tuple, list)):
        raise InvalidRequest("stop_regex", "must be a sequence of patterns", "invalid_type")
    for pattern in params.stop_regex:
        if not isinstance(pattern, str):
            raise InvalidRequest("stop_regex", "must be a sequence of patterns", "invalid_type")
    if len(params.stop_regex) > MAX_STOP_PATTERNS:
        raise InvalidRequest("stop_regex", f"{len(params.stop_regex)} patterns, at most {MAX_STOP_PATTERNS} are taken")
    longest = max(map(len, params.stop_regex), default=0)
    if longest > MAX_STOP_PATTERN_LENGTH:
        raise InvalidRequest(
            "stop_regex", f"a pattern has {longest} characters, at most {MAX_STOP_PATTERN_LENGTH} are taken"
        )


def _check_stops(params: SamplingParams, vocab_size: int) -> None:
    if not isinstance(params.stop, (tuple, list)):
        raise InvalidRequest("stop", "must be a sequence of strings", "invalid_type")
    if len(params.stop) > MAX_STOP_STRINGS:
        raise InvalidRequest("stop", f"{len(params.stop)} stop strings, at most {MAX_STOP_STRINGS} are taken")
    for text in params.stop:
        if not isinstance(text, str):
            raise InvalidRequest("stop", "must be a sequence of strings", "invalid_type")
        if not text:
            raise InvalidRequest("stop", "a stop string must not be empty")
        if len(text) > MAX_STOP_LENGTH:
            raise InvalidRequest(
                "stop", f"a stop string has {len(text)} characters, at most {MAX_STOP_LENGTH} are taken"
            )
    if not isinstance(params.stop_token_ids, (tuple, list)):
        raise InvalidRequest("stop_token_ids", "must be a sequence of token ids", "invalid_type")
    if len(params.stop_token_ids) > MAX_STOP_TOKENS:
        raise InvalidRequest("stop_token_ids", f"at most {MAX_STOP_TOKENS} ids are taken")
    for token in params.stop_token_ids:
        _integer("stop_token_ids", token, 0, vocab_size - 1)


def _check_bias(params: SamplingParams, vocab_size: int) -> None:
    if not isinstance(params.logit_bias, dict):
        raise InvalidRequest("logit_bias", "must map token ids to numbers", "invalid_type")
    if len(params.logit_bias) > MAX_LOGIT_BIAS:
        raise InvalidRequest("logit_bias", f"at most {MAX_LOGIT_BIAS} entries are taken")
    for token, bias in params.logit_bias.items():
        _integer("logit_bias", token, 0, vocab_size - 1)
        _number("logit_bias", bias, -1e4, 1e4)


def _integer(name: str, value: Any, low: int, high: int | None = None, *, optional: bool = False) -> None:
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest(name, f"must be an integer, not {value!r}", "invalid_type")
    if value < low or (high is not None and value > high):
        bound = f"at least {low}" if high is None else f"between {low} and {high}"
        raise InvalidRequest(name, f"must be {bound}, not {value}")


def _number(name: str, value: Any, low: float, high: float, *, open_low: bool = False) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidRequest(name, f"must be a number, not {value!r}", "invalid_type")
    # Comparisons with NaN are false, and with an integer of any size exact.
    if not low <= value <= high or (open_low and value == low):
        bound = f"above {low:g} and at most {high:g}" if open_low else f"between {low:g} and {high:g}"
        raise InvalidRequest(name, f"must be {bound}, not {value}")
