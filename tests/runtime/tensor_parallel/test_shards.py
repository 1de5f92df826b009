"""How a model is parted: nothing is lost, nothing is held twice, heads stay together."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from radixserve.errors import ConfigError
from radixserve.model.config import ModelConfig
from radixserve.model.weights import weight_shapes
from radixserve.runtime.tensor_parallel.shards import cut_model, largest_part
from tests.tiny_decoder import tiny_config, tiny_decoder

EVERYTHING: dict[str, Any] = {"bias_o": True, "bias_mlp": True, "num_heads": 9, "num_kv_heads": 3, "head_dim": 8}


def smollm2_shapes() -> ModelConfig:
    return tiny_config("llama", hidden_size=576, intermediate_size=1536, num_heads=9, num_kv_heads=3, head_dim=64)


@pytest.mark.parametrize(
    ("ranks", "heads", "inner"),
    [(1, [(9, 3)], [1536]), (2, [(6, 2), (3, 1)], [768, 768]), (3, [(3, 1)] * 3, [512] * 3)],
)
def test_the_embedded_model(ranks: int, heads: list[tuple[int, int]], inner: list[int]) -> None:
    model = smollm2_shapes()
    parts = [shard.config(model) for shard in cut_model(model, ranks)]
    assert [(part.num_heads, part.num_kv_heads) for part in parts] == heads
    assert [part.intermediate_size for part in parts] == inner
    assert all(part.group_size == 3 and part.hidden_size == 576 for part in parts)


@pytest.mark.parametrize(
    ("inner", "ranks", "expected"),
    [
        (72, 3, [24, 24, 24]),
        (72, 2, [32, 40]),  # in multiples of 8
        (320, 2, [128, 192]),  # in multiples of 64; who has more heads has less here
        (64, 3, [16, 16, 32]),  # too few multiples of 64, and of 32
        (71, 3, [23, 24, 24]),
    ],
)
def test_the_feed_forward_block_is_cut_at_wide_multiples(inner: int, ranks: int, expected: list[int]) -> None:
    model = tiny_config("llama", intermediate_size=inner, num_kv_heads=3)
    assert [shard.config(model).intermediate_size for shard in cut_model(model, ranks)] == expected


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_parts_make_up_the_whole(ranks: int, tied: bool) -> None:
    model = tiny_decoder("qwen2", **EVERYTHING, tied_head=tied)
    shards = cut_model(model.config, ranks)
    for name, whole in model.weights.items():
        parts = [shard.part(model.config, name, whole) for shard in shards if name in shard.names(model.config)]
        kind = name.rpartition(".")[2]
        if kind in ("o", "down"):
            assert torch.equal(torch.cat(parts, 1), whole)
        elif kind in ("q", "k", "v", "gate", "up", *(f"{linear}_bias" for linear in ("q", "k", "v", "gate", "up"))):
            assert torch.equal(torch.cat(parts), whole)
        else:
            once = kind in ("o_bias", "down_bias", "head")
            assert len(parts) == (1 if once else ranks)
            assert all(torch.equal(part, whole) for part in parts)
        assert ranks == 1 or all(part.numel() == part.untyped_storage().nbytes() // part.itemsize for part in parts)


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_part_has_the_shapes_of_its_own_configuration(ranks: int) -> None:
    model = tiny_decoder("qwen3", **EVERYTHING)
    for shard in cut_model(model.config, ranks):
        shapes = weight_shapes(shard.config(model.config))
        for name in shard.names(model.config):
            assert tuple(shard.part(model.config, name, model.weights[name]).shape) == shapes[name]


def test_no_rank_has_more_than_the_largest_part() -> None:
    model = tiny_config("llama", intermediate_size=320, num_heads=10, num_kv_heads=5)
    largest = largest_part(model, 2)
    assert (largest.num_heads, largest.num_kv_heads, largest.intermediate_size) == (6, 3, 192)
    assert largest_part(model, 1) == model


def test_more_ranks_than_kv_heads_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^tensor_parallel_size: .*the model has 3: at most 3 ranks, not 4") as error:
        cut_model(smollm2_shapes(), 4)
    assert error.value.field == "tensor_parallel_size"
    with pytest.raises(ConfigError, match=r"^tensor_parallel_size: an intermediate size of 2 is not for 3 ranks$"):
        cut_model(tiny_config("llama", num_heads=6, num_kv_heads=3, intermediate_size=2), 3)
