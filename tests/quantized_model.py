"""Tiny random models in GGUF files whose matrices are quantized, one architecture or mix of types after the other."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any, Literal

import gguf
import torch

from radixserve.model.config import Architecture
from radixserve.model.loader import LoadedModel, load_model
from tests.model.gguf_files import write_model
from tests.tiny_decoder import tiny_decoder

Mix = Literal["Q4_1", "Q8_0", "K", "mixed", "fallback"]
# Each matrix's type where it is not the first named. ``K`` is as files for K-quants are; in ``mixed`` every fused linear is in parts;
# ``fallback`` has types that the kernels do not read.
MIXES: dict[Mix, tuple[str, dict[str, str]]] = {
    "Q4_1": ("Q4_1", {"embed": "Q8_0"}),
    "Q8_0": ("Q8_0", {}),
    "K": ("Q4_K", {"v": "Q6_K", "down": "Q6_K", "o": "Q4_0", "embed": "Q6_K", "head": "Q6_K"}),
    "mixed": ("Q4_0", {"k": "Q8_0", "v": "Q4_1", "up": "Q4_1", "embed": "Q4_K", "head": "Q4_1"}),
    "fallback": ("Q4_0", {"k": "Q5_0", "up": "F16", "down": "Q5_1", "embed": "F16", "head": "Q5_0"}),
}
SIZES: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 256, "vocab_size": 262, "context_length": 4096}


@functools.cache
def quantized_model(
    mix: Mix, architecture: Architecture = "llama", dtype: torch.dtype = torch.bfloat16, **changes: Any
) -> LoadedModel:
    """The random decoder in the types of ``MIXES[mix]``, loaded from a file."""
    kind, others = MIXES[mix]
    kinds = {name: gguf.GGMLQuantizationType[other] for name, other in others.items()}
    model = tiny_decoder(architecture, **{**SIZES, **changes})
    with tempfile.TemporaryDirectory() as directory:
        # The mapped file outlives its name.
        path = write_model(Path(directory) / "m.gguf", model, kind=gguf.GGMLQuantizationType[kind], kinds=kinds)
        return load_model(str(path), dtype=dtype)
