"""The configuration in a GGUF file, and the names and row order of its weights."""

from __future__ import annotations

import re
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from radixserve.errors import ModelLoadError, UnknownArchitecture
from radixserve.model.config import ModelConfig, RopeScaling
from radixserve.model.config_fields import Fields
from radixserve.model.gguf import GGUFFile
from radixserve.model.weights import check_shape, unknown_tensors

_ARCHITECTURES: tuple[Literal["llama", "qwen2", "qwen3"], ...] = ("llama", "qwen2", "qwen3")
_TOP = {"token_embd.weight": "embed", "output_norm.weight": "final_norm", "output.weight": "head"}
_LAYER = {
    "attn_norm.weight": "attn_norm",
    "attn_q.weight": "q",
    "attn_k.weight": "k",
    "attn_v.weight": "v",
    "attn_output.weight": "o",
    "attn_q.bias": "q_bias",
    "attn_k.bias": "k_bias",
    "attn_v.bias": "v_bias",
    "attn_output.bias": "o_bias",
    "attn_q_norm.weight": "q_norm",
    "attn_k_norm.weight": "k_norm",
    "ffn_norm.weight": "mlp_norm",
    "ffn_gate.weight": "gate",
    "ffn_up.weight": "up",
    "ffn_down.weight": "down",
    "ffn_gate.bias": "gate_bias",
    "ffn_up.bias": "up_bias",
    "ffn_down.bias": "down_bias",
}
_BLOCK = re.compile(r"^blk\.(\d{1,6})\.(.+)$")
_ROPE_FACTORS = "rope_freqs.weight"
# Keys below the architecture's prefix that are understood, or are about training and change nothing. Any other key may
# change the arithmetic, so it is refused by name.
_READ_KEYS = frozenset(
    {
        "context_length",
        "embedding_length",
        "block_count",
        "feed_forward_length",
        "vocab_size",
        "expert_count",
        "expert_used_count",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "attention.layer_norm_rms_epsilon",
        "attention.sliding_window",
        "rope.dimension_count",
        "rope.freq_base",
        "rope.scaling.type",
        "rope.scaling.factor",
        "rope.scale_linear",
        "rope.scaling.original_context_length",
        "rope.scaling.finetuned",
    }
)


def read_config(file: GGUFFile) -> ModelConfig:
    """The configuration that metadata and tensor names describe.

    Raises `UnknownArchitecture` naming the key and value that the decoder does not implement, `ModelLoadError` for a
    value that is missing or makes no sense.
    """
    source = str(file.parts[0])
    name = file.metadata.typed("general.architecture", str)
    architecture = next((known for known in _ARCHITECTURES if known == name), None)
    if architecture is None:
        raise UnknownArchitecture(
            f"{source}: general.architecture is {name!r}; implemented are {', '.join(_ARCHITECTURES)} "
            "(Mistral files say llama)"
        )
    prefix = f"{architecture}."
    values = {key.removeprefix(prefix): value for key, value in file.metadata.items() if key.startswith(prefix)}
    fields = Fields(
        {key: _uniform(value, prefix + key, source) for key, value in values.items()}, f"{source}: {prefix}*"
    )
    for key in values:
        if key not in _READ_KEYS:
            raise UnknownArchitecture(f"{source}: {prefix}{key} = {fields.get(key)!r} is not implemented")
    for key in ("expert_count", "expert_used_count"):
        if fields.optional_integer(key, low=0):
            raise UnknownArchitecture(
                f"{source}: {prefix}{key} = {fields.get(key)}: mixture of experts is not implemented"
            )
    heads, hidden = fields.integer("attention.head_count"), fields.integer("embedding_length")
    head_dim = _head_dim(fields, hidden, heads)
    context = fields.integer("context_length")
    window = _sliding_window(fields, architecture, context)
    present = set(file.tensor_names)
    return ModelConfig(
        architecture="mistral" if architecture == "llama" and window else architecture,
        vocab_size=_vocab_size(file, fields),
        hidden_size=hidden,
        intermediate_size=fields.integer("feed_forward_length"),
        num_layers=fields.integer("block_count"),
        num_heads=heads,
        num_kv_heads=_kv_heads(fields, heads),
        head_dim=head_dim,
        context_length=context,
        rms_norm_eps=fields.number("attention.layer_norm_rms_epsilon"),
        rope_theta=fields.number("rope.freq_base", 10000.0),
        rope_scaling=_rope_scaling(file, fields, head_dim),
        tied_head="output.weight" not in present,
        bias_qkv="blk.0.attn_q.bias" in present,
        bias_o="blk.0.attn_output.bias" in present,
        bias_mlp="blk.0.ffn_down.bias" in present,
        qk_norm="blk.0.attn_q_norm.weight" in present,
        sliding_window=window,
    )


