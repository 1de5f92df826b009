"""A vocabulary in which nearly every text can be written in many ways, and a tiny model over it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from tests.tiny_decoder import TinyDecoder, tiny_decoder

NAMES = (b"<s>", b"</s>", b"<|x|>")


class TextVocabulary:
    """All texts of ``a`` and ``b`` up to five characters, ids 0 to 61; then byte tokens of their own, and special tokens.

    Meets `radixserve.grammar.base.Vocabulary` and `radixserve.engine.detokenizer.TokenBytes`.
    """

    def __init__(self) -> None:
        texts = ["".join(text) for size in range(1, 6) for text in itertools.product("ab", repeat=size)]
        self.texts = [text.encode() for text in texts]
        self.texts += [b"a", b"\xe2\x82", b"\xac", b"\xac!", b"\xe2\x82\xac", b"\xe2\x82\xac!", b"c", b"b\xff"]
        self.special = range(len(self.texts), len(self.texts) + len(NAMES))
        self.texts += NAMES
        self.vocab_size = 131
        self.texts += [b""] * (self.vocab_size - len(self.texts))
        self.special_ids = frozenset(self.special)
        self.added_ids = self.special_ids

    @property
    def eos_id(self) -> int:
        """What ends an output."""
        return self.special[1]

    def all_token_bytes(self) -> Sequence[bytes]:
        return tuple(self.texts)

    def token_bytes(self, token_id: int, /) -> bytes:
        return self.texts[token_id]

    def id_of(self, name: str) -> int | None:
        return self.texts.index(name.encode()) if name.encode() in self.texts else None

    def encode_continuation(self, text: str) -> list[int]:
        """The longest token that fits, again and again."""
        data, tokens = text.encode(), []
        while data:
            best = max((token for token, one in enumerate(self.texts) if one and data.startswith(one)), key=self._size)
            tokens.append(best)
            data = data[self._size(best) :]
        return tokens

    def ids(self, *names: str) -> list[int]:
        """The lowest id of each text."""
        return [self.texts.index(name.encode()) for name in names]

    def join(self, tokens: Sequence[int]) -> bytes:
        """The bytes of ``tokens``."""
        return b"".join(self.texts[token] for token in tokens)

    def _size(self, token: int) -> int:
        return len(self.texts[token])


def text_decoder(seed: int = 0) -> TinyDecoder:
    """A random model whose tokens are that vocabulary's."""
    return tiny_decoder(seed=seed, vocab_size=TextVocabulary().vocab_size)
