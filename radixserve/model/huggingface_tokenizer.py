"""The tokenizer of a Hugging Face model directory: ``tokenizer.json`` and what ``tokenizer_config.json`` adds to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import processors

from radixserve.errors import ModelLoadError, ModelNotFound, UnknownTokenizer
from radixserve.model.config_fields import Fields, read_json
from radixserve.model.token_bytes import Alphabet
from radixserve.model.tokenizer import SpecialTokens, Tokenizer, unbounded

TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"


def load_tokenizer(directory: Path, *, vocab_size: int, eos_ids: tuple[int, ...]) -> Tokenizer:
    """The tokenizer in ``directory`` for a model with ``vocab_size`` logits.

    ``eos_ids``: end tokens known from the model's configuration; the tokenizer's own end token is added after them.
    Raises `ModelNotFound` without a ``tokenizer.json``, `UnknownTokenizer` for a kind whose tokens' bytes are not known.
    """
    path = directory / TOKENIZER_FILE
    if not path.is_file():
        raise ModelNotFound(f"{directory} holds no {TOKENIZER_FILE}; other tokenizer formats are not read")
    description = read_json(path)
    alphabet = _alphabet(description, str(path))
    try:
        backend = unbounded(tokenizers.Tokenizer.from_str(json.dumps(description, ensure_ascii=False)))
    except Exception as error:  # the library raises nothing more precise
        raise ModelLoadError(f"{path}: {error}") from error
    config_path = directory / TOKENIZER_CONFIG_FILE
    fields = Fields(read_json(config_path) if config_path.is_file() else {}, str(config_path))
    names = special_token_names(fields)
    # The named roles are special even where tokenizer.json does not flag them.
    _flag_special(
        backend, [names[role] for role in ("bos_token", "eos_token", "pad_token", "unk_token") if role in names]
    )
    ids = {role: backend.token_to_id(name) for role, name in names.items()}
    eos = ids.get("eos_token")
    all_eos = tuple(dict.fromkeys([*eos_ids, *([eos] if eos is not None else [])]))
    bos = ids.get("bos_token")
    prefix, suffix = _around(backend, str(path))
    return Tokenizer(
        backend,
        alphabet=alphabet,
        special=SpecialTokens(
            bos_id=bos,
            eos_ids=tuple(token for token in all_eos if token < vocab_size),
            pad_id=ids.get("pad_token"),
            unk_id=ids.get("unk_token"),
            prefix=_switched(prefix, bos, fields, "add_bos_token"),
            suffix=_switched(suffix, eos, fields, "add_eos_token"),
        ),
        vocab_size=vocab_size,
        adds_space=alphabet == "sentencepiece" and _adds_space(backend),
    )


def special_token_names(fields: Fields) -> dict[str, str]:
    """Role (``bos_token``, ``eos_token``, ...) -> name, from the fields of ``tokenizer_config.json``."""
    names = {}
    for role in ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token"):
        value = fields.get(role)
        if isinstance(value, dict):
            value = value.get("content")
        if value is not None and not isinstance(value, str):
            raise fields.error(role, "a token's name")
        if value:
            names[role] = value
    return names


def _flag_special(backend: tokenizers.Tokenizer, names: list[str]) -> None:
    added = {item.content: item for item in backend.get_added_tokens_decoder().values()}
    for name in names:
        if backend.token_to_id(name) is not None and not (name in added and added[name].special):
            backend.add_special_tokens([tokenizers.AddedToken(name, special=True, normalized=False)])


def _alphabet(description: dict[str, Any], source: str) -> Alphabet:
    """How the vocabulary writes bytes, from the model's and the decoder's kind."""
    model = description.get("model")
    kind = model.get("type") if isinstance(model, dict) else None
    if kind != "BPE":
        raise UnknownTokenizer(f"{source}: model.type is {kind!r}; implemented is 'BPE'")
    decoder = description.get("decoder")
    steps = _steps(decoder, "decoders")
    if "ByteLevel" in steps:
        return "byte_level"
    if "ByteFallback" in steps or "Metaspace" in steps:
        return "sentencepiece"
    raise UnknownTokenizer(
        f"{source}: decoder is {steps or None}; implemented are ByteLevel, ByteFallback and Metaspace"
    )


def _steps(part: Any, children: str) -> list[str]:
    if not isinstance(part, dict):
        return []
    nested = part.get(children)
    if part.get("type") == "Sequence" and isinstance(nested, list):
        return [name for item in nested for name in _steps(item, children)]
    return [str(part.get("type"))]


def _around(backend: tokenizers.Tokenizer, source: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What the file's post-processor puts before and after a text; from then on ``backend`` gives the bare text's ids."""
    full = backend.encode("a", add_special_tokens=True).ids
    backend.post_processor = processors.ByteLevel(trim_offsets=False)  # changes no ids
    bare = backend.encode("a", add_special_tokens=False).ids
    for start in range(len(full) - len(bare) + 1):
        if full[start : start + len(bare)] == bare:
            return tuple(full[:start]), tuple(full[start + len(bare) :])
    raise UnknownTokenizer(f"{source}: post_processor changes a text instead of adding tokens around it")


def _switched(tokens: tuple[int, ...], token: int | None, fields: Fields, switch: str) -> tuple[int, ...]:
    """``tokens`` as the configuration's ``switch`` says: with ``token``, without it, or as they are if it says nothing."""
    if token is None or switch not in fields or fields.flag(switch, False) == (token in tokens):
        return tokens
    return (token,) if fields.flag(switch, False) else tuple(item for item in tokens if item != token)


def _adds_space(backend: tokenizers.Tokenizer) -> bool:
    first = backend.encode("a", add_special_tokens=False).tokens
    return bool(first) and first[0].startswith("\u2581")
