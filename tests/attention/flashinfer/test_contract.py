"""FlashInfer's own wrappers, driven by the backend, against torch_paged. Skipped where FlashInfer is not installed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from radixserve.attention.flashinfer import backend as backend_module
from radixserve.attention.flashinfer.backend import FP8, FlashInferAttention
from radixserve.attention.flashinfer.cascade import CascadeCost, find_cascade, token_order
from radixserve.attention.flashinfer.staging import Staging
from radixserve.attention.torch_paged import TorchPagedAttention
from radixserve.model.config import ModelConfig
from tests.attention.flashinfer.fake_kernels import Kernels, replaced_kernels
from tests.attention.flashinfer.paged_scene import CPU, Row, Scene, row_lists, written
from tests.tiny_decoder import tiny_config

pytest.importorskip("flashinfer", reason="FlashInfer is not installed: make test-contract installs it")


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernels]:
    monkeypatch.setattr(backend_module, "WORKSPACE_BYTES", 1 << 12)
    yield from replaced_kernels(monkeypatch)


def config_of(heads: tuple[int, int] = (6, 2), **changes: Any) -> ModelConfig:
    return tiny_config("llama", num_heads=heads[0], num_kv_heads=heads[1], head_dim=16, num_layers=1, **changes)


def backend_for(scene: Scene, level_bytes: int | None = None, **options: Any) -> FlashInferAttention:
    """``level_bytes``: what a level of a cascade costs; None makes it so dear that there is none."""
    backend = FlashInferAttention(scene.config, block_size=scene.block_size, dtype=scene.dtype, device=CPU, **options)
    backend.cost = CascadeCost(backend.cost.page, 0, 1 << 60 if level_bytes is None else level_bytes)
    return backend


def oracle(scene: Scene) -> tuple[torch.Tensor, Any]:
    return scene.run(TorchPagedAttention(scene.config, block_size=scene.block_size, dtype=scene.dtype))


def check(scene: Scene, backend: FlashInferAttention, tolerance: float = 2e-5) -> None:
    """The output and the store of one step are torch_paged's."""
    out, kv = scene.run(backend)
    expected, expected_kv = oracle(scene)
    assert out.dtype == scene.dtype and out.shape == scene.q.shape
    assert (out.double() - expected.double()).abs().max() < tolerance
    for half, expected_half in zip(written(kv), written(expected_kv), strict=True):
        assert torch.equal(half, expected_half)


# One set of fake kernels serves all examples: they keep nothing that a later one reads.
many = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
heads = st.sampled_from([(6, 2), (4, 4), (9, 3), (8, 1)])
block_sizes = st.sampled_from([1, 4, 16, 32])
windows = st.sampled_from([None, 1, 5, 16, 100])


@many
@given(heads=heads, block_size=block_sizes, window=windows, rows=row_lists(st.integers(1, 40)), seed=st.integers(0, 99))
def test_mixed_steps(
    kernels: Kernels, heads: tuple[int, int], block_size: int, window: int | None, rows: list[Row], seed: int
) -> None:
    scene = Scene(config_of(heads, sliding_window=window), block_size, rows, seed=seed)
    check(scene, backend_for(scene))


@many
@given(heads=heads, block_size=block_sizes, window=windows, rows=row_lists(st.just(1)), seed=st.integers(0, 99))
def test_decode_steps(
    kernels: Kernels, heads: tuple[int, int], block_size: int, window: int | None, rows: list[Row], seed: int
) -> None:
    scene = Scene(config_of(heads, sliding_window=window), block_size, rows, seed=seed)
    before = len(kernels.plans)
    check(scene, backend_for(scene))
    # fixed_uniform_q_len, the last argument, is what the library's decode wrapper alone sets.
    assert [plan[-1] for plan in kernels.plans[before:]] == [True]


