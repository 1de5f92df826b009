"""A tokenizer of words with the space before them, stops and line ends: one token each."""

from __future__ import annotations

import re


class WordTokenizer:
    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    def encode(self, text: str) -> list[int]:
        pieces = re.findall(r" ?[^\s.]+|\.|\s", text)
        assert "".join(pieces) == text
        return [self._ids.setdefault(piece, len(self._ids)) for piece in pieces]
