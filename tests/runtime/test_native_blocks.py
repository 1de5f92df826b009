"""Matrices kept in the blocks of their file: against a slow reference of the same arithmetic, and for their bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from radixserve.model.config import Architecture
from radixserve.model.gguf_weights import stored_matrices
from radixserve.model.loader import LoadedModel
from radixserve.native.library import NativeLibrary
from radixserve.runtime.native_runner import NativeModelRunner
from radixserve.runtime.native_weights import BLOCK_FORMATS, NativeWeights
from tests.native.steps import ALL_ISAS
from tests.quantized_model import MIXES, Mix, quantized_model
from tests.runtime.int8_decoder import Float64Array, reference_logits
from tests.tiny_decoder import ARCHITECTURES, all_logits, plan_row

BLOCKS = 40
DTYPES = (torch.bfloat16, torch.float32)


@pytest.fixture(params=ALL_ISAS)
def library(request: pytest.FixtureRequest) -> NativeLibrary:
    """The process's library, switched to one instruction set for the test."""
    loaded = NativeLibrary.load()
    loaded.set_isa(request.param)
    return loaded


def runner(model: LoadedModel, *, threads: int = 1, keep_blocks: bool = True, room: int = 512) -> NativeModelRunner:
    made = NativeModelRunner(
        model,
        NativeLibrary.load(),
        num_blocks=BLOCKS,
        block_size=16,
        max_batch_tokens=room,
        threads=threads,
        keep_blocks=keep_blocks,
    )
    made.kv.poison(np.arange(BLOCKS))
    return made


def prompt(length: int, seed: int = 0) -> list[int]:
    tokens: list[int] = np.random.default_rng(seed).integers(0, 262, length).tolist()
    return tokens


def logits(subject: NativeModelRunner, tokens: list[int]) -> torch.Tensor:
    return all_logits(subject, [plan_row(tokens, range(-(-len(tokens) // 16)))])[0]


def rms(values: Float64Array) -> Float64Array:
    """Of each row."""
    roots: Float64Array = np.sqrt((values * values).mean(axis=1))
    return roots


# --- The arithmetic ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_logits_are_those_of_the_slow_reference(library: NativeLibrary, architecture: Architecture, mix: Mix) -> None:
    """In float32 what is left is the order of sums; where that tips an integer, one prompt is a little off from there on."""
    changes = {"sliding_window": 5} if architecture == "mistral" else {}
    model = quantized_model(mix, architecture, torch.float32, **changes)
    kept = {name for name, stored in stored_matrices(model.weights).items() if stored.type_name in BLOCK_FORMATS}
    subject, weights = runner(model), dict(model.weights)
    errors, unrounded = [], []
    for seed in range(8):
        tokens = prompt(9, seed)
        expected = reference_logits(model.config, weights, tokens, kept)
        errors.append(rms(logits(subject, tokens).double().numpy() - expected))
        unrounded.append(rms(reference_logits(model.config, weights, tokens, set()) - expected))
    assert np.quantile(np.concatenate(errors), 0.75) < 1e-3 * np.median(np.concatenate(unrounded))
    assert np.median(np.concatenate(unrounded)) > 0.01, "rounding is seen at all"


def test_the_dense_path_is_that_of_the_reference_without_rounding() -> None:
    model = quantized_model("mixed", "qwen3", torch.float32)
    ours = logits(runner(model, keep_blocks=False), prompt(70)).double().numpy()
    expected = reference_logits(model.config, dict(model.weights), prompt(70), set())
    assert np.abs(ours - expected).max() < 1e-3


# --- Bits -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mix", MIXES)
def test_pieces_and_threads_do_not_matter(library: NativeLibrary, mix: Mix, dtype: torch.dtype) -> None:
    model = quantized_model(mix, "qwen2", dtype)
    tokens = prompt(290)
    expected = logits(runner(model), tokens)
    pieces, start, computed = runner(model, threads=2, room=8), 0, []
    for end in (1, 2, 9, 50, 51, 180, 255, 257, 290):
        mate = plan_row(prompt(end - start, seed=end), range(20, 20 + -(-(end - start) // 16)))
        rows = [plan_row(tokens[start:end], range(-(-end // 16)), start=start), mate]
        computed.append(all_logits(pieces, rows)[0])
        start = end
    assert torch.equal(torch.cat(computed), expected)


@pytest.mark.parametrize("mix", MIXES)
def test_nothing_is_broken_here(library: NativeLibrary, mix: Mix) -> None:
    assert runner(quantized_model(mix)).broken_promises() == []


# --- What is kept -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mix", "facts"),
    [
        ("Q4_1", {"weights": "native", "weight_formats": "Q4_1 15, Q8_0 1"}),
        ("mixed", {"weights": "native", "weight_formats": "Q4_0 8, Q4_1 5, Q4_K 1, Q8_0 2"}),
        (
            "fallback",
            {
                "weights": "native",
                "weight_formats": "Q4_0 8, bfloat16 8",
                "weights_dequantized": "F16 3, Q5_0 3, Q5_1 2 to bfloat16",
            },
        ),
    ],
)
def test_the_facts_say_what_each_matrix_is(mix: Mix, facts: dict[str, str]) -> None:
    told = runner(quantized_model(mix)).describe()
    assert {
        name: value for name, value in told.items() if name.startswith("weight") and name != "weight_bytes"
    } == facts


def test_without_blocks_the_facts_name_the_dtype() -> None:
    told = runner(quantized_model("Q4_1"), keep_blocks=False).describe()
    assert told["weights"] == "bfloat16" and "weight_formats" not in told


def test_packed_blocks_take_no_more_than_in_the_file() -> None:
    model = quantized_model("Q8_0", vocab_size=272)  # whole panels
    matrices = stored_matrices(model.weights).values()
    packed = NativeWeights.pack(model.config, model.weights, keep_blocks=True)
    assert packed.num_bytes == sum(stored.tensor.raw.nbytes for stored in matrices)


def test_a_tied_table_is_packed_once() -> None:
    packed = NativeWeights.pack(
        quantized_model("K", "qwen2").config, quantized_model("K", "qwen2").weights, keep_blocks=True
    )
    assert packed.head is packed.embed
