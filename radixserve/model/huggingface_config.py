"""``config.json`` of a Hugging Face model directory -> `ModelConfig`, with the defaults of the format's own library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from radixserve.errors import ModelLoadError, UnknownArchitecture
from radixserve.model.config import Architecture, ModelConfig, RopeScaling
from radixserve.model.config_fields import Fields

_MAX_LAYERS = 10_000


@dataclass(frozen=True, slots=True)
class _Family:
    """What a ``model_type`` implies: class name and the defaults of fields that its files may leave out."""

    architecture: Architecture
    class_name: str
    context_length: int
    kv_heads: int | None = None
    head_dim: int | None = None


_FAMILIES = {
    family.architecture: family
    for family in (
        _Family("llama", "LlamaForCausalLM", 2048),
        _Family("mistral", "MistralForCausalLM", 131072, kv_heads=8),
        _Family("qwen2", "Qwen2ForCausalLM", 32768, kv_heads=32),
        _Family("qwen3", "Qwen3ForCausalLM", 32768, kv_heads=32, head_dim=128),
    )
}
# Fields that change what a model computes and that none of the four families has.
_REFUSED = (
    "quantization_config",
    "vision_config",
    "text_config",
    "audio_config",
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "logits_soft_cap",
    "attn_logit_softcapping",
    "final_logit_softcapping",
)
_ROPE_COMMON = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
_ROPE_FIELDS: dict[str, set[str]] = {
    "default": set(),
    "linear": {"factor"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"},
}


def parse_config(values: Mapping[str, Any], source: str) -> ModelConfig:
    """The configuration in ``values``; ``source`` is the file that errors name.

    Raises `UnknownArchitecture` naming the field and value that the decoder does not implement, `ModelLoadError` for a
    field that is missing or makes no sense.
    """
    fields = Fields(values, source)
    family = _family(fields)
    heads, hidden = fields.integer("num_attention_heads"), fields.integer("hidden_size")
    kv_heads = heads
    if "num_key_value_heads" in fields or ("num_key_value_heads" not in values and family.kv_heads):
        kv_heads = fields.integer("num_key_value_heads", family.kv_heads)
    if heads % kv_heads:
        raise ModelLoadError(f"{source}: {heads} heads cannot share num_key_value_heads = {kv_heads} evenly")
    head_dim = fields.integer("head_dim", family.head_dim or hidden // heads)
    if head_dim < 2 or head_dim % 2:
        raise UnknownArchitecture(f"{source}: head_dim = {head_dim} has no rotary pairs")
    layers = fields.integer("num_hidden_layers")
    if layers > _MAX_LAYERS:
        raise fields.error("num_hidden_layers", f"at most {_MAX_LAYERS}")
    architecture = family.architecture
    bias = architecture in ("llama", "qwen3") and fields.flag("attention_bias", False)
    window, sliding_layers = _sliding(fields, architecture, layers)
    theta, scaling = _rope(fields)
    return ModelConfig(
        architecture=architecture,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        context_length=fields.integer("max_position_embeddings", family.context_length),
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope_theta=theta,
        rope_scaling=scaling,
        tied_head=fields.flag("tie_word_embeddings", False),
        bias_qkv=bias or architecture == "qwen2",
        bias_o=bias,
        bias_mlp=architecture == "llama" and fields.flag("mlp_bias", False),
        qk_norm=architecture == "qwen3",
        sliding_window=window,
        sliding_layers=sliding_layers,
    )


def _family(fields: Fields) -> _Family:
    source, model_type = fields.source, fields.get("model_type")
    family = next((known for name, known in _FAMILIES.items() if name == model_type), None)
    if family is None:
        raise UnknownArchitecture(f"{source}: model_type is {model_type!r}; implemented are {', '.join(_FAMILIES)}")
    classes = fields.get("architectures")
    if classes is not None and classes != [family.class_name]:
        raise UnknownArchitecture(f"{source}: architectures is {classes!r}, implemented is [{family.class_name!r}]")
    for name in _REFUSED:
        if name in fields:
            raise UnknownArchitecture(f"{source}: {name} = {_short(fields.get(name))} is not implemented")
    if (activation := fields.get("hidden_act")) not in (None, "silu"):
        raise UnknownArchitecture(f"{source}: hidden_act = {activation!r} is not implemented, only 'silu'")
    if (share := fields.optional_number("partial_rotary_factor")) not in (None, 1.0):
        raise UnknownArchitecture(f"{source}: partial_rotary_factor = {share} is not implemented")
    return family


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."


def _sliding(fields: Fields, architecture: Architecture, layers: int) -> tuple[int | None, tuple[int, ...] | None]:
    """Window and the layers it applies to (None: all).

    Mistral: all layers, and a window of 4096 where the field is not there at all. Qwen: only with ``use_sliding_window``,
    in the layers that ``layer_types`` names, by default those from ``max_window_layers`` on.
    """
    if architecture == "llama":
        return None, None
    if "sliding_window" in fields:
        window: int | None = fields.integer("sliding_window")
    else:
        window = None if "sliding_window" in fields.values else 4096
    if architecture == "mistral":
        return window, None
    if window is None or not fields.flag("use_sliding_window", False):
        return None, None
    first = fields.integer("max_window_layers", 28, low=0)
    sliding = _sliding_layers(fields, layers) if "layer_types" in fields else tuple(range(first, layers))
    return (window, sliding) if sliding else (None, None)


def _sliding_layers(fields: Fields, layers: int) -> tuple[int, ...]:
    kinds = fields.get("layer_types")
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise ModelLoadError(f"{fields.source}: layer_types must have {layers} entries")
    for kind in kinds:
        if kind not in ("full_attention", "sliding_attention"):
            raise UnknownArchitecture(f"{fields.source}: layer_types holds {kind!r}, which is not implemented")
    return tuple(index for index, kind in enumerate(kinds) if kind == "sliding_attention")


def _rope(fields: Fields) -> tuple[float, RopeScaling]:
    """Base and scaling from ``rope_parameters`` (newer files) or from ``rope_theta`` and ``rope_scaling``."""
    place = "rope_parameters" if "rope_parameters" in fields else "rope_scaling"
    values = fields.get(place)
    theta = fields.number("rope_theta", 10000.0)
    if values is None:
        return theta, RopeScaling()
    if not isinstance(values, dict):
        raise fields.error(place, "an object")
    rope = Fields(values, f"{fields.source}: {place}")
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if not isinstance(kind, str) or kind not in _ROPE_FIELDS:
        raise UnknownArchitecture(
            f"{fields.source}: {place}.rope_type = {_short(kind)} is not implemented; implemented are {', '.join(_ROPE_FIELDS)}"
        )
    for name in values:
        if name not in _ROPE_COMMON | _ROPE_FIELDS[kind] and name in rope:
            raise UnknownArchitecture(
                f"{fields.source}: {place}.{name} = {_short(rope.get(name))} is not implemented for {kind!r}"
            )
    if (share := rope.optional_number("partial_rotary_factor")) not in (None, 1.0):
        raise UnknownArchitecture(f"{fields.source}: {place}.partial_rotary_factor = {share} is not implemented")
    theta = rope.number("rope_theta", theta)
    if kind == "linear":
        return theta, RopeScaling("linear", rope.number("factor"))
    if kind == "llama3":
        low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
        if high <= low:
            raise ModelLoadError(f"{fields.source}: {place}.high_freq_factor must be above low_freq_factor, not {high}")
        original = rope.integer("original_max_position_embeddings")
        return theta, RopeScaling("llama3", rope.number("factor"), low, high, original)
    return theta, RopeScaling()
