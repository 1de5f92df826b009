"""Hugging Face directories: written by `transformers`, read by our loader; every refusal names its field."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from radixserve.errors import ModelLoadError, ModelNotFound, UnknownArchitecture, UnknownTensorType, UnknownTokenizer
from radixserve.model.config import Architecture
from radixserve.model.generation_config import GenerationDefaults
from radixserve.model.loader import load_model
from tests.model.huggingface_files import change, write_directory, write_json
from tests.tiny_decoder import ARCHITECTURES, tiny_decoder
from tests.tiny_model import VOCAB_SIZE


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


def test_other_architectures_are_refused_by_file_and_field(directory: Path) -> None:
    change(directory / "config.json", model_type="mamba")
    with pytest.raises(UnknownArchitecture, match=r"config\.json: model_type is 'mamba'"):
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


def rewrite(path: Path, **changes: torch.Tensor | None) -> None:
    """Replace, add or (None) drop tensors of a safetensors file; ``__`` in a name stands for a dot."""
    tensors = load_file(path)
    for name, values in changes.items():
        tensors.pop(name.replace("__", "."), None)
        if values is not None:
            tensors[name.replace("__", ".")] = values
    save_file(tensors, path)


def test_a_tied_model_may_repeat_its_head(tmp_path: Path) -> None:
    path = write_directory(tmp_path, "qwen2")
    file = path / "model.safetensors"
    embed = load_file(file)["model.embed_tokens.weight"]
    rewrite(file, lm_head__weight=embed.clone())
    assert "head" not in load_model(str(path)).weights
    for head in (embed * 2, embed[1:].clone()):
        rewrite(file, lm_head__weight=head)
        with pytest.raises(ModelLoadError, match=r"tie_word_embeddings is true, but lm_head\.weight differs"):
            load_model(str(path))


def test_an_untied_model_needs_its_head(directory: Path) -> None:
    rewrite(directory / "model.safetensors", lm_head__weight=None)
    with pytest.raises(ModelLoadError, match="weight 'head' is missing"):
        load_model(str(directory))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_are_converted(directory: Path, dtype: torch.dtype) -> None:
    file = directory / "model.safetensors"
    held = {name: values.to(dtype) for name, values in load_file(file).items()}
    save_file(held, file)
    weights = load_model(str(directory), dtype=torch.float32).weights
    assert (weights["layers.1.down"] == held["model.layers.1.mlp.down_proj.weight"].float()).all()
    assert all(values.dtype == torch.float32 for values in weights.values())


def test_weights_do_not_change_with_the_file(directory: Path) -> None:
    file = directory / "model.safetensors"
    weights = load_model(str(directory), dtype=torch.float32).weights
    held = {name: values.clone() for name, values in weights.items()}
    size = file.stat().st_size
    with file.open("r+b") as opened:
        opened.seek(size // 4)
        opened.write(bytes(size - size // 4))
    for name, values in held.items():
        assert (weights[name] == values).all(), name


def test_rotary_frequencies_of_old_checkpoints_are_passed_over(directory: Path) -> None:
    rewrite(directory / "model.safetensors", model__layers__0__self_attn__rotary_emb__inv_freq=torch.ones(8))
    assert load_model(str(directory)).config.rope_theta == 10000.0


@pytest.mark.parametrize(
    ("name", "values", "error", "message"),
    [
        ("model.layers.0.mlp.up_proj.weight", torch.ones(72, 48, dtype=torch.int8), UnknownTensorType, "is of type I8"),
        (
            "model.layers.0.mlp.up_proj.weight",
            torch.ones(72, 48).to(torch.float8_e4m3fn),
            UnknownTensorType,
            r"model\.layers\.0\.mlp\.up_proj\.weight is of type F8_E4M3",
        ),
        ("model.layers.0.mlp.up_proj.weight", None, ModelLoadError, r"'layers\.0\.up' is missing \(1 of"),
        ("model.layers.0.mlp.up_proj.qweight", torch.ones(2), ModelLoadError, r"up_proj\.qweight is not part"),
        ("model.layers.2.mlp.up_proj.weight", torch.ones(2), ModelLoadError, r"layers\.2\.mlp\.up_proj\.weight is not part"),
        ("model.layers.0.self_attn.q_proj.bias", torch.ones(96), ModelLoadError, r"q_proj\.bias is not part"),
        ("model.norm.weight", torch.ones(49), ModelLoadError, r"model\.norm\.weight is \[49\].* asks for \[48\]"),
    ],
)  # fmt: skip
def test_tensors_that_do_not_fit_are_named(
    directory: Path, name: str, values: torch.Tensor | None, error: type[Exception], message: str
) -> None:
    rewrite(directory / "model.safetensors", **{name.replace(".", "__"): values})
    with pytest.raises(error, match=message):
        load_model(str(directory))


def test_damaged_weight_files_are_refused(directory: Path) -> None:
    file = directory / "model.safetensors"
    data = file.read_bytes()
    for damaged in (b"", data[:100], data[:-8], b"\xff" * 8 + data[8:]):
        file.write_bytes(damaged)
        with pytest.raises(ModelLoadError, match="cannot be read"):
            load_model(str(directory))


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    path = write_directory(tmp_path, shard="30KB")
    first, second = sorted(path.glob("*.safetensors"))[:2]
    double = next(iter(load_file(first)))
    save_file({**load_file(second), double: load_file(first)[double]}, second)
    with pytest.raises(ModelLoadError, match=f"tensor {double} is in an earlier file too"):
        load_model(str(path))


def test_missing_weights_are_named(directory: Path) -> None:
    (directory / "model.safetensors").unlink()
    with pytest.raises(ModelNotFound, match=r"model\.safetensors"):
        load_model(str(directory))
    write_json(directory / "model.safetensors.index.json", {"weight_map": {"a": "../elsewhere.safetensors"}})
    with pytest.raises(ModelLoadError, match="beside it"):
        load_model(str(directory))
    mappings: list[object] = [{}, [], {"a": 3}, None]
    for mapping in mappings:
        write_json(directory / "model.safetensors.index.json", {"weight_map": mapping})
        with pytest.raises(ModelLoadError, match="weight_map must"):
            load_model(str(directory))
    write_json(directory / "model.safetensors.index.json", {"weight_map": {"a": "gone.safetensors"}})
    with pytest.raises(ModelNotFound, match=r"gone\.safetensors"):
        load_model(str(directory))


@pytest.mark.parametrize(
    ("config", "generation", "tokenizer", "expected"),
    [
        (257, [259, 257], None, (259, 257)),
        (257, None, None, (257,)),
        ([256, 257], 259, None, (259, 256, 257)),
        (None, None, "<|im_end|>", (259,)),
        (257, [257], "<|im_end|>", (257, 259)),
        (999, None, None, ()),
    ],
)
def test_end_tokens_are_gathered_in_order(
    directory: Path, config: object, generation: object, tokenizer: str | None, expected: tuple[int, ...]
) -> None:
    """First those for generating, then the configuration's, then the tokenizer's; none outside the vocabulary."""
    change(directory / "config.json", eos_token_id=config)
    write_json(directory / "generation_config.json", {"eos_token_id": generation})
    write_json(directory / "tokenizer_config.json", {"eos_token": tokenizer})
    model = load_model(str(directory))
    assert model.generation.eos_ids == model.tokenizer.eos_ids == expected


def test_sampling_defaults_come_from_the_directory(directory: Path) -> None:
    write_json(directory / "generation_config.json", {"do_sample": True, "temperature": 0.7, "top_k": 20})
    generation = load_model(str(directory)).generation
    assert (generation.temperature, generation.top_k, generation.eos_ids) == (0.7, 20, (257,))
    (directory / "generation_config.json").unlink()
    assert load_model(str(directory)).generation == GenerationDefaults(eos_ids=(257,))


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
    write_json(directory / "chat_template.json", {})
    (directory / "chat_template.jinja").unlink()
    assert rendered() == "named", "a file without a template is passed over"
    change(config, chat_template=[{"name": "tool", "template": "t"}])
    with pytest.raises(ModelLoadError, match="no entry called default"):
        rendered()
    change(config, chat_template=7)
    with pytest.raises(ModelLoadError, match="must be a text or a list"):
        rendered()
    (directory / "chat_template.jinja").write_text("{% if %}")
    with pytest.raises(ModelLoadError, match="does not compile"):
        rendered()
