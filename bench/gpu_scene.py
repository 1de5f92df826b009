"""One step over one layer, with random contexts, on the device and by the CPU's oracle: what parity of attention is checked on."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from bench.gpu_bed import Bed
from bench.gpu_model import LLAMA_TINY
from radixserve.attention.base import AttentionBackend
from radixserve.attention.registry import create_attention
from radixserve.attention.torch_paged import TorchPagedAttention
from radixserve.messages import SamplingParams
from radixserve.model.config import ModelConfig
from radixserve.runtime.forward_batch import ForwardBatch
from radixserve.runtime.kv_store import KVStore
from radixserve.scheduler.plan import PlanRow, StepPlan

CPU = torch.device("cpu")
# Attention of numbers of half precision whose outputs are below one: two units in the last place of bfloat16.
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}


class Scene:
    """One step over one layer whose contexts are random: the same numbers on the device and on the CPU, NaN elsewhere.

    The first ``shared`` pages of all rows are the first row's.
    """

    def __init__(
        self,
        bed: Bed,
        config: ModelConfig,
        page: int,
        rows: tuple[tuple[int, int], ...],
        *,
        shared: int = 0,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.bed, self.config, self.page = bed, config, page
        self.dtype = dtype or bed.dtype
        generator = torch.Generator().manual_seed(sum(sum(row) for row in rows) + page)
        tables = list(self._tables(rows, shared))
        self.num_blocks = int(max(table.max() for table in tables)) + 2
        self.plan = StepPlan(
            0,
            tuple(
                plan_row([0] * extent, table, start=context)
                for (context, extent), table in zip(rows, tables, strict=True)
            ),
        )
        self.batch = ForwardBatch.from_plan(self.plan, page)
        known = torch.zeros(self.num_blocks * page, dtype=torch.bool)
        for (context, _), table in zip(rows, tables, strict=True):
            places = np.arange(context)
            known[torch.from_numpy(table[places // page] * page + places % page)] = True
        shape = (2, self.num_blocks * page, config.num_kv_heads, config.head_dim)
        self.held = torch.randn(shape, generator=generator).to(self.dtype).masked_fill(~known[:, None, None], math.nan)
        total = self.batch.num_tokens

        def normal(heads: int) -> torch.Tensor:
            return torch.randn(total, heads, config.head_dim, generator=generator).to(self.dtype)

        self.q, self.k, self.v = normal(config.num_heads), normal(config.num_kv_heads), normal(config.num_kv_heads)

    def _tables(self, rows: tuple[tuple[int, int], ...], shared: int) -> Iterator[np.ndarray[Any, Any]]:
        rng = np.random.default_rng(len(rows))
        needed = [-(-(context + extent) // self.page) for context, extent in rows]
        names = rng.permutation(sum(needed))
        trunk = names[:shared]
        for count in needed:
            own, names = names[:count], names[count:]
            yield np.concatenate((trunk[:count], own[min(shared, count) :]))

    def store(self, device: torch.device, dtype: torch.dtype) -> KVStore:
        """The contexts in place, in a store of ``dtype``."""
        kv = KVStore(self.config, num_blocks=self.num_blocks, block_size=self.page, dtype=dtype, device=device)
        for half, held in zip((kv.keys(0), kv.values(0)), self.held, strict=True):
            half.copy_(held.view(half.shape).to(dtype))
        return kv

    def run(self, backend: AttentionBackend, kv_dtype: torch.dtype | None = None) -> torch.Tensor:
        """The step's attention on the device, back on the CPU."""
        device = self.bed.device
        batch = ForwardBatch.from_plan(self.plan, self.page, device)
        backend.plan(batch)
        q, k, v = (each.to(device) for each in (self.q, self.k, self.v))
        return backend.forward(0, q, k, v, batch, self.store(device, kv_dtype or self.dtype)).cpu()

    def expected(self) -> torch.Tensor:
        """By torch_paged in float32 on the CPU; where that is what is checked, or has no such attention, by definition in float64."""
        if self.config.attention_soft_cap is not None or not self.bed.on_gpu:
            return self._by_definition()
        oracle = TorchPagedAttention(self.config, block_size=self.page, dtype=torch.float32)
        oracle.plan(self.batch)
        q, k, v = (each.float() for each in (self.q, self.k, self.v))
        return oracle.forward(0, q, k, v, self.batch, self.store(CPU, torch.float32))

    def _by_definition(self) -> torch.Tensor:
        kv, config, outputs = self.store(CPU, torch.float32), self.config, []
        kv.write(0, self.batch.slots, self.k.float(), self.v.float())
        window = config.windows[0] or self.batch.max_seq_len
        for index, row in enumerate(self.plan.rows):
            first = int(self.batch.query_start[index])
            k, v = (
                half[torch.from_numpy(row.table.astype(np.int64))].flatten(0, 1)[: row.end].double()
                for half in (kv.keys(0), kv.values(0))
            )
            k, v = (half.repeat_interleave(config.group_size, 1) for half in (k, v))
            queries = self.q[first : first + len(row.tokens)].double()
            scores = torch.einsum("qhd,khd->hqk", queries, k) / math.sqrt(config.head_dim)
            if config.attention_soft_cap is not None:
                scores = config.attention_soft_cap * torch.tanh(scores / config.attention_soft_cap)
            ahead = torch.arange(row.end)[None] - (row.start + torch.arange(len(row.tokens))[:, None])
            hidden = (ahead > 0) | (ahead <= -window)
            outputs.append(torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, -math.inf).softmax(-1), v))
        return torch.cat(outputs)

    def check(
        self, backend: AttentionBackend, tolerance: float | None = None, kv_dtype: torch.dtype | None = None
    ) -> float:
        """The largest error, which is below ``tolerance``."""
        error = float((self.run(backend, kv_dtype).double() - self.expected().double()).abs().max())
        allowed = tolerance or TOLERANCE[self.dtype]
        # Not the other way round: a NaN is below nothing.
        assert error < allowed, f"largest error {error:.2e} of {allowed:.0e} allowed, at page size {self.page}"
        return error


def plan_row(tokens: list[int], table: np.ndarray[Any, Any], *, start: int = 0) -> PlanRow:
    """A greedy row that draws one token."""
    return PlanRow(
        rid=str(int(table[0])),
        start=start,
        tokens=np.array(tokens, np.int32),
        table=np.asarray(table, np.int32),
        sampling=SamplingParams(temperature=0.0),
        seed=0,
        num_prompt=start + len(tokens),
        num_samples=1,
    )


def layer(heads: tuple[int, int], head_dim: int = 64, **changes: Any) -> ModelConfig:
    """A model of one layer with such heads."""
    return dataclasses.replace(
        LLAMA_TINY, num_layers=1, num_heads=heads[0], num_kv_heads=heads[1], head_dim=head_dim, **changes
    )


def backend_of(bed: Bed, config: ModelConfig, page: int, **options: Any) -> AttentionBackend:
    """What the engine would take on this device."""
    options = {"dtype": bed.dtype, **options}
    return create_attention("auto", config, block_size=page, device=bed.device, **options)