@many
@given(
    heads=heads,
    block_size=st.sampled_from([1, 4, 16]),
    rows=row_lists(st.one_of(st.just(1), st.integers(1, 30)), most=9),
    level_bytes=st.sampled_from([0, 5000]),
    seed=st.integers(0, 99),
)
def test_cascades(
    kernels: Kernels, heads: tuple[int, int], block_size: int, rows: list[Row], level_bytes: int, seed: int
) -> None:
    scene = Scene(config_of(heads), block_size, rows, seed=seed)
    backend = backend_for(scene, level_bytes)
    merges = kernels.merges
    check(scene, backend)
    cascade = find_cascade(scene.batch, backend.cost)
    assert backend.cascades == (cascade is not None)
    assert kernels.merges - merges == (0 if cascade is None else len(cascade.levels))


def test_a_tree_of_agents_is_read_in_three_levels(kernels: Kernels) -> None:
    """Rows out of order, two branches of one trunk, one stranger, one that still extends."""
    rows = [Row(200), Row(20, 3), Row(210, 1, 0, 12), Row(150, 1, 0, 6), Row(160, 4, 3, 9), Row(205, 1, 0, 12)]
    scene = Scene(config_of(), 16, rows)
    backend = backend_for(scene, level_bytes=1)
    cascade = find_cascade(scene.batch, backend.cost)
    assert cascade is not None and len(cascade.levels) == 2
    check(scene, backend)
    assert kernels.merges == 2


