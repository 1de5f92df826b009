from __future__ import annotations

from pathlib import Path

import gguf
import pytest

from radixserve.bench.floors import Bound, ModelCost, StepWork, attended_pairs, bound, gguf_costs
from radixserve.bench.machine import Limits
from radixserve.model.config import ModelConfig
from tests.model.gguf_files import write_model
from tests.quantized_model import SIZES
from tests.tiny_decoder import tiny_config, tiny_decoder

# Small enough for paper: a layer has 4 * (4 + 4) + 4 * 4 + 3 * 4 * 8 = 144 weights, the head 40.
SHAPE = ModelConfig(
    architecture="llama",
    vocab_size=10,
    hidden_size=4,
    intermediate_size=8,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_dim=2,
    context_length=64,
)
SMOLLM2 = ModelConfig(
    architecture="llama",
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_layers=30,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    context_length=8192,
    tied_head=True,
)


def test_a_bound_is_the_slower_of_two() -> None:
    one = bound(200, 600, bandwidth=100.0, peak=100.0)
    assert one == Bound(200, 600, 2.0, 6.0, 6.0)
    assert one.by == "operations"
    both = one + bound(800, 100, bandwidth=100.0, peak=100.0)
    assert both == Bound(1000, 700, 10.0, 7.0, 14.0), "two that follow one another are not one that overlaps"
    assert both.by == "bytes"


@pytest.mark.parametrize(("start", "count", "pairs"), [(0, 1, 1), (0, 3, 6), (5, 1, 6), (5, 2, 6 + 7)])
def test_pairs_are_counted_as_one_would(start: int, count: int, pairs: int) -> None:
    assert attended_pairs(start, count) == pairs == sum(position + 1 for position in range(start, start + count))


def test_a_dense_model_by_hand() -> None:
    cost = ModelCost.dense(SHAPE)
    assert (cost.layer_weights, cost.head_weights) == (288, 40)
    assert (cost.layer_bytes, cost.head_bytes) == (576, 80)
    assert cost.kv_bytes == 2 * 2 * 1 * 2 * 2
    assert cost.pair_operations == 4 * 2 * 2 * 2
    assert ModelCost.dense(SHAPE, "fp32").layer_bytes == 1152


def test_a_step_by_hand() -> None:
    limits = Limits(threads=1, dram=100.0, cache=1e9, bf16=1000.0, int8=2000.0, fp32=500.0)
    work = StepWork(tokens=3, sampled=2, pairs=10, kv_tokens=7)
    floor = ModelCost.dense(SHAPE).step(work, limits)
    assert floor.projections == Bound(576, 2 * 288 * 3, 5.76, 1.728, 5.76)
    assert floor.attention == Bound(7 * 16, 10 * 32, 1.12, 0.32, 1.12)
    assert floor.head == Bound(80, 2 * 40 * 2, 0.8, 0.16, 0.8)
    assert floor.seconds == pytest.approx(5.76 + 1.12 + 0.8)
    stored = ModelCost.stored(SHAPE, layer_bytes=100, head_bytes=20).step(work, limits)
    assert stored.projections == Bound(100, 1728, 1.0, 0.864, 1.0)
    assert stored.attention == floor.attention
    both = floor + stored
    assert (both.projections, both.head) == (floor.projections + stored.projections, floor.head + stored.head)
    assert both.seconds == pytest.approx(floor.seconds + stored.seconds)


def test_a_step_that_wants_no_logits_reads_no_head(limits: Limits) -> None:
    floor = ModelCost.dense(SHAPE).step(StepWork(tokens=4, sampled=0, pairs=10, kv_tokens=4), limits)
    assert floor.head.seconds == 0


def test_the_embedded_model_costs_what_is_known_of_it() -> None:
    cost = ModelCost.dense(SMOLLM2)
    assert 2 * cost.layer_weights == pytest.approx(212e6, rel=0.01)
    assert 2 * cost.head_weights == pytest.approx(57e6, rel=0.01)
    assert cost.pair_operations == 69120
    assert cost.kv_bytes == 23040


def test_the_file_tells_what_quantized_matrices_take(tmp_path: Path) -> None:
    model = tiny_decoder("llama", **SIZES)
    kind, head = gguf.GGMLQuantizationType.Q4_1, gguf.GGMLQuantizationType.Q8_0
    costs = gguf_costs(write_model(tmp_path / "q.gguf", model, kind=kind, kinds={"embed": head, "head": head}))
    assert costs["bf16"] == ModelCost.dense(model.config)
    native = costs["native"]
    assert native.layer_bytes == native.layer_weights // 32 * 20
    assert native.head_bytes == native.head_weights // 32 * 34
    assert set(gguf_costs(write_model(tmp_path / "f.gguf", model))) == {"bf16", "fp32"}


def test_a_sliding_window_bounds_what_the_floors_hold_for() -> None:
    assert ModelCost.dense(tiny_config("mistral")).longest == 37
    assert ModelCost.dense(tiny_config("llama")).longest is None
