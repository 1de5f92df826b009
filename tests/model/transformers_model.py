"""The same weights in ``transformers``, the reference of the parity tests."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import transformers

from radixserve.model.config import ModelConfig

_LAYER_NAMES = {
    "attn_norm": "input_layernorm.weight",
    "mlp_norm": "post_attention_layernorm.weight",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
    **{f"{name}": f"self_attn.{name}_proj.weight" for name in "qkvo"},
    **{f"{name}_bias": f"self_attn.{name}_proj.bias" for name in "qkvo"},
    **{f"{name}": f"mlp.{name}_proj.weight" for name in ("gate", "up", "down")},
    **{f"{name}_bias": f"mlp.{name}_proj.bias" for name in ("gate", "up", "down")},
}


def transformers_model(config: ModelConfig, weights: Mapping[str, torch.Tensor]) -> transformers.PreTrainedModel:
    """A float32 model with eager attention, built in code; every weight must find its place."""
    options: dict[str, object] = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.context_length,
        "rms_norm_eps": config.rms_norm_eps,
        "tie_word_embeddings": config.tied_head,
        "attn_implementation": "eager",
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    scaling = config.rope_scaling
    rope: dict[str, object] = {"rope_type": "default", "rope_theta": config.rope_theta}
    if scaling.kind == "linear":
        rope |= {"rope_type": "linear", "factor": scaling.factor}
    elif scaling.kind == "llama3":
        rope |= {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_position_embeddings": scaling.original_context,
        }
    options["rope_parameters"] = rope
    if config.architecture == "mistral":
        options["sliding_window"] = config.sliding_window
    if config.architecture == "llama":
        options |= {"attention_bias": config.bias_qkv, "mlp_bias": config.bias_mlp}
    if config.architecture in ("qwen2", "qwen3") and config.sliding_window is not None:
        layers = range(config.num_layers) if config.sliding_layers is None else config.sliding_layers
        options |= {
            "use_sliding_window": True,
            "sliding_window": config.sliding_window,
            "layer_types": [
                "sliding_attention" if layer in layers else "full_attention" for layer in range(config.num_layers)
            ],
        }
    config_class, model_class = {
        "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
        "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM),
        "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
        "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
    }[config.architecture]
    model = model_class(config_class(**options)).float()
    state = {
        "model.embed_tokens.weight": weights["embed"],
        "model.norm.weight": weights["final_norm"],
        "lm_head.weight": weights["embed" if config.tied_head else "head"],
    }
    for name, tensor in weights.items():
        if name.startswith("layers."):
            _, layer, part = name.split(".")
            state[f"model.layers.{layer}.{_LAYER_NAMES[part]}"] = tensor
    model.load_state_dict({name: tensor.float() for name, tensor in state.items()}, strict=True)
    return model.eval()
