"""The text side of a model: tokenizer, chat template and generation defaults, without its weights and without torch.

This is what a server process loads to turn conversations into token ids and back, while the engine process holds the weights.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from radixserve.errors import ModelNotFound
from radixserve.model import huggingface_config, huggingface_tokenizer
from radixserve.model.chat_template import ChatTemplate, directory_chat_template, gguf_chat_template
from radixserve.model.config import ModelConfig
from radixserve.model.config_fields import Fields, read_json
from radixserve.model.generation_config import GenerationDefaults, parse_generation_config, token_ids
from radixserve.model.gguf import GGUFFile
from radixserve.model.gguf_metadata import Metadata
from radixserve.model.gguf_tokenizer import build_tokenizer
from radixserve.model.location import find_model
from radixserve.model.tokenizer import Tokenizer

CONFIG_FILE = "config.json"


@dataclass(frozen=True, slots=True, eq=False)
class TextModel:
    """How a model reads and writes text.

    ``source``: the file or directory it was read from. ``chat_template``: None where the files hold none. ``generation``:
    end tokens and sampling defaults.
    """

    name: str
    source: str
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    generation: GenerationDefaults


def load_text_model(name: str, *, vocab_size: int | None = None) -> TextModel:
    """The text side of ``smollm2`` (embedded), a ``.gguf`` file, a Hugging Face directory, or a hub id.

    ``vocab_size``: the number of logits, where it is known; None takes what the files say. Raises as
    `radixserve.model.loader.load_model` does.
    """
    path = find_model(name)
    if path.is_dir():
        return directory_text(name, path, vocab_size or directory_config(path).vocab_size)
    return gguf_text(name, path, GGUFFile.open(path).metadata, vocab_size)


def gguf_text(name: str, path: Path, metadata: Metadata, vocab_size: int | None) -> TextModel:
    """The text side of a GGUF file; without ``vocab_size`` every token of the file has a logit."""
    if vocab_size is None:
        vocab_size = len(metadata.strings("tokenizer.ggml.tokens") or ())
    tokenizer = build_tokenizer(metadata, str(path), vocab_size=vocab_size)
    special = {
        f"{role}_token": tokenizer.token_name(token)
        for role, token in (
            ("bos", tokenizer.special.bos_id),
            ("eos", next(iter(tokenizer.eos_ids), None)),
            ("pad", tokenizer.special.pad_id),
            ("unk", tokenizer.special.unk_id),
        )
        if token is not None
    }
    return TextModel(
        name=name,
        source=str(path),
        tokenizer=tokenizer,
        chat_template=gguf_chat_template(metadata, special),
        generation=GenerationDefaults(eos_ids=tokenizer.eos_ids),
    )


def directory_config(path: Path) -> ModelConfig:
    """The configuration of a Hugging Face directory. Raises `ModelNotFound` where it holds none."""
    config_path = path / CONFIG_FILE
    if not config_path.is_file():
        raise ModelNotFound(f"{path} holds no {CONFIG_FILE}")
    return huggingface_config.parse_config(read_json(config_path), str(config_path))


def directory_text(name: str, path: Path, vocab_size: int) -> TextModel:
    """The text side of a Hugging Face directory whose model has ``vocab_size`` logits."""
    config_path = path / CONFIG_FILE
    generation = _generation(path, read_json(config_path), str(config_path))
    tokenizer = huggingface_tokenizer.load_tokenizer(path, vocab_size=vocab_size, eos_ids=generation.eos_ids)
    tokenizer_config = path / huggingface_tokenizer.TOKENIZER_CONFIG_FILE
    fields = Fields(read_json(tokenizer_config) if tokenizer_config.is_file() else {}, str(tokenizer_config))
    return TextModel(
        name=name,
        source=str(path),
        tokenizer=tokenizer,
        chat_template=directory_chat_template(path, huggingface_tokenizer.special_token_names(fields)),
        # The tokenizer's end tokens begin with the configuration's own.
        generation=dataclasses.replace(generation, eos_ids=tokenizer.eos_ids),
    )


def _generation(path: Path, values: Mapping[str, object], source: str) -> GenerationDefaults:
    """``generation_config.json`` with the end tokens of ``config.json`` after its own."""
    own = path / "generation_config.json"
    eos_ids = token_ids(Fields(values, source), "eos_token_id")
    return parse_generation_config(read_json(own) if own.is_file() else {}, str(own), eos_ids)
