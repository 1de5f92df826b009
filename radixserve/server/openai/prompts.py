"""Texts or token ids, one or many, as completions and embeddings take them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from radixserve.errors import InvalidRequest
from radixserve.messages import SamplingParams
from radixserve.server.service import Service

MAX_PROMPTS = 2048


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt; ``text`` is None where token ids were given."""

    token_ids: list[int]
    text: str | None


def parse_prompts(value: str | list[Any], field: str, service: Service, sampling: SamplingParams) -> list[Prompt]:
    """The prompts in ``value``, each of which fits context and pool together with what ``sampling`` asks for.

    Raises `InvalidRequest` naming the item of ``field``.
    """
    return [_prompt(item, place, service, sampling) for place, item in _items(value, field)]


def _items(value: str | list[Any], field: str) -> list[tuple[str, str | list[int]]]:
    """Every prompt with the name of its place."""
    if isinstance(value, str):
        return [(field, value)]
    if not value:
        raise InvalidRequest(field, "must not be empty", "empty_prompt")
    if all(type(item) is int for item in value):
        return [(field, value)]
    if len(value) > MAX_PROMPTS:
        raise InvalidRequest(field, f"holds {len(value)} prompts, at most {MAX_PROMPTS} are taken")
    items: list[tuple[str, str | list[int]]] = []
    for index, item in enumerate(value):
        if not isinstance(item, str) and not (isinstance(item, list) and all(type(token) is int for token in item)):
            raise InvalidRequest(f"{field}[{index}]", "must be a text or a list of token ids", "invalid_type")
        items.append((f"{field}[{index}]", item))
    return items


def _tokens(text: str, service: Service) -> list[int]:
    tokenizer = service.text.tokenizer
    service.limits.check_least(tokenizer.least_tokens(text))
    return tokenizer.encode(text, add_special=True)


def _prompt(item: str | list[int], place: str, service: Service, sampling: SamplingParams) -> Prompt:
    try:
        text = item if isinstance(item, str) else None
        tokens = _tokens(item, service) if isinstance(item, str) else item
        service.limits.check_tokens(tokens)
        service.limits.max_tokens(len(tokens), sampling)
    except InvalidRequest as error:
        if error.param == "prompt":
            error.param = place
        raise
    return Prompt(tokens, text)
