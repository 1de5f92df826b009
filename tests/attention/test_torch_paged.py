"""Paged attention against a dense softmax in float64, and its bits."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from radixserve.attention import torch_paged
from radixserve.attention.registry import create_attention
from radixserve.attention.torch_paged import TorchPagedAttention, usable_rows
from radixserve.errors import ConfigError
from radixserve.model.config import ModelConfig
from radixserve.runtime.forward_batch import ForwardBatch
from radixserve.runtime.kv_store import KVStore
from radixserve.scheduler.plan import StepPlan
from tests.tiny_decoder import plan_row, tiny_config

CPU = torch.device("cpu")


@dataclasses.dataclass
class Scene:
    """Rows of (context, extent) over a poisoned store whose context keys and values are in place."""

    config: ModelConfig
    block_size: int
    rows: list[tuple[int, int]]
    dtype: torch.dtype
    seed: int = 0

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        generator = torch.Generator().manual_seed(self.seed)
        size, config = self.block_size, self.config
        needed = [-(-(context + extent) // size) for context, extent in self.rows]
        blocks = rng.permutation(sum(needed) + 3)
        self.tables = np.split(blocks[: sum(needed)], np.cumsum(needed)[:-1])
        self.kv = KVStore(config, num_blocks=len(blocks), block_size=size, dtype=self.dtype, device=CPU)
        self.kv.poison(np.arange(len(blocks)))

        def normal(tokens: int, heads: int) -> torch.Tensor:
            return torch.randn(tokens, heads, config.head_dim, generator=generator).to(self.dtype)

        totals = [context + extent for context, extent in self.rows]
        self.q = [normal(total, config.num_heads) for total in totals]
        self.k = [normal(total, config.num_kv_heads) for total in totals]
        self.v = [normal(total, config.num_kv_heads) for total in totals]
        for index, (context, _) in enumerate(self.rows):
            slots = self._slots(index)[:context]
            self.kv.write(0, slots, self.k[index][:context], self.v[index][:context])

    def _slots(self, index: int) -> torch.Tensor:
        position = np.arange(sum(self.rows[index]))
        size = self.block_size
        return torch.from_numpy(self.tables[index][position // size] * size + position % size)

    def run(self, chosen: list[int] | None = None) -> list[torch.Tensor]:
        """Attention of the extents of the chosen rows in one batch: [extent, heads, head_dim] each."""
        chosen = list(range(len(self.rows))) if chosen is None else chosen
        plan = StepPlan(
            0,
            tuple(
                plan_row([0] * self.rows[index][1], self.tables[index], start=self.rows[index][0]) for index in chosen
            ),
        )
        batch = ForwardBatch.from_plan(plan, self.block_size)
        backend = TorchPagedAttention(self.config, block_size=self.block_size, dtype=self.dtype)
        backend.plan(batch)
        q, k, v = (
            torch.cat([rows[index][self.rows[index][0] :] for index in chosen]) for rows in (self.q, self.k, self.v)
        )
        out = backend.forward(0, q, k, v, batch, self.kv)
        return list(torch.split(out, [self.rows[index][1] for index in chosen]))

    def expected(self, index: int) -> torch.Tensor:
        """The same by definition, dense and in float64."""
        config = self.config
        context, extent = self.rows[index]
        q = self.q[index][context:].double()
        k, v = (rows[index].double().repeat_interleave(config.group_size, dim=1) for rows in (self.k, self.v))
        scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(config.head_dim)
        query = context + torch.arange(extent)[:, None]
        key = torch.arange(context + extent)[None, :]
        hidden = key > query
        if config.sliding_window is not None:
            hidden |= key <= query - config.sliding_window
        return torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, -math.inf).softmax(-1), v)


heads = st.sampled_from([(6, 2), (4, 4), (9, 3), (14, 2), (8, 1)])
lengths = st.tuples(
    st.one_of(st.integers(0, 40), st.sampled_from([254, 255, 256, 257, 511, 512, 700])),
    st.one_of(st.integers(1, 12), st.sampled_from([85, 86, 256, 300])),
)


@given(
    heads=heads,
    head_dim=st.sampled_from([8, 16, 64, 80, 128]),
    window=st.sampled_from([None, 1, 5, 100, 256, 300]),
    block_size=st.sampled_from([1, 4, 16, 32, 100]),
    rows=st.lists(lengths, min_size=1, max_size=4),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
@settings(max_examples=60, deadline=None)
def test_equals_dense_softmax(
    heads: tuple[int, int],
    head_dim: int,
    window: int | None,
    block_size: int,
    rows: list[tuple[int, int]],
    dtype: torch.dtype,
) -> None:
    config = tiny_config(
        "llama", num_heads=heads[0], num_kv_heads=heads[1], head_dim=head_dim, sliding_window=window, num_layers=1
    )
    scene = Scene(config, block_size, rows, dtype)
    tolerance = 2e-5 if dtype == torch.float32 else 3e-2
    together = scene.run()
    for index, out in enumerate(together):
        assert (out.double() - scene.expected(index)).abs().max() < tolerance
        assert torch.equal(scene.run([index])[0], out), "batch mates changed the bits"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [None, 200])
def test_bits_do_not_depend_on_the_memory_bound(
    window: int | None, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config("llama", sliding_window=window, num_layers=1)
    scene = Scene(config, 16, [(900, 300), (1000, 1), (513, 2), (0, 3), (255, 1)], dtype)
    whole = scene.run()
    monkeypatch.setattr(torch_paged, "WAVE_BYTES", 1)
    for out, expected in zip(scene.run(), whole, strict=True):
        assert torch.equal(out, expected)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bits_do_not_depend_on_threads(dtype: torch.dtype, threads: int) -> None:
    scene = Scene(tiny_config("llama", num_layers=1), 16, [(600, 290), (300, 1), (1, 1)], dtype)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        whole = scene.run()
        torch.set_num_threads(threads)
        for out, expected in zip(scene.run(), whole, strict=True):
            assert torch.equal(out, expected)
    finally:
        torch.set_num_threads(before)


def test_only_windowed_layers_are_windowed() -> None:
    config = tiny_config("qwen3", sliding_window=10, sliding_layers=(1,), num_layers=2)
    free = Scene(dataclasses.replace(config, sliding_window=None, sliding_layers=None), 16, [(100, 4)], torch.float32)
    assert torch.equal(Scene(config, 16, [(100, 4)], torch.float32).run()[0], free.run()[0])


def test_row_counts_always_hold_a_group() -> None:
    assert min(usable_rows(64, 256, 9, torch.float32)) >= 9
    assert usable_rows(8, 256, 1000, torch.float32)[-1] == 1008


def test_registry_explains_a_refusal() -> None:
    config = tiny_config("llama")
    with pytest.raises(ConfigError, match=r"bfloat16 or float32, not in torch\.float16"):
        create_attention("auto", config, block_size=16, dtype=torch.float16, device=CPU)
    with pytest.raises(ConfigError, match="must be one of auto, torch_paged, flashinfer, not 'flash'"):
        create_attention("flash", config, block_size=16, dtype=torch.float32, device=CPU)
    assert create_attention("auto", config, block_size=16, dtype=torch.float32, device=CPU).name == "torch_paged"
    assert TorchPagedAttention.supports(config, "cuda", torch.float32) == ["torch_paged runs on the CPU, not on cuda"]
