"""A tokenizer without a model: small, reversible, and with merges across the borders of pieces, where mistakes would show."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator, Sequence

from radixlang.backends.base import Text

SPECIAL = ("<|bos|>", "<|end|>", "<|im_start|>", "<|im_end|>")
BOS, END, IM_START, IM_END = range(1, len(SPECIAL) + 1)

_SPECIAL = re.compile("|".join(map(re.escape, SPECIAL)))
# A word or a run of signs takes the space before it, and signs the line's end after them.
_PIECE = re.compile(r" ?\w+| ?[^\w\s]+\n?|\s+")
# Letters of a word in one token.
_LETTERS = 4


class ToyTokenizer:
    """Words are cut into tokens of four letters, so "data" + "base" has other tokens than "datab" + "ase" until they are joined.

    Ids depend on a token's text only, not on what was seen before.
    """

    def __init__(self) -> None:
        self._texts: dict[int, str] = dict(enumerate(SPECIAL, 1))

    def encode(self, parts: Iterable[Text], *, bos: bool = False) -> list[int]:
        """The tokens of all parts read as one text. In ``content`` the names of special tokens are just characters."""
        tokens = [BOS] if bos else []
        run = ""
        for text, special in _segments(parts):
            if special:
                tokens += self.encode_text(run)
                tokens.append(SPECIAL.index(text) + 1)
                run = ""
            else:
                run += text
        return tokens + self.encode_text(run)

    def encode_text(self, text: str) -> list[int]:
        """The tokens of a text in which no name is special."""
        return [self._token(chunk) for piece in _PIECE.findall(text) for chunk in _chunks(piece)]

    def decode(self, token_ids: Iterable[int]) -> str:
        """The text of tokens that were made here. Raises `KeyError` for others."""
        return "".join(self._texts[token] for token in token_ids)

    def text_of(self, token_id: int) -> str:
        """The text of one token."""
        return self._texts[token_id]

    def kept(self, token_ids: Sequence[int], length: int) -> int:
        """How many tokens, from the first, lie wholly inside the first ``length`` characters of their text."""
        at = 0
        for count, token in enumerate(token_ids):
            at += len(self._texts[token])
            if at > length or token <= len(SPECIAL):
                return count
        return len(token_ids)

    def _token(self, chunk: str) -> int:
        token = 1000 + zlib.crc32(chunk.encode()) % 2**30
        while self._texts.setdefault(token, chunk) != chunk:
            token += 1
        return token


def _segments(parts: Iterable[Text]) -> Iterator[tuple[str, bool]]:
    """Texts in order, and whether each is the name of a special token that counts as one."""
    for part in parts:
        if part.kind == "content":
            yield part.text, False
            continue
        at = 0
        for match in _SPECIAL.finditer(part.text):
            yield part.text[at : match.start()], False
            yield match.group(), True
            at = match.end()
        yield part.text[at:], False


def _chunks(piece: str) -> Iterator[str]:
    if not piece.strip():
        yield piece
        return
    size = _LETTERS + (1 if piece.startswith(" ") else 0)
    yield piece[:size]
    for at in range(size, len(piece), _LETTERS):
        yield piece[at : at + _LETTERS]
