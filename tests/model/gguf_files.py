"""Small GGUF files written with the `gguf` package, and whole tiny models in that format."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from radixserve.model.token_bytes import BYTE_CHARACTERS
from tests.tiny_decoder import TinyDecoder

_TOP = {"embed": "token_embd.weight", "final_norm": "output_norm.weight", "head": "output.weight"}
_LAYER = {
    "attn_norm": "attn_norm.weight",
    "mlp_norm": "ffn_norm.weight",
    "o": "attn_output.weight",
    "gate": "ffn_gate.weight",
    "up": "ffn_up.weight",
    "down": "ffn_down.weight",
    **{name: f"attn_{name}.weight" for name in "qkv"},
    **{f"{name}_bias": f"attn_{name}.bias" for name in "qkv"},
    **{f"{name}_norm": f"attn_{name}_norm.weight" for name in "qk"},
}
CONTROL = ("<s>", "</s>", "<|im_end|>")
MERGES = (("t", "h"), ("th", "e"))


def interleave(weight: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Rows in the order that llama files have: the two halves of each head side by side."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def write_model(
    path: Path,
    model: TinyDecoder,
    changes: Mapping[str, Any] | None = None,
    *,
    more: Mapping[str, np.ndarray[Any, Any]] | None = None,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    kinds: Mapping[str, gguf.GGMLQuantizationType] | None = None,
) -> Path:
    """``model`` as a GGUF file with a byte-level tokenizer.

    ``changes`` replace metadata (None removes a key), ``more`` are further tensors, ``kind`` is the type of all matrices but those
    that ``kinds`` names (``embed``, ``q``).
    """
    config = model.config
    name = "llama" if config.architecture == "mistral" else config.architecture
    tokens = [*BYTE_CHARACTERS, *CONTROL, *(left + right for left, right in MERGES)]
    tokens += [f"<pad{index}>" for index in range(config.vocab_size - len(tokens))]
    metadata: dict[str, Any] = {
        f"{name}.context_length": config.context_length,
        f"{name}.embedding_length": config.hidden_size,
        f"{name}.block_count": config.num_layers,
        f"{name}.feed_forward_length": config.intermediate_size,
        f"{name}.attention.head_count": config.num_heads,
        f"{name}.attention.head_count_kv": config.num_kv_heads,
        f"{name}.attention.key_length": config.head_dim,
        f"{name}.attention.value_length": config.head_dim,
        f"{name}.rope.dimension_count": config.head_dim,
        f"{name}.attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        f"{name}.rope.freq_base": config.rope_theta,
        f"{name}.attention.sliding_window": config.sliding_window,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * 256 + [3] * 3 + [1] * 2 + [3] * (len(tokens) - 261),
        "tokenizer.ggml.merges": [f"{left} {right}" for left, right in MERGES],
        "tokenizer.ggml.bos_token_id": 256,
        "tokenizer.ggml.eos_token_id": 257,
        "tokenizer.chat_template": "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}",
        **(changes or {}),
    }
    architecture = metadata.pop("general.architecture", name)
    tensors, chosen = {}, {}
    for own, weight in model.weights.items():
        values = weight.float().numpy()
        part = own.rpartition(".")[2]
        if name == "llama" and part in ("q", "k"):
            values = interleave(values, config.num_heads if part == "q" else config.num_kv_heads)
        layer = own.split(".")
        stored = _TOP.get(own) or f"blk.{layer[1]}.{_LAYER[part]}"
        tensors[stored] = values
        chosen[stored] = (kinds or {}).get(part or own, kind)
    write_file(path, metadata, {**tensors, **(more or {})}, architecture, kind, chosen)
    return path


def write_file(
    path: Path,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, np.ndarray[Any, Any]],
    architecture: str = "llama",
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    kinds: Mapping[str, gguf.GGMLQuantizationType] | None = None,
) -> None:
    """A GGUF file; lists of str, int or float become arrays. ``kind``: the type of the matrices, if not as they are;
    ``kinds``: of single ones.
    """
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in metadata.items():
        if value is None:
            continue
        if isinstance(value, list):
            if value:
                writer.add_array(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        else:
            writer.add_string(key, value)
    for name, values in tensors.items():
        wanted = (kinds or {}).get(name, kind)
        if wanted != gguf.GGMLQuantizationType.F32 and values.ndim == 2:
            writer.add_tensor(name, quantized(values, wanted), raw_dtype=wanted)
        else:
            writer.add_tensor(name, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def quantized(values: np.ndarray[Any, Any], kind: gguf.GGMLQuantizationType) -> np.ndarray[Any, Any]:
    """Blocks of ``kind``; those that the `gguf` package cannot make are random, of about the same spread as the values."""
    if kind not in _RANDOM:
        return gguf.quants.quantize(values, kind)
    rows, size = len(values), gguf.GGML_QUANT_SIZES[kind][1]
    places, spread = _RANDOM[kind]
    rng = np.random.default_rng(values.size)
    blocks = rng.integers(0, 256, (rows, values.shape[1] // 256, size), dtype=np.uint8)
    for place in places:
        scale = rng.uniform(0.5, 1.5, (*blocks.shape[:2], 1)) * float(values.std()) / spread
        blocks[:, :, place : place + 2] = scale.astype(np.float16).view(np.uint8)
    return blocks.reshape(rows, -1)


# Where a block keeps its half-precision scales, and the spread of random blocks with scales of 1.
_RANDOM = {gguf.GGMLQuantizationType.Q4_K: ((0, 2), 330.0), gguf.GGMLQuantizationType.Q6_K: ((208,), 1365.0)}
