"""Callers' text is data: the name of a special token in it must not become that token.

A template cannot be rendered without the callers' words, because it looks at them (trims them, splits them at tags), and its
own words cannot be told from theirs afterwards. So a mark is put behind the first character of every special name
in the callers' texts, and of nothing else; the rendered text shows where the marks went, and without them it is
compared with a rendering without marks. The character before a mark is data, and the tokenizer reads a name that covers it
as plain text (`Tokenizer.encode_with_data`). Where no caller wrote a special name, which is nearly always, there is
no mark and nothing of this happens.

What it does not see is a name that a template makes of two pieces, by deleting what a caller put between them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from radixserve.model.tokenizer import Tokenizer


def texts(value: Any) -> Iterator[str]:
    """All texts in a JSON value, the keys of its objects included."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            waiting += (*item.keys(), *item.values())
        elif isinstance(item, list | tuple):
            waiting += item


def choose_mark(value: Any, tokenizer: Tokenizer) -> str | None:
    """A text that occurs nowhere in ``value``, None where ``value`` holds no special token's name.

    It is made of letters and digits, so that no escaping changes it.
    """
    held = list(texts(value))
    if not any(tokenizer.special_name_starts(text) for text in held):
        return None
    number = 0
    while any((mark := f"xq{number}qx") in text for text in held):
        number += 1
    return mark


def marked(value: Any, mark: str, tokenizer: Tokenizer) -> Any:
    """A copy of ``value`` with ``mark`` in every special name of its texts."""
    if isinstance(value, str):
        pieces: list[str] = []
        done = 0
        for start in tokenizer.special_name_starts(value):
            pieces += (value[done : start + 1], mark)
            done = start + 1
        return "".join([*pieces, value[done:]])
    if isinstance(value, dict):
        return {marked(key, mark, tokenizer): marked(item, mark, tokenizer) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [marked(item, mark, tokenizer) for item in value]
    return value


def unmarked(text: str, mark: str) -> tuple[str, frozenset[int]]:
    """``text`` without marks, and the indices of the characters that stood before one."""
    pieces = text.split(mark)
    data = set[int]()
    length = 0
    for piece in pieces[:-1]:
        length += len(piece)
        data.add(length - 1)
    return "".join(pieces), frozenset(data)
