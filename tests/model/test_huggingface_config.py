"""``config.json`` against the library that writes it: defaults, variants, and what is refused by field."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import AutoConfig

from radixserve.errors import ModelLoadError, UnknownArchitecture
from radixserve.model.config import Architecture, ModelConfig, RopeScaling
from radixserve.model.huggingface_config import parse_config
from tests.tiny_decoder import ARCHITECTURES

SIZES: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def parse(model_type: str, **values: Any) -> ModelConfig:
    return parse_config({"model_type": model_type, **SIZES, **values}, "config.json")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(
    "values",
    [
        {},
        {"head_dim": 32},
        {"attention_bias": True, "mlp_bias": True},
        {"tie_word_embeddings": True},
        {"sliding_window": 7},
        {"sliding_window": None},
        {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1},
        {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 0},
        {"use_sliding_window": True, "sliding_window": 7},
        {"use_sliding_window": True, "sliding_window": None, "max_window_layers": 1},
        {"use_sliding_window": True},
        {
            "use_sliding_window": True,
            "sliding_window": 7,
            "layer_types": ["sliding_attention", "full_attention", "full_attention", "sliding_attention"],
        },
        {"rms_norm_eps": 1e-5, "max_position_embeddings": 77},
        {"rope_theta": 5e5},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 3e4}},
    ],
    ids=str,
)
def test_fields_mean_what_they_mean_to_the_library(architecture: Architecture, values: dict[str, Any]) -> None:
    ours = parse(architecture, **values)
    theirs = AutoConfig.for_model(architecture, **{**SIZES, **values})
    assert ours.num_kv_heads == theirs.num_key_value_heads
    assert ours.head_dim == (getattr(theirs, "head_dim", None) or 64 // 4)
    assert ours.context_length == theirs.max_position_embeddings
    assert ours.rms_norm_eps == theirs.rms_norm_eps
    assert ours.rope_theta == theirs.rope_parameters["rope_theta"]
    assert ours.tied_head == theirs.tie_word_embeddings
    assert ours.bias_mlp == bool(getattr(theirs, "mlp_bias", False) and architecture == "llama")
    own_bias = architecture in ("llama", "qwen3") and theirs.attention_bias
    assert (ours.bias_qkv, ours.bias_o) == (architecture == "qwen2" or own_bias, own_bias)
    windows = [None] * 4
    if architecture == "mistral":
        windows = [theirs.sliding_window] * 4
    elif architecture != "llama":
        sliding = [kind == "sliding_attention" for kind in theirs.layer_types]
        windows = [theirs.sliding_window if slides else None for slides in sliding]
    layers = range(4) if ours.sliding_layers is None else ours.sliding_layers
    assert [ours.sliding_window if layer in layers else None for layer in range(4)] == windows


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_files_may_leave_out_what_the_library_knows(architecture: Architecture) -> None:
    sizes = {**SIZES, "hidden_size": 256, "num_attention_heads": 32}
    del sizes["num_key_value_heads"]
    ours = parse_config({"model_type": architecture, **sizes}, "config.json")
    theirs = AutoConfig.for_model(architecture, **sizes)
    assert ours.num_kv_heads == theirs.num_key_value_heads
    assert ours.head_dim == (getattr(theirs, "head_dim", None) or 256 // 32)


def test_no_number_of_key_value_heads_means_one_for_each_head() -> None:
    theirs = AutoConfig.for_model("llama", **{**SIZES, "num_key_value_heads": None})
    assert parse("llama", num_key_value_heads=None).num_kv_heads == theirs.num_key_value_heads == 4


@pytest.mark.parametrize(
    ("values", "theta", "scaling"),
    [
        ({"rope_theta": 2e4, "rope_scaling": None}, 2e4, RopeScaling()),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, 1e4, RopeScaling("linear", 2.0)),
        ({"rope_theta": 5e5, "rope_scaling": LLAMA3}, 5e5, RopeScaling("llama3", 8.0, 1.0, 4.0, 8192)),
        ({"rope_parameters": {"rope_theta": 7e4, **LLAMA3}}, 7e4, RopeScaling("llama3", 8.0, 1.0, 4.0, 8192)),
        ({"rope_parameters": {"rope_type": "linear", "factor": 4.0, "partial_rotary_factor": 1.0}}, 1e4,
         RopeScaling("linear", 4.0)),
    ],
)  # fmt: skip
def test_rotary_scaling(values: dict[str, Any], theta: float, scaling: RopeScaling) -> None:
    config = parse("llama", **values)
    assert (config.rope_theta, config.rope_scaling) == (theta, scaling)


@pytest.mark.parametrize(
    ("model_type", "values", "message"),
    [
        ("mamba", {}, "model_type is 'mamba'"),
        ("qwen3", {"architectures": ["Qwen3MoeForCausalLM"]}, "Qwen3MoeForCausalLM"),
        ("llama", {"architectures": "LlamaForCausalLM"}, "architectures is 'LlamaForCausalLM'"),
        *(
            ("llama", {name: value}, f"{name} = ")
            for name, value in {
                "quantization_config": {"quant_method": "gptq", "note": "x" * 500},
                "vision_config": {},
                "text_config": {},
                "audio_config": {},
                "num_experts": 4,
                "num_local_experts": 4,
                "n_routed_experts": 4,
                "logits_soft_cap": 30.0,
                "attn_logit_softcapping": 50.0,
                "final_logit_softcapping": 30.0,
                "partial_rotary_factor": 0.5,
                "hidden_act": "gelu",
            }.items()
        ),
        ("llama", {"head_dim": 15}, "head_dim = 15"),
        ("llama", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_scaling.rope_type = 'yarn'"),
        ("llama", {"rope_scaling": {"rope_type": ["linear"]}}, "rope_scaling.rope_type ="),
        ("llama", {"rope_scaling": {"type": "longrope"}}, "'longrope'"),
        ("llama", {"rope_parameters": {"rope_type": "default", "mrope_section": [1, 2]}}, "rope_parameters.mrope_section"),
        ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2, "beta_fast": 3}}, "beta_fast = 3"),
        ("llama", {"rope_parameters": {"partial_rotary_factor": 0.25}}, "partial_rotary_factor = 0.25"),
        (
            "qwen3",
            {"use_sliding_window": True, "sliding_window": 7, "layer_types": ["chunked_attention"] * 4},
            "layer_types holds 'chunked_attention'",
        ),
    ],
)  # fmt: skip
def test_variants_that_are_not_implemented_are_named(model_type: str, values: dict[str, Any], message: str) -> None:
    with pytest.raises(UnknownArchitecture, match=message) as caught:
        parse(model_type, **values)
    assert len(str(caught.value)) < 300, "a large value is cut"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"vocab_size": "many"}, "vocab_size must be an integer"),
        ({"vocab_size": True}, "vocab_size must be an integer"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be an integer of at least 1"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers must be at most 10000"),
        ({"num_key_value_heads": 3}, "4 heads cannot share num_key_value_heads = 3"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps must be above 0"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps must be a finite number"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps must be a finite number"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false"),
        ({"rope_scaling": "linear"}, "rope_scaling must be an object"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling: factor is missing"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "factor must be above 0"),
        ({"rope_scaling": {**LLAMA3, "high_freq_factor": 1.0}}, "high_freq_factor must be above low_freq_factor"),
        ({"rope_scaling": {**LLAMA3, "original_max_position_embeddings": None}}, "original_max_position_embeddings"),
    ],
)
def test_fields_that_make_no_sense_are_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        parse("llama", **values)


@pytest.mark.parametrize("kinds", ["sliding_attention", ["full_attention"]])
def test_layer_types_are_one_a_layer(kinds: object) -> None:
    with pytest.raises(ModelLoadError, match="layer_types must have 4 entries"):
        parse("qwen2", use_sliding_window=True, sliding_window=7, layer_types=kinds)