def test_one_kind_of_kernels_serves_prompts_and_cascades(kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the library would choose FA3 it is not asked."""
    import flashinfer.prefill

    monkeypatch.setattr(flashinfer.prefill, "determine_attention_backend", lambda *arguments, **options: "fa3")
    monkeypatch.setattr(FlashInferAttention, "prefill_backend", "fa2")
    scene = Scene(config_of(), 16, [Row(200), Row(210, 1, 0, 12), Row(205, 3, 0, 12)])
    for level_bytes in (None, 0):
        check(scene, backend_for(scene, level_bytes))
    assert {key[0] for key in kernels.modules} == {"fa2"}


def test_pages_that_a_row_computes_itself_are_masked(kernels: Kernels) -> None:
    """A follower leases what its leader computes in the same step; the leader must not see its own future."""
    scene = Scene(config_of(), 4, [Row(0, 40), Row(32, 9, 0, 8), Row(32, 1, 0, 8), Row(36, 2, 0, 9)])
    backend = backend_for(scene, level_bytes=0)
    check(scene, backend)
    assert backend.cascades == 1


@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize("extent", [1, 7])
@pytest.mark.parametrize("level_bytes", [None, 0])
def test_soft_cap(kernels: Kernels, window: int | None, extent: int, level_bytes: int | None) -> None:
    config = config_of(sliding_window=window, attention_soft_cap=0.7)
    scene = Scene(config, 16, [Row(50, extent), Row(33, 1, 0, 2), Row(70, 1, 0, 3)])
    out, _ = scene.run(backend_for(scene, level_bytes))
    assert (out.double() - scene.expected()).abs().max() < 2e-5


def test_each_layer_has_its_window(kernels: Kernels) -> None:
    """A cascade serves the layers that see everything, never those with a window."""
    config = tiny_config("qwen3", head_dim=16, num_layers=2, sliding_window=10, sliding_layers=(1,))
    scene = Scene(config, 16, [Row(60), Row(50, 1, 0, 3), Row(40, 1, 0, 2)])
    backend = backend_for(scene, level_bytes=0)
    for layer in range(2):
        out, _ = scene.run(backend, layer)
        assert (out.double() - scene.expected(layer)).abs().max() < 2e-5
    assert backend.cascades == 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_planned_as_such(kernels: Kernels, dtype: torch.dtype) -> None:
    scene = Scene(config_of(), 16, [Row(40, 5), Row(3)], dtype)
    out, _ = scene.run(backend_for(scene))
    assert out.dtype == dtype
    assert (out.double() - scene.expected()).abs().max() < 2e-2
    assert kernels.modules[-1][1:4] == (dtype, dtype, dtype)


@pytest.mark.parametrize("level_bytes", [None, 0])
def test_fp8_store(kernels: Kernels, level_bytes: int | None) -> None:
    scene = Scene(config_of(), 16, [Row(40, 5), Row(35, 1, 0, 2), Row(48)], torch.bfloat16, kv_dtype=FP8)
    scene.k[0, 0, 0] = 1000.0
    out, kv = scene.run(backend_for(scene, level_bytes, kv_dtype=FP8))
    slot = int(scene.batch.slots[0])
    assert float(kv.keys(0).flatten(0, 1)[slot, 0, 0]) == torch.finfo(FP8).max, "saturated, not NaN"
    assert kernels.modules[-1][1:4] == (torch.bfloat16, FP8, torch.bfloat16)
    assert torch.isfinite(out).all()
    scene.k[0, 0, 0] = 0.5
    out, _ = scene.run(backend_for(scene, level_bytes, kv_dtype=FP8))
    assert (out.double() - scene.expected()).abs().max() < 0.2


def test_two_plans_back_to_back(kernels: Kernels) -> None:
    scenes = [
        Scene(config_of(), 16, rows, seed=seed)
        for seed, rows in enumerate(([Row(40, 5)], [Row(9), Row(80)], [Row(3, 30), Row(17)]))
    ]
    backend = backend_for(scenes[0])
    for first, second in ((0, 1), (1, 2), (2, 0), (0, 0)):
        backend.plan(scenes[first].batch)
        check(scenes[second], backend)


def test_only_the_last_plan_is_attended(kernels: Kernels) -> None:
    one, other = Scene(config_of(), 16, [Row(5)]), Scene(config_of(), 16, [Row(7)])
    backend = backend_for(one)
    backend.plan(one.batch)
    backend.plan(other.batch)
    with pytest.raises(AssertionError, match="planned last"):
        backend.forward(0, one.q, one.k, one.v, one.batch, one.store())


@pytest.mark.parametrize("level_bytes", [None, 0])
def test_a_plan_never_overwrites_what_the_gpu_has_not_copied(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch, level_bytes: int | None
) -> None:
    """The GPU lags behind by as much as it may: copies out of pinned memory run only when somebody waits for them."""
    marks: dict[int, int] = {}
    done = [0]

    def mark(staging: Staging) -> None:
        marks[id(staging)] = done[0] + len(kernels.queue)

    def wait(staging: Staging) -> None:
        count = max(0, marks.get(id(staging), 0) - done[0])
        kernels.flush(count)
        done[0] += count

    monkeypatch.setattr(Staging, "mark", mark)
    monkeypatch.setattr(Staging, "wait", wait)
    extents = (1, 4, 1, 9, 1, 1, 3)
    lag = [[Row(40), Row(35, 1, 0, 2), Row(50, extent, 0, 2)] for extent in extents]
    scenes = [Scene(config_of(), 16, rows, seed=seed) for seed, rows in enumerate(lag * 3)]
    if level_bytes is not None:
        # Where rows move, torch brings them back at once, ahead of this stream.
        cost = backend_for(scenes[0], level_bytes).cost
        found = [(scene, find_cascade(scene.batch, cost)) for scene in scenes]
        scenes = [scene for scene, each in found if each is not None and token_order(scene.batch, each) is None]
    assert len(scenes) > 3
    kernels.deferred = True
    backend = backend_for(scenes[0], level_bytes)
    outputs = [scene.run(backend)[0] for scene in scenes[:2]]
    assert done == [0], "the second step is planned while nothing of the first has run"
    outputs += [scene.run(backend)[0] for scene in scenes[2:]]
    assert done[0] > 0
    kernels.flush()
    for scene, out in zip(scenes, outputs, strict=True):
        assert (out.double() - scene.expected()).abs().max() < 2e-5
