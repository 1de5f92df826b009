"""The GGUF reader against the `gguf` package, and on files that are damaged or hostile."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from radixserve.errors import ModelLoadError, UnknownArchitecture, UnknownTensorType, UnknownTokenizer
from radixserve.model.config import Architecture
from radixserve.model.gguf import GGUFFile
from radixserve.model.loader import LoadedModel, load_model
from tests.model.gguf_files import interleave, write_file, write_model
from tests.tiny_decoder import ARCHITECTURES, tiny_decoder

METADATA = {"a.text": "grün", "a.number": 7, "a.flag": True, "a.real": 1.5, "a.words": ["x", "", "ü"], "a.ids": [1, 2]}
TENSORS: dict[str, np.ndarray[Any, Any]] = {
    "one": np.arange(12, dtype=np.float32).reshape(3, 4),
    "two": np.arange(5, dtype=np.float16),
}


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.gguf"
    write_file(path, METADATA, TENSORS)
    return path


def test_metadata_and_tensors_equal_the_packages_reader(small: Path) -> None:
    file = GGUFFile.open(small)
    reader = gguf.GGUFReader(small)
    assert file.metadata["general.architecture"] == "llama"
    for key, value in METADATA.items():
        found = file.metadata[key]
        assert (found.tolist() if isinstance(found, np.ndarray) else found) == value
        assert reader.fields[key].contents() == value
    assert file.tensor_names == tuple(tensor.name for tensor in reader.tensors)
    for tensor in reader.tensors:
        ours = file.tensor(tensor.name)
        assert ours.raw.tobytes() == tensor.data.tobytes()
        assert (ours.dequantize() == TENSORS[tensor.name]).all()
    with pytest.raises(ModelLoadError, match="three"):
        file.tensor("three")


def test_every_cut_is_noticed(small: Path, tmp_path: Path) -> None:
    data = small.read_bytes()
    cut = tmp_path / "cut.gguf"
    for length in [*range(1, len(data) - 1, 7), len(data) - 1]:
        cut.write_bytes(data[:length])
        # Padding after the last tensor's data is all that may be missing.
        if length < len(data) - 32:
            with pytest.raises(ModelLoadError):
                GGUFFile.open(cut)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: b"GGML" + data[4:], "not a GGUF file"),
        (lambda data: data[:4] + struct.pack("<I", 9) + data[8:], "version 9"),
        (lambda data: data[:4] + struct.pack(">I", 3) + data[8:], "big-endian"),
        (lambda data: data[:8] + struct.pack("<Q", 2**60) + data[16:], "tensors are announced"),
        (lambda data: data[:16] + struct.pack("<Q", 2**60) + data[24:], "metadata pairs are announced"),
        (lambda data: data[:24] + struct.pack("<Q", 2**63) + data[32:], "cut short or damaged"),
        (lambda data: b"", "cannot be mapped"),
    ],
)
def test_hostile_headers_are_refused(small: Path, damage: object, message: str) -> None:
    assert callable(damage)
    small.write_bytes(damage(small.read_bytes()))
    with pytest.raises(ModelLoadError, match=message):
        GGUFFile.open(small)


def test_a_flipped_byte_never_crashes(small: Path, tmp_path: Path) -> None:
    data = small.read_bytes()
    rng = np.random.default_rng(0)
    path = tmp_path / "flipped.gguf"
    for _ in range(300):
        changed = bytearray(data)
        changed[int(rng.integers(0, 400))] = int(rng.integers(0, 256))
        path.write_bytes(changed)
        try:
            file = GGUFFile.open(path)
        except ModelLoadError:
            continue
        for name in file.tensor_names:
            file.tensor(name).dequantize()


def test_an_unknown_tensor_type_is_named(small: Path, tmp_path: Path) -> None:
    data = small.read_bytes()
    at = data.index(b"one") + 3 + 4 + 2 * 8
    for number, name in ((10, "Q2_K"), (999, "999")):
        path = tmp_path / f"{number}.gguf"
        path.write_bytes(data[:at] + struct.pack("<I", number) + data[at + 4 :])
        with pytest.raises(UnknownTensorType, match=f"tensor one is of .*{name}"):
            GGUFFile.open(path)


def test_split_files_are_one(tmp_path: Path) -> None:
    for number, name in enumerate(("one", "two")):
        extra = {"split.no": number, "split.count": 2, "split.tensors.count": 2}
        write_file(tmp_path / f"m-0000{number + 1}-of-00002.gguf", extra, {name: TENSORS[name]})
    file = GGUFFile.open(tmp_path / "m-00001-of-00002.gguf")
    assert file.tensor_names == ("one", "two")
    assert (file.tensor("two").dequantize() == TENSORS["two"]).all()
    with pytest.raises(ModelLoadError, match="not the first part"):
        GGUFFile.open(tmp_path / "m-00002-of-00002.gguf")
    (tmp_path / "m-00002-of-00002.gguf").unlink()
    with pytest.raises(ModelLoadError, match=r"m-00002-of-00002\.gguf is not beside it"):
        GGUFFile.open(tmp_path / "m-00001-of-00002.gguf")


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
