"""A step's arrays as the native kernels read them, in memory that stays where it is from one step to the next."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from radixserve.native.program import StepBatch
from radixserve.runtime.forward_batch import ForwardBatch, Int64Array
from radixserve.scheduler.plan import PlanRow, StepPlan

Int32Array = npt.NDArray[np.int32]

# Room for tokens, rows and blocks grows in steps of so many.
_STEP = 64


class NativeStep:
    """One step after another, flattened to T tokens of R rows as `ForwardBatch` flattens them, but all int32 and in the same arrays.

    Their addresses are taken once, and a block table is copied only where it is not the very array that stood in the row of that
    index in the step before: with the same decodes in each step, most of it stays. What a step left is valid until the next.

    ``query_start`` [R + 1], ``sample_rows`` and ``sample_tokens`` [S]: as in `ForwardBatch`. ``longest``: its ``max_seq_len``.
    """

    def __init__(self, *, num_blocks: int, block_size: int, vocab_size: int) -> None:
        self._num_blocks = num_blocks
        self._block_size = block_size
        self._vocab_size = vocab_size
        self.num_tokens = self.num_rows = self.longest = 0
        self.query_start = np.zeros(1, np.int32)
        self.sample_rows = self.sample_tokens = np.empty(0, np.int64)
        self._tables = np.empty((0, 0), np.int32)
        self._token_ids = np.empty(0, np.int32)
        # The array that a row of the tables was copied from, where nobody can have written to it since.
        self._held: list[Int32Array | None] = []
        self._make_room(_STEP, _STEP, _STEP)

    # ---------------------------------------------------------------- flatten

    def take(self, plan: StepPlan) -> None:
        """The rows of ``plan``, at least one, are the step. Nothing of it aliases the plan."""
        rows = plan.rows
        lengths = [len(row.tokens) for row in rows]
        starts = [row.start for row in rows]
        num_tokens, num_rows = sum(lengths), len(rows)
        assert min(lengths) > 0, "a planned row extends by at least one token"
        self._make_room(num_tokens, num_rows, max(len(row.table) for row in rows))
        self._hold_tables(rows, lengths)
        self.query_start = self._query_start[: num_rows + 1]
        positions, seq_lens = self._positions[:num_tokens], self._seq_lens[:num_rows]
        drawing = [index for index, row in enumerate(rows) if row.num_samples]
        self.sample_rows = self._numbers[:num_rows] if len(drawing) == num_rows else np.array(drawing, np.int64)
        if num_tokens == num_rows:
            # Decodes alone, the usual step: token r is row r's. After a forward pass nothing is left in the CPU's caches, so each
            # operation of numpy, even on a few numbers, takes as long as a dozen rows in Python.
            size = self._block_size
            token_ids = [row.tokens.item() for row in rows]
            longest = max(starts) + 1
            self._check_tokens(min(token_ids), max(token_ids))
            self._token_ids[:num_tokens] = token_ids
            positions[:] = starts
            seq_lens[:] = [start + 1 for start in starts]
            self._slots[:num_tokens] = [
                row.table.item(start // size) * size + start % size for row, start in zip(rows, starts, strict=True)
            ]
            self.query_start[:] = self._numbers[: num_rows + 1]
            self.sample_tokens = self.sample_rows
        else:
            np.concatenate([row.tokens for row in rows], out=self._token_ids[:num_tokens])
            np.cumsum(lengths, out=self.query_start[1:])
            np.add(starts, lengths, out=seq_lens, casting="unsafe")
            positions[:] = self._numbers[:num_tokens]
            positions += np.repeat(np.array(starts, np.int32) - self.query_start[:-1], lengths)
            self.sample_tokens = self.query_start[1:][self.sample_rows].astype(np.int64) - 1
            longest = int(seq_lens.max())
            self._check_tokens(int(self._token_ids[:num_tokens].min()), int(self._token_ids[:num_tokens].max()))
            index, offset = np.divmod(positions, self._block_size)
            rows_of = np.repeat(self._numbers[:num_rows], lengths)
            self._slots[:num_tokens] = self._tables[rows_of, index] * self._block_size + offset
        self._count(num_tokens, num_rows, longest)

    def copy(self, batch: ForwardBatch) -> None:
        """``batch`` is the step."""
        num_tokens, num_rows = batch.num_tokens, batch.num_rows
        bounds = batch.table_start.tolist()
        self._make_room(num_tokens, num_rows, int(np.diff(batch.table_start).max()))
        for index in range(num_rows):
            self._copy_table(index, batch.table_blocks[bounds[index] : bounds[index + 1]].astype(np.int32))
            self._held[index] = None
        self._check_tokens(int(batch.tokens.min()), int(batch.tokens.max()))
        self._token_ids[:num_tokens] = batch.tokens.numpy()
        self._positions[:num_tokens] = batch.positions.numpy()
        self._slots[:num_tokens] = batch.slots.numpy()
        self._seq_lens[:num_rows] = batch.seq_lens
        self.query_start = self._query_start[: num_rows + 1]
        self.query_start[:] = batch.query_start
        self.sample_rows, self.sample_tokens = batch.sample_rows, batch.sample_tokens
        self._count(num_tokens, num_rows, batch.max_seq_len)

    def batch(self, wanted: Int64Array | None = None) -> StepBatch:
        """This step with the tokens ``wanted``, whose logits are to be computed; valid until the next call."""
        count = 0
        if wanted is not None:
            count = len(wanted)
            self._wanted[:count] = wanted
        self._batch.struct.wanted = count
        return self._batch

    # ---------------------------------------------------------------- inside

    def _hold_tables(self, rows: Sequence[PlanRow], lengths: Sequence[int]) -> None:
        held, size = self._held, self._block_size
        for index, row in enumerate(rows):
            table = row.table
            if table is not held[index]:
                self._copy_table(index, table)
                held[index] = None if table.flags.writeable else table
            assert len(table) * size >= row.start + lengths[index], "a row's block table covers all its tokens"

    def _copy_table(self, index: int, table: Int32Array) -> None:
        # The kernels check nothing: better a step that fails here than a read beside the pool. A negative id is a huge one.
        assert int(table.view(np.uint32).max()) < self._num_blocks, "a block id lies outside the pool"
        self._tables[index, : len(table)] = table

    def _check_tokens(self, least: int, largest: int) -> None:
        assert least >= 0 and largest < self._vocab_size, "a token id lies outside the vocabulary"

    def _count(self, num_tokens: int, num_rows: int, longest: int) -> None:
        self.num_tokens, self.num_rows, self.longest = num_tokens, num_rows, longest
        self._batch.struct.tokens, self._batch.struct.requests = num_tokens, num_rows

    def _make_room(self, tokens: int, rows: int, blocks: int) -> None:
        """Larger arrays where these are too small; what they hold is forgotten."""
        held_rows, held_blocks = self._tables.shape
        if tokens <= len(self._token_ids) and rows <= held_rows and blocks <= held_blocks:
            return
        tokens, rows, blocks = (
            max(held, math.ceil(needed / _STEP) * _STEP)
            for held, needed in zip((len(self._token_ids), held_rows, held_blocks), (tokens, rows, blocks), strict=True)
        )
        self._token_ids, self._positions, self._slots, self._wanted = (np.zeros(tokens, np.int32) for _ in range(4))
        self._query_start, self._seq_lens = np.zeros(rows + 1, np.int32), np.zeros(rows, np.int32)
        self._tables = np.zeros((rows, blocks), np.int32)
        self._numbers = np.arange(max(tokens, rows) + 1)
        self._numbers.flags.writeable = False
        self._held = [None] * rows
        self._batch = StepBatch(
            token_ids=self._token_ids,
            positions=self._positions,
            slots=self._slots,
            query_start=self._query_start,
            seq_lens=self._seq_lens,
            tables=self._tables,
            wanted_rows=self._wanted,
        )
