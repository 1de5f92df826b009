"""Weights that stay in their file: made when they are asked for, in any order, and as blocks."""

from __future__ import annotations

import mmap
from pathlib import Path

import gguf
import pytest
import torch

from radixserve.model.gguf_weights import GGUFWeights, placement, stored_matrices
from radixserve.model.loader import load_model
from radixserve.model.weights import weight_shapes
from tests.model.gguf_files import write_model
from tests.quantized_model import quantized_model
from tests.tiny_decoder import tiny_decoder


def test_the_mapping_has_every_weight_and_keeps_none() -> None:
    model = quantized_model("mixed")
    assert isinstance(model.weights, GGUFWeights)
    assert list(model.weights) == list(weight_shapes(model.config)) and len(model.weights) == len(list(model.weights))
    assert "embed" in model.weights and "layers.9.q" not in model.weights
    with pytest.raises(KeyError):
        model.weights["layers.9.q"]
    first, second = model.weights["layers.0.q"], model.weights["layers.0.q"]
    assert torch.equal(first, second) and first.data_ptr() != second.data_ptr()
    first.zero_()
    assert model.weights["layers.0.q"].abs().max() > 0


@pytest.mark.parametrize("name", ["layers.0.q", "layers.1.k", "layers.0.v", "layers.1.down", "embed"])
def test_blocks_are_the_rows_of_the_weight(name: str) -> None:
    """In the order of the weight, not of the file: q and k of llama files are interleaved there."""
    weights = quantized_model("mixed", "llama", torch.float32).weights
    stored = stored_matrices(weights)[name]
    assert stored.in_blocks and stored.in_features == weights[name].shape[1]
    assert torch.equal(torch.from_numpy(stored.tensor.type.dequantize(stored.blocks())), weights[name])
    assert (stored.blocks() is stored.tensor.raw) == (name[-1] not in "qk")


def test_matrices_only_and_by_type() -> None:
    weights = quantized_model("fallback").weights
    types = {name: stored.type_name for name, stored in stored_matrices(weights).items()}
    assert types.keys() == {name for name, weight in weights.items() if weight.ndim == 2}
    assert types["layers.0.k"] == "Q5_0" and types["embed"] == "F16"
    assert not stored_matrices(weights)["embed"].in_blocks


def test_where_and_what_they_are() -> None:
    assert placement(quantized_model("Q8_0").weights) == (torch.bfloat16, torch.device("cpu"))
    tensors = tiny_decoder("llama", torch.float32).weights
    assert placement(tensors) == (torch.float32, torch.device("cpu")) and stored_matrices(tensors) == {}


def mapped_bytes(path: Path) -> int:
    """How much of the file is in this process's memory."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    assert any(line.endswith(str(path)) for line in lines), "the file is mapped"
    resident = next(line for line in lines if line.startswith("Rss:"))
    return int(resident.split()[1]) * 1024


@pytest.mark.skipif(not hasattr(mmap, "MADV_DONTNEED"), reason="pages cannot be given back here")
def test_pages_of_what_was_read_are_given_back(tmp_path: Path) -> None:
    model = tiny_decoder(vocab_size=262, hidden_size=256, intermediate_size=8192)
    path = write_model(tmp_path / "m.gguf", model, kind=gguf.GGMLQuantizationType.Q8_0)
    loaded = load_model(str(path))
    stored = stored_matrices(loaded.weights)["layers.0.up"]
    before = mapped_bytes(path)
    assert int(stored.blocks().sum()) > 0
    assert mapped_bytes(path) > before + stored.tensor.raw.nbytes // 2
    stored.release()
    assert mapped_bytes(path) < stored.tensor.raw.nbytes // 2
    for name in loaded.weights:
        assert loaded.weights[name].numel() > 0
    assert mapped_bytes(path) < stored.tensor.raw.nbytes // 2