def _uniform(value: Any, key: str, source: str) -> Any:
    """A per-layer array whose entries are all equal as the one number it is."""
    if not isinstance(value, np.ndarray):
        return value
    if len(value) == 0 or (value != value[0]).any():
        raise UnknownArchitecture(f"{source}: {key} differs from layer to layer ({value.tolist()[:8]}...)")
    return value[0].item()


def _vocab_size(file: GGUFFile, fields: Fields) -> int:
    stated = fields.optional_integer("vocab_size")
    tokens = file.metadata.strings("tokenizer.ggml.tokens")
    if stated is None and tokens is None:
        raise ModelLoadError(f"{fields.source}: neither vocab_size nor tokenizer.ggml.tokens is there")
    if tokens is not None and stated is not None and stated != len(tokens):
        raise ModelLoadError(f"{fields.source}: vocab_size is {stated}, but there are {len(tokens)} tokens")
    return stated if tokens is None and stated is not None else len(tokens or ())


def _kv_heads(fields: Fields, heads: int) -> int:
    kv_heads = fields.integer("attention.head_count_kv", heads)
    if heads % kv_heads:
        raise ModelLoadError(f"{fields.source}: {heads} heads cannot share {kv_heads} KV heads evenly")
    return kv_heads


def _head_dim(fields: Fields, hidden: int, heads: int) -> int:
    head_dim = fields.integer("attention.key_length", hidden // heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        if fields.integer(key, head_dim) != head_dim:
            raise UnknownArchitecture(
                f"{fields.source}: {key} = {fields.get(key)} differs from the head's {head_dim} dimensions"
            )
    if head_dim < 2 or head_dim % 2:
        raise UnknownArchitecture(f"{fields.source}: a head of {head_dim} dimensions has no rotary pairs")
    return head_dim


def _sliding_window(fields: Fields, architecture: str, context: int) -> int | None:
    window = fields.optional_integer("attention.sliding_window", low=0)
    if not window or window >= context:
        return None
    if architecture != "llama":  # such a model uses it in some layers only, and the file does not say in which
        raise UnknownArchitecture(
            f"{fields.source}: attention.sliding_window = {window} is not implemented for {architecture}"
        )
    return window


def _rope_scaling(file: GGUFFile, fields: Fields, head_dim: int) -> RopeScaling:
    kind = fields.get("rope.scaling.type")
    factor = fields.number("rope.scaling.factor", fields.number("rope.scale_linear", 1.0))
    if kind not in (None, "none", "linear"):
        raise UnknownArchitecture(f"{fields.source}: rope.scaling.type = {kind!r} is not implemented")
    linear = kind != "none" and factor != 1.0
    if _ROPE_FACTORS not in file:
        return RopeScaling("linear", factor) if linear else RopeScaling()
    if linear:
        raise UnknownArchitecture(
            f"{fields.source}: {_ROPE_FACTORS} together with rope.scaling.factor is not implemented"
        )
    tensor = file.tensor(_ROPE_FACTORS)
    check_shape((head_dim // 2,), tensor.shape, _ROPE_FACTORS, str(file.parts[0]))
    factors = tuple(tensor.dequantize().tolist())
    if not all(0 < factor < float("inf") for factor in factors):
        raise ModelLoadError(f"{fields.source}: {_ROPE_FACTORS} holds a factor that is not above 0")
    return RopeScaling("factors", frequency_factors=factors)


def canonical_names(file: GGUFFile) -> dict[str, str]:
    """Canonical weight name -> the file's tensor name; raises `ModelLoadError` naming a tensor that has no place."""
    names: dict[str, str] = {}
    unknown = []
    for own in file.tensor_names:
        match = _BLOCK.match(own)
        if own in _TOP:
            names[_TOP[own]] = own
        elif match and match[2] in _LAYER:
            names[f"layers.{int(match[1])}.{_LAYER[match[2]]}"] = own
        elif own != _ROPE_FACTORS:
            unknown.append(own)
    if unknown:
        raise unknown_tensors(unknown, str(file.parts[0]))
    return names


def half_rotation_rows(heads: int, head_dim: int) -> npt.NDArray[np.intp]:
    """Row order that turns a llama file's q or k into half-rotation order: ``w[half_rotation_rows(heads, head_dim)]``.

    Such files interleave the two halves of each head (pairs of RoPE side by side); rows are whole, so the same order
    applies to raw blocks.
    """
    rows = np.arange(heads * head_dim).reshape(heads, head_dim // 2, 2)
    return np.ascontiguousarray(rows.swapaxes(1, 2)).reshape(-1)


def row_order(file: GGUFFile, config: ModelConfig, name: str) -> npt.NDArray[np.intp] | None:
    """Order in which the rows of the file's tensor make the canonical weight ``name``; None where they are in order."""
    if file.metadata.typed("general.architecture", str) != "llama":
        return None
    part = name.rpartition(".")[2]
    if part in ("q", "q_bias"):
        return half_rotation_rows(config.num_heads, config.head_dim)
    if part in ("k", "k_bias"):
        return half_rotation_rows(config.num_kv_heads, config.head_dim)
    return None
