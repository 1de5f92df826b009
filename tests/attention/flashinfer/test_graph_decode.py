"""The attention of captured decodes, by FlashInfer's own wrappers. Skipped where FlashInfer is not installed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from radixserve.attention.flashinfer import backend as backend_module
from radixserve.attention.flashinfer.backend import FlashInferAttention
from radixserve.attention.flashinfer.graph_decode import GraphDecodeAttention
from tests.attention.flashinfer.fake_kernels import GRAPH, NO_SPLIT, Kernels, replaced_kernels
from tests.attention.flashinfer.paged_scene import CPU, Row, Scene
from tests.tiny_decoder import tiny_config

pytest.importorskip("flashinfer", reason="FlashInfer is not installed: make test-contract installs it")

CONFIG = tiny_config("llama", num_layers=2, sliding_window=20, sliding_layers=(0,))
BATCHES = ([Row(40), Row(9), Row(33), Row(70)], [Row(5)], [Row(15), Row(16), Row(64)])


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernels]:
    monkeypatch.setattr(backend_module, "WORKSPACE_BYTES", 1 << 12)
    yield from replaced_kernels(monkeypatch)


def graph_of(rows: int, most_pages: int, **options: Any) -> GraphDecodeAttention:
    backend = FlashInferAttention(CONFIG, block_size=16, dtype=torch.float32, device=CPU, **options)
    return backend.graph_decode(rows, most_pages)


def attended(graph: GraphDecodeAttention, scene: Scene, layer: int) -> torch.Tensor:
    """Of the scene's rows, as a replay does it: `stage`, then what was captured, with queries and keys for padding too."""
    kv = scene.store()
    spare = kv.num_blocks - 1
    full = graph.stage(scene.batch, spare)
    assert full.num_rows == full.num_tokens == graph.rows

    def filled(values: torch.Tensor) -> torch.Tensor:
        return torch.cat((values, values.new_ones(graph.rows - len(values), *values.shape[1:])))

    q, k, v = (filled(each) for each in (scene.q, scene.k, scene.v))
    out = graph.forward(layer, q, k, v, full, kv)
    assert torch.isfinite(out).all(), "padding reads nothing that was not written"
    return out[: scene.batch.num_rows]


@pytest.mark.parametrize("deterministic", [False, True])
def test_every_replay_is_planned_anew_in_the_same_memory(kernels: Kernels, deterministic: bool) -> None:
    graph = graph_of(4, 40, deterministic=deterministic)
    scenes = [Scene(CONFIG, 16, rows, seed=seed) for seed, rows in enumerate(BATCHES)]
    for index, scene in enumerate(scenes):
        for layer in (0, 1):
            out = attended(graph, scene, layer)
            assert (out.double() - scene.expected(layer)).abs().max() < 2e-5
            assert kernels.plans[-1][GRAPH] is True and kernels.plans[-1][NO_SPLIT] is deterministic
        if index == 0:
            # From here on everything must lie where it lies: `stage` fails otherwise.
            graph.freeze()


def test_a_plan_that_is_laid_out_otherwise_is_not_replayed(kernels: Kernels) -> None:
    scene = Scene(CONFIG, 16, BATCHES[0])
    graph = graph_of(4, 40)
    graph.stage(scene.batch, 0)
    graph.freeze()
    wrapper = graph._decode[None]._wrapper
    wrapper._float_workspace_buffer = wrapper._float_workspace_buffer.clone()
    with pytest.raises(AssertionError, match="does not fit"):
        graph.stage(scene.batch, 0)


def test_what_does_not_fit_is_refused(kernels: Kernels) -> None:
    scene = Scene(CONFIG, 16, [Row(40), Row(100)])
    with pytest.raises(AssertionError, match="as many pages"):
        graph_of(2, 9).stage(scene.batch, 0)
    with pytest.raises(AssertionError, match="decodes alone"):
        graph_of(9, 99).stage(Scene(CONFIG, 16, [Row(4, 2)]).batch, 0)
