"""From the text of a vocabulary entry to the bytes it stands for."""

from __future__ import annotations

import re
from typing import Literal

Alphabet = Literal["byte_level", "sentencepiece"]

_BYTE_TOKEN = re.compile(r"^<0x([0-9A-Fa-f]{2})>$")
SPACE_MARK = "\u2581"
"""Stands for a space in SentencePiece vocabularies."""


def _byte_characters() -> list[str]:
    """The character that stands for each byte in a byte-level vocabulary.

    The printable characters of Latin-1 stand for their own code; the remaining 68 bytes are, in order, the characters from
    U+0100 on (the GPT-2 vocabulary, Radford et al. 2019).
    """
    own = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in own else next(others)) for byte in range(256)]


BYTE_CHARACTERS: tuple[str, ...] = tuple(_byte_characters())
"""``BYTE_CHARACTERS[b]`` is how a byte-level vocabulary writes byte ``b``."""

_BYTE_OF = {character: byte for byte, character in enumerate(BYTE_CHARACTERS)}


def token_to_bytes(text: str, alphabet: Alphabet, *, added: bool) -> bytes:
    """The bytes of the vocabulary entry ``text``.

    ``added``: whether it stands outside the merges (special and user-defined tokens), where its text is literal.
    """
    if alphabet == "byte_level":
        if added:
            return text.encode()
        try:
            return bytes([_BYTE_OF[character] for character in text])
        except KeyError:  # written with a character that stands for no byte: never made by merges
            return text.encode()
    if not added and (match := _BYTE_TOKEN.match(text)):
        return bytes([int(match[1], 16)])
    return text.replace(SPACE_MARK, " ").encode()
