"""Tokenizers and formats for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from radixserve.chat.format import ChatFormat
from radixserve.chat.history import GeneratedHistory
from radixserve.model.chat_template import ChatTemplate
from radixserve.model.token_bytes import BYTE_CHARACTERS
from radixserve.model.tokenizer import SpecialTokens, Tokenizer

MERGES = [
    ("h", "e"),
    ("l", "l"),
    ("ll", "o"),
    ("he", "llo"),
    ("i", "m"),
    ("_", "e"),
    ("n", "d"),
    ("<", "|"),
    ("|", ">"),
]
MERGES += [("im", "_e"), ("im_e", "nd"), ("<|", "im_end"), ("Ċ", "Ċ"), ("Ġ", "hello")]
TURNS = ("<|im_start|>", "<|im_end|>")


def byte_level(special: Sequence[str] = TURNS, *, added: Sequence[str] = (), strip: bool = False) -> Tokenizer:
    """A byte-level BPE that knows some merges across the places where texts meet; the last of ``special`` ends a turn.

    ``added``: tokens that are matched whole and not special. ``strip``: special tokens take the white space before them.
    """
    vocabulary = {char: byte for byte, char in enumerate(BYTE_CHARACTERS)}
    for left, right in MERGES:
        vocabulary.setdefault(left + right, len(vocabulary))
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, MERGES))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return _with_special(backend, special, added, "byte_level", strip=strip, adds_space=False)


def sentencepiece(special: Sequence[str] = ("<s>", "</s>"), *, first_only: bool = False) -> Tokenizer:
    """A BPE with a space before the text, or before every stretch between special tokens."""
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)}
    for char in [*(chr(code) for code in range(32, 127)), "\u2581"]:
        vocabulary.setdefault(char, len(vocabulary))
    merges = [("h", "i"), ("\u2581", "hi"), ("s", ">")]
    for left, right in merges:
        vocabulary.setdefault(left + right, len(vocabulary))
    vocabulary["<unk>"] = len(vocabulary)
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    if first_only:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement="\u2581", prepend_scheme="first", split=False)
    else:
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    backend.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    return _with_special(backend, special, (), "sentencepiece", strip=False, adds_space=True)


def _with_special(
    backend: tokenizers.Tokenizer,
    special: Sequence[str],
    added: Sequence[str],
    alphabet: Any,
    *,
    strip: bool,
    adds_space: bool,
) -> Tokenizer:
    backend.add_special_tokens([AddedToken(name, special=True, normalized=False, lstrip=strip) for name in special])
    backend.add_tokens([AddedToken(name, special=False, normalized=False) for name in added])
    ids = [token for name in special if (token := backend.token_to_id(name)) is not None]
    return Tokenizer(
        backend,
        alphabet=alphabet,
        special=SpecialTokens(bos_id=ids[0], eos_ids=(ids[-1],)),
        vocab_size=backend.get_vocab_size(with_added_tokens=True),
        adds_space=adds_space,
    )


def chat_format(
    source: str, tokenizer: Tokenizer | None = None, *, history: bool = False, **options: Any
) -> ChatFormat:
    """A format of that template."""
    tokenizer = tokenizer or byte_level()
    template = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"})
    return ChatFormat(template, tokenizer, history=GeneratedHistory(tokenizer) if history else None, **options)
