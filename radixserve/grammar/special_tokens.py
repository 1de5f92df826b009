"""Special tokens in the texts of a constraint: where one is named, that token is meant and not the characters of its name."""

from __future__ import annotations

import re
from collections.abc import Sequence

from radixserve.grammar.base import Vocabulary

Pieces = tuple[str | int, ...]
"""A text cut at the names of special tokens: texts, none of them empty, and token ids."""


def special_token_ids(vocabulary: Vocabulary) -> frozenset[int]:
    """Tokens that a grammar can only mean by name: control tokens, and added ones that are written like them.

    Some vocabularies do not flag the tokens that delimit tool calls and thoughts as special.
    """
    texts = vocabulary.all_token_bytes()
    tagged = (token for token in vocabulary.added_ids if texts[token][:1] == b"<" and texts[token][-1:] == b">")
    return vocabulary.special_ids.union(tagged)


class SpecialTokens:
    """The special tokens of a vocabulary. ``eos_ids``: those that end the model's outputs."""

    def __init__(self, vocabulary: Vocabulary, eos_ids: Sequence[int]) -> None:
        texts = vocabulary.all_token_bytes()
        self.eos_ids = frozenset(eos_ids)
        self.ids = special_token_ids(vocabulary)
        # Not flagged as control tokens: free text may hold them.
        self.in_text = self.ids - vocabulary.special_ids - self.eos_ids
        self._names = {texts[token].decode("utf-8", "replace"): token for token in self.ids if texts[token]}
        names = sorted(self._names, key=len, reverse=True)
        self._pattern = re.compile("(" + "|".join(map(re.escape, names)) + ")") if names else None

    def cut(self, text: str) -> Pieces:
        """``text`` as pieces; the longest name wins."""
        if self._pattern is None:
            return (text,) if text else ()
        parts = self._pattern.split(text)
        return tuple(self._names[part] if index % 2 else part for index, part in enumerate(parts) if part)
