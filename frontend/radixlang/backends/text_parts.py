"""Pieces of text on their way to a tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Literal

from radixlang.backends.base import Text

# (text, whether names of special tokens in it are just characters)
Part = tuple[str, bool]

# ``none``: in the middle of a sequence. ``model``: with what the model's own setting puts before a text. ``own``: at the beginning of a
# sequence, but a chat template wrote the begin token itself where the model was trained with one.
Beginning = Literal["none", "model", "own"]


def joined(texts: Sequence[Text]) -> tuple[Part, ...]:
    """``texts`` as the fewest parts: neighbours that are read in the same way are one, empty ones are none."""
    runs = groupby((item for item in texts if item.text), key=lambda item: item.kind == "content")
    return tuple(("".join(item.text for item in run), data) for data, run in runs)


def beginning_of(texts: Sequence[Text], *, first: bool) -> Beginning:
    """How ``texts`` begin; ``first``: nothing is before them."""
    if not first:
        return "none"
    leading = next((item for item in texts if item.text), None)
    return "own" if leading is not None and leading.kind == "template" else "model"


def encoded_weight(key: tuple[tuple[Part, ...], Beginning], token_ids: tuple[int, ...]) -> int:
    """About how many bytes it takes to keep the tokens of a text."""
    return sum(len(text) for text, _ in key[0]) + 8 * len(token_ids) + 128
