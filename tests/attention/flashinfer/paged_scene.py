"""Batches over a poisoned store, whose rows may share pages."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import torch
from hypothesis import strategies as st

from radixserve.attention.base import AttentionBackend
from radixserve.model.config import ModelConfig
from radixserve.runtime.forward_batch import ForwardBatch, Int64Array
from radixserve.runtime.kv_store import KVStore
from radixserve.scheduler.plan import StepPlan
from tests.tiny_decoder import plan_row

CPU = torch.device("cpu")


@dataclasses.dataclass(frozen=True)
class Row:
    """``context`` tokens are in the store, ``extent`` are computed; the first ``shared`` pages are those of row ``parent``.

    Pages that the parent does not have, or that hold tokens which this row computes itself, are not shared.
    """

    context: int
    extent: int = 1
    parent: int = 0
    shared: int = 0


class Scene:
    """Rows with random queries, keys and values for their extents, over random KV of their contexts; all else is NaN."""

    def __init__(
        self,
        config: ModelConfig,
        block_size: int,
        rows: list[Row],
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
        kv_dtype: torch.dtype | None = None,
    ) -> None:
        self.config, self.block_size, self.rows, self.dtype = config, block_size, rows, dtype
        rng, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
        self.tables = self._tables(rng)
        num_blocks = int(max(table.max() for table in self.tables)) + 3
        plan = StepPlan(
            0,
            tuple(
                plan_row([0] * row.extent, table, start=row.context)
                for row, table in zip(rows, self.tables, strict=True)
            ),
        )
        self.batch = ForwardBatch.from_plan(plan, block_size)
        shape = (config.num_layers, 2, num_blocks, block_size, config.num_kv_heads, config.head_dim)
        self._kept = torch.randn(shape, generator=generator).to(dtype)
        self._known = torch.zeros(num_blocks, block_size, dtype=torch.bool)
        for row, table in zip(rows, self.tables, strict=True):
            position = np.arange(row.context)
            self._known[torch.from_numpy(table[position // block_size]), torch.from_numpy(position % block_size)] = True
        self._kv_dtype = kv_dtype or dtype
        total = self.batch.num_tokens

        def normal(heads: int) -> torch.Tensor:
            return torch.randn(total, heads, config.head_dim, generator=generator).to(dtype)

        self.q, self.k, self.v = normal(config.num_heads), normal(config.num_kv_heads), normal(config.num_kv_heads)

    def _tables(self, rng: np.random.Generator) -> list[Int64Array]:
        needed = [-(-(row.context + row.extent) // self.block_size) for row in self.rows]
        names = rng.permutation(sum(needed) + 5).astype(np.int64)
        tables: list[Int64Array] = []
        for row, pages in zip(self.rows, needed, strict=True):
            own, names = names[:pages], names[pages:]
            if tables and row.shared:
                parent = row.parent % len(tables)
                held = (self.rows[parent].context + self.rows[parent].extent) // self.block_size
                shared = min(row.shared, held, row.context // self.block_size)
                own = np.concatenate((tables[parent][:shared], own[shared:]))
            tables.append(own)
        return tables

    def store(self, kv_dtype: torch.dtype | None = None) -> KVStore:
        """A store with the contexts in place and NaN everywhere else."""
        config = self.config
        kv = KVStore(
            config,
            num_blocks=self._known.shape[0],
            block_size=self.block_size,
            dtype=kv_dtype or self._kv_dtype,
            device=CPU,
        )
        for layer in range(config.num_layers):
            for half, held in zip((kv.keys(layer), kv.values(layer)), self._kept[layer], strict=True):
                half.copy_(held.masked_fill(~self._known[:, :, None, None], math.nan))
        return kv

    def run(self, backend: AttentionBackend, layer: int = 0) -> tuple[torch.Tensor, KVStore]:
        """Plan and attend once; the output and the store afterwards."""
        kv = self.store()
        backend.plan(self.batch)
        return backend.forward(layer, self.q, self.k, self.v, self.batch, kv), kv

    def expected(self, layer: int = 0) -> torch.Tensor:
        """By definition, dense and in float64, with the window and the soft cap of the configuration."""
        config, kv = self.config, self.store(self.dtype)
        kv.write(layer, self.batch.slots, self.k, self.v)
        outputs = []
        for index, (row, table) in enumerate(zip(self.rows, self.tables, strict=True)):
            length = row.context + row.extent
            tokens = slice(int(self.batch.query_start[index]), int(self.batch.query_start[index + 1]))
            k, v = (
                half[torch.from_numpy(table)].flatten(0, 1)[:length].double().repeat_interleave(config.group_size, 1)
                for half in (kv.keys(layer), kv.values(layer))
            )
            scores = torch.einsum("qhd,khd->hqk", self.q[tokens].double(), k) / math.sqrt(config.head_dim)
            if config.attention_soft_cap is not None:
                scores = config.attention_soft_cap * torch.tanh(scores / config.attention_soft_cap)
            query, key = row.context + torch.arange(row.extent)[:, None], torch.arange(length)[None, :]
            hidden = key > query
            window = config.windows[layer]
            if window is not None:
                hidden |= key <= query - window
            outputs.append(torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, -math.inf).softmax(-1), v))
        return torch.cat(outputs)


def written(kv: KVStore, layer: int = 0) -> list[torch.Tensor]:
    """K and V of a layer with unwritten slots as zeros, to be compared."""
    return [half.float().nan_to_num() for half in (kv.keys(layer), kv.values(layer))]


def row_lists(extents: st.SearchStrategy[int], most: int = 6) -> st.SearchStrategy[list[Row]]:
    """Rows with contexts around page ends; some have none, some share pages."""
    contexts = st.one_of(st.integers(1, 70), st.sampled_from([15, 16, 17, 31, 32, 33, 128]))
    return st.lists(
        st.builds(Row, contexts, extents, st.integers(0, most), st.integers(0, 8)), min_size=1, max_size=most
    )
