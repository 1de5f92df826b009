"""Captured decodes, with a recorder that runs what it recorded again: which steps, filled up how, in how much memory.

Attention is torch_paged's behind the graphs' seam, so this needs neither FlashInfer nor a GPU.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from radixserve.attention.flashinfer.pages import padded
from radixserve.attention.torch_paged import TorchPagedAttention
from radixserve.errors import ConfigError
from radixserve.model.decoder import Decoder
from radixserve.model.torch_ops import TorchOps
from radixserve.runtime.decode_graphs import DecodeGraphs, graph_sizes
from radixserve.runtime.forward_batch import ForwardBatch
from radixserve.runtime.kv_store import KVStore
from radixserve.scheduler.plan import PlanRow, StepPlan
from tests.tiny_decoder import plan_row, tiny_decoder

CPU = torch.device("cpu")
BLOCK, BLOCKS, CONTEXT = 16, 12, 128


class Recording:
    """Runs the step again and leaves the result where the first one lay."""

    def __init__(self, step: Callable[[], torch.Tensor]) -> None:
        self.step = step
        self.result = step()

    def replay(self) -> torch.Tensor:
        return self.result.copy_(self.step())


class Recorder:
    """Every recording takes 100 bytes for as long as somebody holds it."""

    def __init__(self) -> None:
        self.held: weakref.WeakSet[Recording] = weakref.WeakSet()
        self.recorded: list[int] = []

    def record(self, step: Callable[[], torch.Tensor]) -> Recording:
        recording = Recording(step)
        self.held.add(recording)
        self.recorded.append(len(recording.result))
        return recording

    def used_bytes(self) -> int:
        return 1000 + 100 * len(self.held)


class GraphAttention:
    """torch_paged over the batch that was staged last, whatever batch it is called with."""

    name = "fake"

    def __init__(self, paged: TorchPagedAttention, rows: int, most_pages: int) -> None:
        self.paged, self.rows, self.most_pages = paged, rows, most_pages
        self.full: ForwardBatch | None = None
        self.frozen = False

    def stage(self, batch: ForwardBatch, spare: int) -> ForwardBatch:
        full = padded(batch, self.rows, spare)
        assert len(full.table_blocks) <= self.most_pages
        if self.full is None:
            self.full = full
        # What was captured reads these tensors, so they are written, not replaced.
        with torch.inference_mode():
            self.full.tokens.copy_(full.tokens)
            self.full.positions.copy_(full.positions)
            self.full.slots.copy_(full.slots)
        self.planned = full
        return self.full

    def freeze(self) -> None:
        self.frozen = True

    def plan(self, batch: ForwardBatch) -> None:
        pass

    def forward(self, layer: int, q: Any, k: Any, v: Any, batch: ForwardBatch, kv: KVStore) -> torch.Tensor:
        if layer == 0:
            self.paged.plan(self.planned)
        return self.paged.forward(layer, q, k, v, self.planned, kv)


class Attention:
    """What `DecodeGraphs` asks of the backend."""

    def __init__(self, paged: TorchPagedAttention) -> None:
        self.paged = paged
        self.made: list[GraphAttention] = []
        self.leaves = False

    def graph_decode(self, rows: int, most_pages: int) -> GraphAttention:
        self.made.append(GraphAttention(self.paged, rows, most_pages))
        return self.made[-1]

    def leaves_graph(self, batch: ForwardBatch) -> bool:
        return self.leaves


class Bench:
    """A decoder over a pool with one block more, and its graphs."""

    def __init__(self, most_rows: int = 5, budget: int = 1000) -> None:
        model = tiny_decoder("llama", context_length=CONTEXT)
        self.decoder = Decoder(model.config, model.weights, TorchOps(torch.float32))
        self.kv = KVStore(model.config, num_blocks=BLOCKS + 1, block_size=BLOCK, dtype=torch.float32, device=CPU)
        self.kv.poison(np.arange(BLOCKS + 1))
        self.paged = TorchPagedAttention(model.config, block_size=BLOCK, dtype=torch.float32)
        self.attention, self.recorder = Attention(self.paged), Recorder()
        with torch.inference_mode():
            self.graphs = DecodeGraphs(
                self.decoder,
                self.attention,  # type: ignore[arg-type]
                self.kv,
                spare=BLOCKS,
                most_rows=most_rows,
                context_length=CONTEXT,
                budget_bytes=budget,
                recorder=self.recorder,
            )

    def step(self, *rows: Any, captured: bool) -> torch.Tensor:
        batch = ForwardBatch.from_plan(StepPlan(0, rows), BLOCK)
        with torch.inference_mode():
            if not captured:
                return self.decoder.forward(batch, self.paged, self.kv)
            staged = self.graphs.stage(batch)
            assert staged is not None
            hidden = self.graphs.replay(staged)
            assert hidden is not None
            return hidden.clone()


def test_sizes_are_few_and_end_with_the_largest() -> None:
    assert graph_sizes(1) == [1]
    assert graph_sizes(5) == [1, 2, 4, 5]
    assert graph_sizes(20) == [1, 2, 4, 8, 16, 20]
    sizes = graph_sizes(512)
    assert sizes[-1] == 512 and len(sizes) == len(set(sizes)) < 60 and sizes == sorted(sizes)


def test_the_smallest_graph_that_holds_a_step_runs_it() -> None:
    bench = Bench()
    assert bench.graphs.sizes == (1, 2, 4, 5) and bench.recorder.recorded == [5, 4, 2, 1]
    assert all(each.frozen for each in bench.attention.made)
    rng = np.random.default_rng(0)
    lengths = [20, 3, 40, 15, 16]
    tables = np.split(np.arange(BLOCKS), np.cumsum([-(-(length + 4) // BLOCK) for length in lengths]))

    def row(index: int, start: int, extent: int) -> PlanRow:
        return plan_row(rng.integers(0, 131, extent), tables[index][: -(-(start + extent) // BLOCK)], start=start)

    bench.step(*(row(index, 0, length) for index, length in enumerate(lengths)), captured=False)
    for count in (5, 3, 1, 2):
        rows = [row(index, lengths[index], 1) for index in range(count)]
        found = bench.step(*rows, captured=True)
        assert len(found) == count
        assert torch.equal(found, bench.step(*rows, captured=False)), "each row's bits, whatever fills the graph up"
        lengths[:count] = [length + 1 for length in lengths[:count]]
    assert bench.graphs.replays == 4
    unread = bench.kv.keys(0)[:BLOCKS].isnan().flatten(1).any(1)
    assert unread.any(), "what fills a graph up writes to no block of the pool"


def test_what_is_no_graphs_business() -> None:
    bench = Bench(most_rows=2)
    decode, extend = plan_row([1], [0], start=3), plan_row([1, 2], [1], start=3)
    for rows in ((decode, extend), (extend,), tuple(plan_row([1], [row]) for row in range(3))):
        assert bench.graphs.stage(ForwardBatch.from_plan(StepPlan(0, rows), BLOCK)) is None
    batch = ForwardBatch.from_plan(StepPlan(0, (plan_row([1], [0]),)), BLOCK)
    assert bench.graphs.replay(batch) is None, "not staged"
    bench.attention.leaves = True
    assert bench.graphs.stage(batch) is None, "a cascade is worth more"


def test_a_token_may_be_written_between_staging_and_replay() -> None:
    """A token that is still on the device when its next step is planned is put where the graph reads it."""
    bench = Bench()
    bench.step(plan_row([5, 9, 2], [3]), captured=False)
    expected = bench.step(plan_row([77], [3], start=3), captured=False)
    staged = bench.graphs.stage(ForwardBatch.from_plan(StepPlan(0, (plan_row([0], [3], start=3),)), BLOCK))
    assert staged is not None
    with torch.inference_mode():
        staged.tokens[0] = 77
        hidden = bench.graphs.replay(staged)
    assert hidden is not None and torch.equal(hidden, expected)


@pytest.mark.parametrize(("budget", "sizes"), [(400, (1, 2, 4, 5)), (250, (4, 5)), (99, ())])
def test_graphs_beyond_the_budget_are_dropped(budget: int, sizes: tuple[int, ...]) -> None:
    bench = Bench(budget=budget)
    assert bench.graphs.sizes == sizes
    assert bench.recorder.recorded == [5, 4, 2, 1] and len(bench.recorder.held) == len(sizes)
    assert bench.graphs.used_bytes == 100 * len(sizes)
    staged = bench.graphs.stage(ForwardBatch.from_plan(StepPlan(0, (plan_row([1], [0]),)), BLOCK))
    assert (staged is None) == (not sizes), "a step runs in a larger graph where its own is missing"


def test_the_longest_context_is_there_before_anything_is_captured() -> None:
    """The rotary table grows by being replaced: a graph would go on reading the old one."""
    bench = Bench()
    table = bench.decoder._rope._cos
    bench.step(plan_row([1], range(8), start=CONTEXT - 1), captured=True)
    assert len(table) >= CONTEXT and bench.decoder._rope._cos is table
    with pytest.raises(AssertionError, match="rotary table"):
        bench.step(plan_row([1], range(9), start=CONTEXT), captured=True)


def test_a_step_that_cannot_be_captured_names_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Recorder, step: Callable[[], torch.Tensor]) -> Recording:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(Recorder, "record", fails)
    with pytest.raises(ConfigError, match=r"^cuda_graph: a step of 5 decodes cannot be captured .* off does without"):
        Bench()
