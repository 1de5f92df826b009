"""What callers of the offline API hand in, in any of its forms, to token ids and parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from radixserve.errors import InvalidRequest
from radixserve.messages import SamplingParams

DEFAULT_MAX_TOKENS = 16

Tokenize = Callable[[str], list[int]]


def read_prompts(prompt: object, tokenize: Tokenize) -> tuple[list[list[int]], bool]:
    """Token ids of every prompt, and whether it was a single one. Raises `InvalidRequest`."""
    if isinstance(prompt, str):
        return [tokenize(prompt)], True
    if not isinstance(prompt, (list, tuple)):
        raise InvalidRequest("prompt", f"must be text or token ids, not {type(prompt).__name__}", "invalid_type")
    if len(prompt) == 0:
        raise InvalidRequest("prompt", "must not be empty", "empty_prompt")
    if not isinstance(prompt[0], (str, list, tuple)):
        return [list(prompt)], True
    return [_token_ids(item, "prompt", "must be all texts or all token ids", tokenize) for item in prompt], False


def read_prompt(prompt: object, tokenize: Tokenize) -> list[int]:
    """Token ids of the one prompt, which is not empty. Raises `InvalidRequest`."""
    tokens = _token_ids(prompt, "prompt", f"must be text or token ids, not {type(prompt).__name__}", tokenize)
    if not tokens:
        raise InvalidRequest("prompt", "must not be empty", "empty_prompt")
    return tokens


def read_continuations(continuations: object, tokenize: Tokenize) -> list[list[int]]:
    """Token ids of each continuation, none of them empty. Raises `InvalidRequest`."""
    wanted = "must be a list of texts or of token ids"
    if not isinstance(continuations, (list, tuple)):
        raise InvalidRequest("continuations", wanted, "invalid_type")
    tails = [_token_ids(item, "continuations", wanted, tokenize) for item in continuations]
    if not tails or not all(tails):
        raise InvalidRequest("continuations", "must hold at least one token each")
    return tails


def read_parts(parts: object) -> list[tuple[str, bool]]:
    """The (text, data) parts of one text. Raises `InvalidRequest`."""
    wanted = "must be a list of (text, whether it is data)"
    if not isinstance(parts, (list, tuple)):
        raise InvalidRequest("parts", wanted, "invalid_type")
    read: list[tuple[str, bool]] = []
    for part in parts:
        match part:
            case (str() as text, bool() as data):
                read.append((text, data))
            case _:
                raise InvalidRequest("parts", wanted, "invalid_type")
    return read


def read_ids(ids: object) -> list[str]:
    """Names, as texts. Raises `InvalidRequest`."""
    if not isinstance(ids, (list, tuple)) or not all(isinstance(item, str) for item in ids):
        raise InvalidRequest("holds", "must be a list of ids", "invalid_type")
    return list(ids)


def read_sampling(
    sampling: SamplingParams | Sequence[SamplingParams] | None, count: int, defaults: SamplingParams
) -> list[SamplingParams]:
    """Parameters for each of ``count`` prompts; None is ``defaults``, with `DEFAULT_MAX_TOKENS` where they have no limit.

    Raises `InvalidRequest`.
    """
    if sampling is None:
        if defaults.max_tokens is None:
            defaults = msgspec.structs.replace(defaults, max_tokens=DEFAULT_MAX_TOKENS)
        return [defaults] * count
    if isinstance(sampling, SamplingParams):
        return [sampling] * count
    if not isinstance(sampling, (list, tuple)):
        raise InvalidRequest("sampling", f"must be SamplingParams, not {type(sampling).__name__}", "invalid_type")
    if len(sampling) != count:
        raise InvalidRequest("sampling", f"{len(sampling)} parameters for {count} prompts")
    return list(sampling)


def _token_ids(item: object, param: str, wanted: str, tokenize: Tokenize) -> list[int]:
    if isinstance(item, str):
        return tokenize(item)
    if not isinstance(item, (list, tuple)):
        raise InvalidRequest(param, wanted, "invalid_type")
    return list(item)
