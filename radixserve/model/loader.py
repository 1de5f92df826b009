"""A model's name or path to everything an engine needs of it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from radixserve.model import gguf_model, huggingface, huggingface_tokenizer
from radixserve.model.chat_template import ChatTemplate
from radixserve.model.config import ModelConfig
from radixserve.model.generation_config import GenerationDefaults
from radixserve.model.gguf import GGUFFile
from radixserve.model.gguf_weights import GGUFWeights
from radixserve.model.location import find_model
from radixserve.model.progress import Progress, byte_progress
from radixserve.model.text import CONFIG_FILE, TextModel, directory_config, directory_text, gguf_text
from radixserve.model.tokenizer import Tokenizer

_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    """A model in memory.

    ``weights``: by canonical name, linears [out, in], q and k rows in half-rotation order; norms and biases are float32. Those
    of a GGUF file are made when they are asked for (`radixserve.model.gguf_weights`).
    ``generation``: end tokens and sampling defaults. ``fingerprint`` tells this very model, tokenizer and dtype from any
    other. ``source``: the file or directory it was read from.
    """

    name: str
    source: str
    config: ModelConfig
    weights: Mapping[str, torch.Tensor]
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    generation: GenerationDefaults
    fingerprint: str


def load_model(
    name: str, *, dtype: torch.dtype = torch.bfloat16, progress: Progress | bool | None = None
) -> LoadedModel:
    """Load ``smollm2`` (embedded), a ``.gguf`` file, a Hugging Face directory, or a hub id.

    ``progress``: whether to show a bar, None does on a terminal; or who is told of it instead. Raises `ModelNotFound`, and
    a `ModelLoadError` of another kind naming what in the files cannot be read.
    """
    path = find_model(name)
    if path.is_dir():
        return _load_directory(name, path, dtype, progress)
    return _load_gguf(name, path, dtype, progress)


def _load_gguf(name: str, path: Path, dtype: torch.dtype, progress: Progress | bool | None) -> LoadedModel:
    file = GGUFFile.open(path)
    config = gguf_model.read_config(file)
    text = gguf_text(name, path, file.metadata, config.vocab_size)
    total = sum(part.stat().st_size for part in file.parts)
    with byte_progress(f"loading {path.name}", total, progress) as advance:
        fingerprint = _fingerprint(file.parts, (), dtype, advance)
    return _joined(text, config, GGUFWeights.of(file, config, dtype), fingerprint)


def _load_directory(name: str, path: Path, dtype: torch.dtype, progress: Progress | bool | None) -> LoadedModel:
    config = directory_config(path)
    files = huggingface.weight_files(path)
    text = directory_text(name, path, config.vocab_size)
    with byte_progress(f"loading {path.name}", sum(file.stat().st_size for file in files), progress) as advance:
        weights = huggingface.read_weights(files, config, dtype, advance)
    names = (huggingface_tokenizer.TOKENIZER_FILE, CONFIG_FILE, huggingface_tokenizer.TOKENIZER_CONFIG_FILE)
    described = [path / name for name in names if (path / name).is_file()]
    return _joined(text, config, weights, _fingerprint(files, described, dtype))


def _joined(text: TextModel, config: ModelConfig, weights: Mapping[str, torch.Tensor], fingerprint: str) -> LoadedModel:
    return LoadedModel(
        name=text.name,
        source=text.source,
        config=config,
        weights=weights,
        tokenizer=text.tokenizer,
        chat_template=text.chat_template,
        generation=text.generation,
        fingerprint=fingerprint,
    )


def _fingerprint(
    weights: Sequence[Path], described: Sequence[Path], dtype: torch.dtype, advance: Callable[[int], None] | None = None
) -> str:
    """A hash of all bytes of the files, in order, and of the dtype; ``advance`` is told the bytes read.

    Samples of the weights would not do: two tunings of one model may differ in a few tensors only, and a shared
    fingerprint would let one read the other's KV.
    """
    digest = hashlib.sha256(str(dtype).encode())
    for path in (*weights, *described):
        of_file = hashlib.sha256()
        with path.open("rb") as file:
            while part := file.read(_READ_BYTES):
                of_file.update(part)
                if advance is not None:
                    advance(len(part))
        digest.update(of_file.digest())
    return digest.hexdigest()[:32]
