"""Whole models in GGUF files: configuration, weights and what is refused by name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers.modeling_gguf_pytorch_utils import LlamaTensorProcessor

from radixserve.errors import ModelLoadError, UnknownArchitecture, UnknownTokenizer
from radixserve.model import gguf_weights
from radixserve.model.config import Architecture, ModelConfig, RopeScaling
from radixserve.model.gguf_model import half_rotation_rows
from radixserve.model.loader import LoadedModel, load_model
from tests.model.gguf_files import interleave, write_model
from tests.tiny_decoder import ARCHITECTURES, tiny_decoder


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_model_comes_back_as_it_was(architecture: Architecture, tmp_path: Path) -> None:
    # The format holds the epsilon as a float32.
    model = tiny_decoder(architecture, vocab_size=262, context_length=512, rms_norm_eps=2.0**-17)
    loaded = load_model(str(write_model(tmp_path / "m.gguf", model)), dtype=model.weights["embed"].dtype)
    assert loaded.config == model.config
    assert loaded.weights.keys() == model.weights.keys()
    for name, weight in model.weights.items():
        assert (loaded.weights[name] == weight).all(), name
    assert loaded.generation.eos_ids[0] == 257
    assert loaded.tokenizer.encode("the th") == [260, 32, 259]
    assert loaded.tokenizer.encode("12") == [ord("1"), ord("2")]
    assert loaded.chat_template is not None
    assert loaded.chat_template.render([{"role": "user", "content": "hi"}]) == "hi</s>"


def test_llama_files_interleave_the_halves_of_a_head() -> None:
    heads, head_dim = 2, 4
    weight = np.arange(heads * head_dim, dtype=np.float32)[:, None]
    assert interleave(weight, heads)[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"general.architecture": "mamba"}, UnknownArchitecture, "'mamba'"),
        ({"llama.expert_count": 8}, UnknownArchitecture, "mixture of experts"),
        ({"llama.rope.scaling.type": "yarn"}, UnknownArchitecture, "'yarn'"),
        ({"llama.attention.logit_softcap": 30.0}, UnknownArchitecture, "logit_softcap"),
        ({"llama.attention.value_length": 8}, UnknownArchitecture, "value_length"),
        ({"tokenizer.ggml.pre": "klingon"}, UnknownTokenizer, "'klingon'"),
        ({"tokenizer.ggml.pre": None}, UnknownTokenizer, "None"),
        ({"tokenizer.ggml.model": "bert"}, UnknownTokenizer, "'bert'"),
        ({"llama.block_count": 3}, ModelLoadError, "layers.2"),
        ({"llama.block_count": 1}, ModelLoadError, "blk.1"),
        ({"llama.embedding_length": 64}, ModelLoadError, "token_embd.weight"),
        ({"llama.attention.head_count_kv": 4}, ModelLoadError, "6 heads cannot share 4"),
        ({"llama.context_length": None}, ModelLoadError, "context_length"),
        ({"llama.context_length": "long"}, ModelLoadError, "context_length"),
        ({"llama.attention.head_count": [6, 4]}, UnknownArchitecture, "head_count differs from layer to layer"),
        ({"llama.rope.dimension_count": 8}, UnknownArchitecture, "rope.dimension_count = 8"),
        ({"llama.attention.scale": 0.5}, UnknownArchitecture, "llama.attention.scale = 0.5"),
        ({"llama.vocab_size": 300}, ModelLoadError, "vocab_size is 300, but there are 262 tokens"),
        ({"llama.block_count": 2**31}, ModelLoadError, "2147483648 layers are announced"),
        ({"llama.attention.layer_norm_rms_epsilon": 0.0}, ModelLoadError, "layer_norm_rms_epsilon must be above 0"),
        ({"llama.rope.freq_base": float("nan")}, ModelLoadError, "rope.freq_base must be a finite number"),
        ({"tokenizer.ggml.tokens": None}, ModelLoadError, "neither vocab_size nor tokenizer.ggml.tokens"),
        ({"tokenizer.ggml.tokens": None, "llama.vocab_size": 262}, UnknownTokenizer, "holds no tokenizer"),
        ({"tokenizer.chat_template": "{% if %}"}, ModelLoadError, "chat template does not compile"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(
    changes: dict[str, object], error: type[Exception], message: str, tmp_path: Path
) -> None:
    path = write_model(tmp_path / "m.gguf", tiny_decoder(vocab_size=262), changes)
    with pytest.raises(error, match=message):
        load_model(str(path))


SIZES: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "vocab_size": 262}


@pytest.mark.parametrize("kind", [gguf.GGMLQuantizationType[name] for name in ("F16", "BF16", "Q8_0", "Q4_0", "Q5_1")])
def test_quantized_matrices(kind: gguf.GGMLQuantizationType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_decoder("llama", **SIZES)
    path = write_model(tmp_path / "m.gguf", model, kind=kind)
    monkeypatch.setattr(gguf_weights, "_CHUNK_ELEMENTS", 1000)  # several pieces a matrix, the last one short
    for dtype in (torch.float32, torch.bfloat16):
        weights = load_model(str(path), dtype=dtype).weights
        assert weights.keys() == model.weights.keys()
        for name, weight in model.weights.items():
            if weight.ndim == 1:
                assert weights[name].dtype == torch.float32 and (weights[name] == weight).all()
                continue
            rounded = gguf.quants.dequantize(gguf.quants.quantize(weight.numpy(), kind), kind)
            expected = torch.from_numpy(rounded.astype(np.float32)).to(dtype)
            assert weights[name].dtype == dtype and (weights[name] == expected).all(), name


def test_rows_of_llama_files_are_put_back_as_transformers_does() -> None:
    weight = np.random.default_rng(0).standard_normal((6 * 16, 5), np.float32)
    for heads in (6, 2):
        part = weight[: heads * 16]
        processor = LlamaTensorProcessor({"num_attention_heads": 6, "num_key_value_heads": 2})
        theirs = processor.process(part, f"blk.0.attn_{'q' if heads == 6 else 'k'}.weight").weights
        assert (part[half_rotation_rows(heads, 16)] == theirs).all()
        assert (interleave(theirs, heads) == part).all()


def test_biases_of_q_and_k_are_put_back_with_their_rows(tmp_path: Path) -> None:
    model = tiny_decoder("llama", vocab_size=262, bias_qkv=True)
    stored = tiny_decoder("llama", vocab_size=262, bias_qkv=True)
    for name, weight in stored.weights.items():
        heads = {"q_bias": 6, "k_bias": 2}.get(name.rpartition(".")[2])
        if heads:
            stored.weights[name] = torch.from_numpy(interleave(weight[:, None].numpy(), heads)[:, 0])
    loaded = load_model(str(write_model(tmp_path / "m.gguf", stored)), dtype=torch.float32)
    assert loaded.config.bias_qkv and not loaded.config.bias_o
    for name, weight in model.weights.items():
        assert (loaded.weights[name] == weight).all(), name


FACTORS = np.linspace(1, 4, 8, dtype=np.float32)


def config_of(path: Path, changes: Mapping[str, object], factors: np.ndarray[Any, Any] | None = None) -> ModelConfig:
    more = {} if factors is None else {"rope_freqs.weight": factors}
    write_model(path / "m.gguf", tiny_decoder(vocab_size=262), changes, more=more)
    return load_model(str(path / "m.gguf")).config


def test_rotary_scaling(tmp_path: Path) -> None:
    kind, factor = "llama.rope.scaling.type", "llama.rope.scaling.factor"
    plain: list[dict[str, object]] = [{}, {kind: "none", factor: 4.0}, {kind: "linear", factor: 1.0}]
    for changes in plain:
        assert config_of(tmp_path, changes).rope_scaling == RopeScaling()
    linear: list[dict[str, object]] = [{kind: "linear", factor: 4.0}, {factor: 4.0}, {"llama.rope.scale_linear": 4.0}]
    for changes in linear:
        assert config_of(tmp_path, changes).rope_scaling == RopeScaling("linear", 4.0)
    scaling = config_of(tmp_path, {}, FACTORS).rope_scaling
    assert scaling == RopeScaling("factors", frequency_factors=tuple(FACTORS.tolist()))
    assert config_of(tmp_path, {"llama.rope.freq_base": 5e5}).rope_theta == 5e5
    with pytest.raises(UnknownArchitecture, match="together with"):
        config_of(tmp_path, {factor: 4.0}, FACTORS)
    with pytest.raises(ModelLoadError, match=r"rope_freqs.weight is \[7\]"):
        config_of(tmp_path, {}, FACTORS[1:])
    for bad in (0.0, np.nan, np.inf, -1.0):
        with pytest.raises(ModelLoadError, match="a factor that is not above 0"):
            config_of(tmp_path, {}, np.full(8, bad, np.float32))


def test_sliding_windows(tmp_path: Path) -> None:
    key = "llama.attention.sliding_window"
    windowed = config_of(tmp_path, {key: 100})
    assert (windowed.architecture, windowed.sliding_window) == ("mistral", 100)
    for width in (0, 4096, 9999):
        config = config_of(tmp_path, {key: width})
        assert (config.architecture, config.sliding_window) == ("llama", None), "a window of the whole context is none"
    path = write_model(
        tmp_path / "q.gguf", tiny_decoder("qwen2", vocab_size=262), {"qwen2.attention.sliding_window": 99}
    )
    with pytest.raises(UnknownArchitecture, match="sliding_window = 99 is not implemented for qwen2"):
        load_model(str(path))


def test_fields_that_files_may_leave_out_or_repeat(tmp_path: Path) -> None:
    config = config_of(tmp_path, {"llama.attention.head_count_kv": [2, 2], "llama.expert_count": 0})
    assert config == config_of(tmp_path, {}) and config.num_kv_heads == 2
    path = write_model(
        tmp_path / "m.gguf",
        tiny_decoder(vocab_size=262, head_dim=8, num_kv_heads=6),
        dict.fromkeys(
            f"llama.{key}"
            for key in (
                "attention.key_length",
                "attention.value_length",
                "rope.dimension_count",
                "attention.head_count_kv",
                "rope.freq_base",
            )
        ),
    )
    config = load_model(str(path)).config
    assert (config.head_dim, config.num_kv_heads, config.rope_theta) == (8, 6, 10000.0)


@pytest.mark.parametrize("name", ["blk.0.attn_sinks.weight", "blk.x.attn_q.weight", "position_embd.weight"])
def test_tensors_without_a_place_are_named(name: str, tmp_path: Path) -> None:
    more = {name: np.ones(3, np.float32), "rope_freqs.weight": FACTORS}
    path = write_model(tmp_path / "m.gguf", tiny_decoder(vocab_size=262), more=more)
    with pytest.raises(ModelLoadError, match=f"tensor {re.escape(name)} is not part of this architecture"):
        load_model(str(path))


def test_the_embedded_model(smollm2: LoadedModel) -> None:
    config = smollm2.config
    assert (config.architecture, config.num_layers, config.hidden_size) == ("llama", 30, 576)
    assert (config.num_heads, config.num_kv_heads, config.head_dim, config.vocab_size) == (9, 3, 64, 49152)
    assert config.tied_head and config.context_length == 8192
    name = smollm2.tokenizer.token_name
    assert [name(token) for token in smollm2.generation.eos_ids] == ["<|im_end|>", "<|endoftext|>"]
