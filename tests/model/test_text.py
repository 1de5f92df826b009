"""The text side of a model is the same without its weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from radixserve.errors import ModelLoadError, ModelNotFound, UnknownTokenizer
from radixserve.messages import SamplingParams
from radixserve.model.generation_config import GenerationDefaults
from radixserve.model.loader import LoadedModel, load_model
from radixserve.model.text import TextModel, load_text_model
from tests.model.gguf_files import write_model
from tests.model.huggingface_files import write_directory
from tests.tiny_decoder import tiny_decoder

TEXT = "Once upon a time, the end.<|im_end|>"
MESSAGES = [{"role": "user", "content": "hello"}]


def assert_same(text: TextModel, model: LoadedModel) -> None:
    assert (text.name, text.source, text.generation) == (model.name, model.source, model.generation)
    assert text.tokenizer.encode(TEXT, add_special=True) == model.tokenizer.encode(TEXT, add_special=True)
    assert text.tokenizer.special == model.tokenizer.special
    assert text.tokenizer.vocab_size == model.tokenizer.vocab_size == model.config.vocab_size
    assert text.tokenizer.all_token_bytes() == model.tokenizer.all_token_bytes()
    assert (text.chat_template is None) == (model.chat_template is None)
    if text.chat_template is not None and model.chat_template is not None:
        assert text.chat_template.render(MESSAGES) == model.chat_template.render(MESSAGES)


def test_the_embedded_model(smollm2: LoadedModel) -> None:
    assert_same(load_text_model("smollm2"), smollm2)


def test_a_gguf_file(tmp_path: Path) -> None:
    path = str(write_model(tmp_path / "m.gguf", tiny_decoder(vocab_size=270)))
    assert_same(load_text_model(path), load_model(path, progress=False))


def test_a_directory(tmp_path: Path) -> None:
    path = str(write_directory(tmp_path))
    assert_same(load_text_model(path), load_model(path, progress=False))
    (tmp_path / "model.safetensors").unlink()
    assert load_text_model(path).generation.top_k == 5, "no weights are needed"


def test_a_number_of_logits_that_is_known(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", tiny_decoder(vocab_size=270))
    for name in (str(path), str(write_directory(tmp_path / "directory"))):
        assert load_text_model(name, vocab_size=300).tokenizer.vocab_size == 300


@pytest.mark.parametrize(
    ("changes", "error"),
    [({"tokenizer.ggml.tokens": None}, UnknownTokenizer), ({"tokenizer.ggml.merges": None}, ModelLoadError)],
)
def test_what_cannot_be_read(tmp_path: Path, changes: dict[str, None], error: type[ModelLoadError]) -> None:
    path = write_model(tmp_path / "m.gguf", tiny_decoder(vocab_size=262), changes)
    with pytest.raises(error):
        load_text_model(str(path))
    with pytest.raises(ModelNotFound, match="holds no config"):
        load_text_model(str(tmp_path))


def test_defaults_as_sampling_parameters() -> None:
    assert GenerationDefaults().sampling() == SamplingParams()
    defaults = GenerationDefaults(eos_ids=(1,), temperature=0.0, top_k=5, max_tokens=7)
    assert defaults.sampling() == SamplingParams(temperature=0.0, top_k=5, max_tokens=7)


def test_whoever_asks_is_told_of_the_progress(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", tiny_decoder(vocab_size=262))
    told: list[tuple[str, int, int]] = []
    load_model(str(path), progress=lambda *facts: told.append(facts))
    assert {text for text, _, _ in told} == {"loading m.gguf"}
    done = [done for _, done, _ in told]
    assert done == sorted(done) and 0 < done[-1] <= told[0][2]
