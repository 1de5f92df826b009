"""Whole models in GGUF files: configuration, weights and what is refused by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from radixserve.errors import ModelLoadError, UnknownArchitecture, UnknownTokenizer
from radixserve.model.config import Architecture
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
    ],
)
def test_what_is_not_implemented_is_refused_by_name(
    changes: dict[str, object], error: type[Exception], message: str, tmp_path: Path
) -> None:
    path = write_model(tmp_path / "m.gguf", tiny_decoder(vocab_size=262), changes)
    with pytest.raises(error, match=message):
        load_model(str(path))


def test_the_embedded_model(smollm2: LoadedModel) -> None:
    config = smollm2.config
    assert (config.architecture, config.num_layers, config.hidden_size) == ("llama", 30, 576)
    assert (config.num_heads, config.num_kv_heads, config.head_dim, config.vocab_size) == (9, 3, 64, 49152)
    assert config.tied_head and config.context_length == 8192
    name = smollm2.tokenizer.token_name
    assert [name(token) for token in smollm2.generation.eos_ids] == ["<|im_end|>", "<|endoftext|>"]
