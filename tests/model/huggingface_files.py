"""Whole tiny models as Hugging Face directories."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from radixserve.model.config import Architecture
from tests.model.transformers_model import transformers_model
from tests.tiny_decoder import tiny_decoder
from tests.tiny_model import SPECIAL, VOCAB_SIZE, byte_tokenizer


def write_directory(path: Path, architecture: Architecture = "llama", shard: str = "1GB") -> Path:
    """A tiny model as `transformers` saves it, with a byte-level tokenizer."""
    model = tiny_decoder(architecture, vocab_size=VOCAB_SIZE, context_length=512)
    transformers_model(model.config, model.weights).save_pretrained(path, max_shard_size=shard)
    (path / "tokenizer.json").write_text(byte_tokenizer()._backend.to_str())
    write_json(path / "tokenizer_config.json", {"eos_token": SPECIAL[1], "bos_token": {"content": SPECIAL[0]}})
    write_json(path / "generation_config.json", {"eos_token_id": [259, 257], "top_k": 5})
    change(path / "config.json", eos_token_id=257)
    return path


def write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values))


def change(path: Path, **values: Any) -> None:
    held = json.loads(path.read_text())
    held.update(values)
    write_json(path, {name: value for name, value in held.items() if value is not None})
