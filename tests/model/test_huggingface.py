"""Hugging Face directories: written by `transformers`, read by our loader; every refusal names its field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from radixserve.errors import ModelLoadError, ModelNotFound, UnknownArchitecture, UnknownTokenizer
from radixserve.messages import SamplingParams
from radixserve.model.config import Architecture
from radixserve.model.loader import load_model
from tests.model.transformers_model import transformers_model
from tests.tiny_decoder import ARCHITECTURES, tiny_decoder
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


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("shard", ["1GB", "30KB"])
def test_a_model_comes_back_as_it_was(architecture: Architecture, shard: str, tmp_path: Path) -> None:
    path = write_directory(tmp_path, architecture, shard)
    assert (len(list(path.glob("*.safetensors"))) > 1) == (shard == "30KB")
    model = tiny_decoder(architecture, vocab_size=VOCAB_SIZE, context_length=512)
    loaded = load_model(str(path), dtype=torch.float32)
    assert loaded.config == model.config
    assert loaded.weights.keys() == model.weights.keys()
    for name, weight in model.weights.items():
        assert (loaded.weights[name] == weight).all(), name
    assert loaded.generation.eos_ids == (259, 257) and loaded.generation.top_k == 5
    assert loaded.tokenizer.encode("aé</s>") == [97, 0xC3, 0xA9, 257]
    assert loaded.chat_template is None
    half = load_model(str(path), dtype=torch.bfloat16)
    assert half.weights["embed"].dtype is torch.bfloat16 and half.weights["final_norm"].dtype is torch.float32
    assert half.fingerprint != loaded.fingerprint


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_directory(tmp_path)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model_type": "mamba"}, "model_type is 'mamba'"),
        ({"model_type": None}, "model_type is None"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config"),
        ({"num_local_experts": 8}, "num_local_experts"),
        ({"vision_config": {}}, "vision_config"),
        ({"rope_parameters": None, "rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "yarn"),
        ({"rope_parameters": None, "rope_scaling": {"type": "dynamic", "factor": 2.0}}, "dynamic"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ],
)
def test_other_architectures_are_refused_by_field(directory: Path, values: dict[str, Any], message: str) -> None:
    change(directory / "config.json", **values)
    with pytest.raises(UnknownArchitecture, match=message):
        load_model(str(directory))


def test_damaged_directories_are_refused(directory: Path) -> None:
    config, tokenizer = directory / "config.json", directory / "tokenizer.json"
    held = tokenizer.read_text()
    change(tokenizer, model={"type": "Unigram", "vocab": []})
    with pytest.raises(UnknownTokenizer, match="'Unigram'"):
        load_model(str(directory))
    tokenizer.unlink()
    with pytest.raises(ModelNotFound, match=r"tokenizer\.json"):
        load_model(str(directory))
    tokenizer.write_text(held)
    change(config, num_hidden_layers=3)
    with pytest.raises(ModelLoadError, match=r"layers\.2"):
        load_model(str(directory))
    change(config, num_hidden_layers=2, intermediate_size=80)
    with pytest.raises(ModelLoadError, match="the configuration asks for"):
        load_model(str(directory))
    change(config, intermediate_size=-1)
    with pytest.raises(ModelLoadError, match="intermediate_size"):
        load_model(str(directory))
    config.write_text("{")
    with pytest.raises(ModelLoadError, match=r"config\.json"):
        load_model(str(directory))
    config.unlink()
    with pytest.raises(ModelNotFound, match=r"config\.json"):
        load_model(str(directory))


def test_missing_weights_are_named(directory: Path) -> None:
    (directory / "model.safetensors").unlink()
    with pytest.raises(ModelNotFound, match=r"model\.safetensors"):
        load_model(str(directory))
    write_json(directory / "model.safetensors.index.json", {"weight_map": {"a": "../elsewhere.safetensors"}})
    with pytest.raises(ModelLoadError, match="beside it"):
        load_model(str(directory))
    write_json(directory / "model.safetensors.index.json", {"weight_map": {"a": "gone.safetensors"}})
    with pytest.raises(ModelNotFound, match=r"gone\.safetensors"):
        load_model(str(directory))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"do_sample": False, "temperature": 0.7}, {"temperature": 0.0}),
        ({"do_sample": True, "temperature": 0.7, "top_p": 0.8}, {"temperature": 0.7, "top_p": 0.8}),
        ({"repetition_penalty": 1.1, "max_new_tokens": 9}, {"repetition_penalty": 1.1, "max_tokens": 9}),
    ],
)
def test_sampling_defaults(directory: Path, values: dict[str, Any], expected: dict[str, Any]) -> None:
    write_json(directory / "generation_config.json", values)
    generation = load_model(str(directory)).generation
    fields = SamplingParams(**expected)
    for name in expected:
        assert getattr(generation, name) == getattr(fields, name)
    assert generation.eos_ids == (257,), "the end token of config.json"


def test_bad_sampling_defaults_are_named(directory: Path) -> None:
    write_json(directory / "generation_config.json", {"temperature": "hot"})
    with pytest.raises(ModelLoadError, match="temperature"):
        load_model(str(directory))


def test_chat_templates_are_found_wherever_they_are(directory: Path) -> None:
    message = [{"role": "user", "content": "x"}]

    def rendered() -> str:
        template = load_model(str(directory)).chat_template
        assert template is not None
        return template.render(message)

    config = directory / "tokenizer_config.json"
    change(config, chat_template="config {{ bos_token }}")
    assert rendered() == "config <s>"
    change(config, chat_template=[{"name": "tool", "template": "t"}, {"name": "default", "template": "named"}])
    assert rendered() == "named"
    write_json(directory / "chat_template.json", {"chat_template": "json"})
    assert rendered() == "json"
    (directory / "chat_template.jinja").write_text("jinja {{ eos_token }}")
    assert rendered() == "jinja </s>"
    (directory / "chat_template.jinja").write_text("{% if %}")
    with pytest.raises(ModelLoadError, match="does not compile"):
        rendered()
