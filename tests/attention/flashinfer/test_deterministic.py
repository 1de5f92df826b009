"""Attention whose bits do not depend on the batch, by FlashInfer's own wrappers. Skipped where FlashInfer is not installed.

What is shown: which work a token's kernel is handed, and that it is the same whatever the batch. The kernels are references.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from radixserve.attention.flashinfer import backend as backend_module
from radixserve.attention.flashinfer.backend import FlashInferAttention
from radixserve.attention.flashinfer.cascade import CascadeCost
from radixserve.model.decoder import Decoder
from radixserve.model.torch_ops import TorchOps
from radixserve.runtime.bit_promise import broken_promises
from tests.attention.flashinfer.fake_kernels import FIXED_SPLIT, NO_SPLIT, Kernels, replaced_kernels
from tests.attention.flashinfer.paged_scene import CPU, Row, Scene, row_lists
from tests.tiny_decoder import tiny_config, tiny_decoder

pytest.importorskip("flashinfer", reason="FlashInfer is not installed: make test-contract installs it")


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernels]:
    monkeypatch.setattr(backend_module, "WORKSPACE_BYTES", 1 << 12)
    yield from replaced_kernels(monkeypatch)


def backend_for(scene: Scene) -> FlashInferAttention:
    """A cascade would cost nothing."""
    backend = FlashInferAttention(
        scene.config, block_size=scene.block_size, dtype=scene.dtype, device=CPU, deterministic=True
    )
    backend.cost = CascadeCost(backend.cost.page, 0, 0)
    return backend


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    block_size=st.sampled_from([1, 4, 16]),
    window=st.sampled_from([None, 5, 20]),
    rows=row_lists(st.one_of(st.just(1), st.integers(1, 20))),
    seed=st.integers(0, 99),
)
def test_every_token_is_decoded_alone(
    kernels: Kernels, block_size: int, window: int | None, rows: list[Row], seed: int
) -> None:
    scene = Scene(tiny_config("llama", num_layers=1, sliding_window=window), block_size, rows, seed=seed)
    backend = backend_for(scene)
    before = len(kernels.plans)
    out, _ = scene.run(backend)
    assert (out.double() - scene.expected()).abs().max() < 2e-5
    assert backend.cascades == 0
    (plan,) = kernels.plans[before:]
    queries, _, lengths = plan[:3]
    # One query each, of which the keys are those up to its own position, never split.
    assert queries.tolist() == list(range(scene.batch.num_tokens + 1))
    assert lengths.tolist() == (scene.batch.positions + 1).tolist()
    assert plan[NO_SPLIT] is True and plan[FIXED_SPLIT] == -1
    assert plan[-1] is True, "the decode wrapper's tiles, whatever the batch"


def test_a_step_is_handed_the_same_work_in_pieces(kernels: Kernels) -> None:
    """A prompt at once, in chunks and token by token: the pages and lengths that its tokens' kernels read are the same."""
    config, table = tiny_config("llama", num_layers=1), [Row(0, 50)]
    whole = Scene(config, 16, table)
    backend = backend_for(whole)
    backend.plan(whole.batch)
    _, page_bounds, lengths = kernels.plans[-1][:3]
    for start, extent in ((0, 20), (20, 1), (21, 29)):
        piece = Scene(config, 16, [Row(start, extent)])
        backend.plan(piece.batch)
        _, bounds, found = kernels.plans[-1][:3]
        assert found.tolist() == lengths[start : start + extent].tolist()
        assert bounds.diff().tolist() == page_bounds.diff()[start : start + extent].tolist()


def test_one_copy_brings_a_step_to_the_device(kernels: Kernels) -> None:
    scene = Scene(tiny_config("llama", num_layers=1), 16, [Row(40, 3), Row(9)])
    for deterministic in (False, True):
        backend = FlashInferAttention(
            scene.config, block_size=16, dtype=torch.float32, device=CPU, deterministic=deterministic
        )
        staged = backend.stage(scene.batch)
        for name in ("tokens", "positions", "slots"):
            one, other = getattr(staged, name), getattr(scene.batch, name)
            assert torch.equal(one, other) and one.data_ptr() != other.data_ptr()
        planned = len(kernels.plans)
        backend.plan(staged)
        assert len(kernels.plans) == planned, "what is staged is planned"
        out = backend.forward(0, scene.q, scene.k, scene.v, staged, scene.store())
        assert (out.double() - scene.expected()).abs().max() < 2e-5


@pytest.mark.parametrize("deterministic", [False, True])
def test_the_self_test_sees_what_a_split_by_the_batch_does(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch, deterministic: bool
) -> None:
    """It is the one that runs on a GPU: there sums are split by the number of rows, unless the plan forbids it."""
    reference = kernels.paged_run

    def split(*arguments: Any) -> None:
        reference(*arguments)
        q, tables, out = arguments[3], arguments[9], arguments[10]
        if not kernels.plans[-1][NO_SPLIT]:
            out += 1e-3 * (len(tables) + len(q))

    monkeypatch.setattr(kernels, "paged_run", split)
    model = tiny_decoder("llama", num_layers=1)
    attention = FlashInferAttention(
        model.config, block_size=16, dtype=torch.float32, device=CPU, deterministic=deterministic
    )
    decoder = Decoder(model.config, model.weights, TorchOps(torch.float32))
    reasons = broken_promises(decoder, attention, 16, torch.float32, CPU)
    assert reasons == (
        []
        if deterministic
        else ["flashinfer attention gives a token other bits when its context is computed in pieces"]
    )
