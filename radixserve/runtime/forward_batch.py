"""The tensors of one forward pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from radixserve.scheduler.plan import StepPlan

Int64Array = npt.NDArray[np.int64]
IntArray = npt.NDArray[np.integer[Any]]


class FlatRows(Protocol):
    """What is read of a flattened plan behind the forward pass, whatever form it had for that.

    The arrays are those of `ForwardBatch`, of any integers.
    """

    @property
    def num_rows(self) -> int:
        """R."""

    @property
    def query_start(self) -> IntArray:
        """[R + 1]."""

    @property
    def sample_rows(self) -> Int64Array:
        """[S]."""

    @property
    def sample_tokens(self) -> Int64Array:
        """[S]."""


@dataclass(frozen=True, slots=True, eq=False)
class ForwardBatch:
    """All rows of a step flattened to T tokens of R rows.

    What kernels read is a tensor on the device; what attention backends plan with stays in numpy on the host.

    ``tokens``, ``positions``, ``slots``
        int64 [T]: token ids, absolute positions, and the KV slot of each token.
    ``query_start``
        [R + 1]: row r owns tokens ``query_start[r]`` to ``query_start[r + 1] - 1``.
    ``seq_lens``
        [R]: tokens whose KV is in place once a layer has written this batch's K and V.
    ``table_start``, ``table_blocks``
        [R + 1] and [sum]: row r's block table is ``table_blocks[table_start[r]:table_start[r + 1]]``.
    ``sample_rows``, ``sample_tokens``
        [S]: the rows that draw tokens, and the index in T of their last token.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    query_start: Int64Array
    seq_lens: Int64Array
    table_start: Int64Array
    table_blocks: Int64Array
    sample_rows: Int64Array
    sample_tokens: Int64Array
    block_size: int

    @property
    def num_tokens(self) -> int:
        """T, the tokens computed by this pass."""
        return len(self.tokens)

    @property
    def num_rows(self) -> int:
        """R, the rows (requests) of this pass."""
        return len(self.seq_lens)

    @property
    def max_seq_len(self) -> int:
        """The longest row's context in tokens, this pass included."""
        return int(self.seq_lens.max())

    @classmethod
    def from_plan(cls, plan: StepPlan, block_size: int, device: torch.device | None = None) -> ForwardBatch:
        """Flatten a plan with at least one row. Nothing in the batch aliases the plan."""
        rows = plan.rows
        lengths = np.array([len(row.tokens) for row in rows], np.int64)
        starts = np.array([row.start for row in rows], np.int64)
        table_lengths = np.array([len(row.table) for row in rows], np.int64)
        seq_lens = starts + lengths
        assert lengths.min() > 0, "a planned row extends by at least one token"
        assert (table_lengths * block_size >= seq_lens).all(), "a row's block table covers all its tokens"
        query_start = np.concatenate(([0], np.cumsum(lengths)))
        table_start = np.concatenate(([0], np.cumsum(table_lengths)))
        table_blocks = np.concatenate([row.table for row in rows]).astype(np.int64)
        positions = np.arange(query_start[-1]) + np.repeat(starts - query_start[:-1], lengths)
        block_index = np.repeat(table_start[:-1], lengths) + positions // block_size
        slots = table_blocks[block_index] * block_size + positions % block_size
        sample_rows = np.flatnonzero(np.array([row.num_samples for row in rows]))
        return cls(
            tokens=torch.from_numpy(np.concatenate([row.tokens for row in rows]).astype(np.int64)).to(device),
            positions=torch.from_numpy(positions).to(device),
            slots=torch.from_numpy(slots).to(device),
            query_start=query_start,
            seq_lens=seq_lens,
            table_start=table_start,
            table_blocks=table_blocks,
            sample_rows=sample_rows,
            sample_tokens=query_start[1:][sample_rows] - 1,
            block_size=block_size,
        )
