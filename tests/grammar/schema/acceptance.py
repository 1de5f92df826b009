"""What the grammar engine accepts, asked byte by byte.

JSON Schema speaks of values, a grammar of texts. A value counts as accepted when any of its `spellings` is: compact, the keys
of every object in any order, a whole number with or without its ``.0``, an exponent written out, characters as themselves
or escaped. So "rejects a valid one" means that no spelling passes, and "accepts an invalid one" that some spelling does.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

MAX_SPELLINGS = 2_000
EOS = 256


class _Bytes:
    """A tokenizer whose tokens are the 256 bytes and an end."""

    eos_token_id = EOS
    bos_token_id = None
    tokens = (*(bytes([value]) for value in range(256)), b"<eos>")
    special_token_ids = (EOS,)

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


TOKENIZER = LLTokenizer(TokenizerWrapper(_Bytes()))


class EngineRefused(Exception):
    """The engine does not compile the schema."""


def compile_schema(schema: object) -> LLMatcher:
    """A matcher for compact documents of ``schema``."""
    if not isinstance(schema, dict):
        schema = {"allOf": [schema]}
    grammar = LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides={"whitespace_flexible": False})
    matcher = LLMatcher(TOKENIZER, grammar, log_level=0)
    if matcher.is_error():
        raise EngineRefused(matcher.get_error())
    return matcher


def accepts_text(matcher: LLMatcher, text: str) -> bool:
    """Whether ``text`` is a whole document."""
    tokens = list(text.encode())
    mine = matcher.deep_copy()
    return mine.try_consume_tokens(tokens) == len(tokens) and mine.is_accepting()


def accepts(matcher: LLMatcher, value: object) -> bool:
    """Whether any spelling of ``value`` is a whole document."""
    return any(accepts_text(matcher, text) for text in itertools.islice(spellings(value), MAX_SPELLINGS))


def spellings(value: object) -> Iterator[str]:
    """Compact JSON texts of ``value``, the plainest first."""
    seen = set()
    for order in orders(value):
        for numbers in (_written_out, _as_given):
            for ascii_only in (False, True):
                text = _text(order, numbers, ascii_only)
                if text not in seen:
                    seen.add(text)
                    yield text


def orders(value: Any) -> Iterator[Any]:
    """``value`` with the keys of all its objects in every order."""
    if isinstance(value, list):
        yield from map(list, _product([lambda part=part: orders(part) for part in value]))
    elif isinstance(value, dict):
        for keys in itertools.permutations(value):
            for parts in _product([lambda part=value[key]: orders(part) for key in keys]):
                yield dict(zip(keys, parts, strict=True))
    else:
        yield value


def _product(makers: list[Any]) -> Iterator[tuple[Any, ...]]:
    if not makers:
        yield ()
        return
    for first in makers[0]():
        for rest in _product(makers[1:]):
            yield (first, *rest)


def _written_out(number: float) -> str:
    if isinstance(number, int):
        return str(number)
    return format(Decimal(repr(number)).normalize(), "f")


def _as_given(number: float) -> str:
    return json.dumps(number)


def _text(value: Any, numbers: Any, ascii_only: bool) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(numbers(value))
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=ascii_only).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return f"[{','.join(_text(part, numbers, ascii_only) for part in value)}]"
    if isinstance(value, dict):
        items = (f"{_text(key, numbers, ascii_only)}:{_text(part, numbers, ascii_only)}" for key, part in value.items())
        return f"{{{','.join(items)}}}"
    return json.dumps(value)
