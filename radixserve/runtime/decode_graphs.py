"""Captured steps of decodes: one graph for each of some numbers of rows, filled up to the next larger one.

A step of few decodes is a few hundred kernels of some microseconds each, and launching them takes longer than running them. What
may differ from step to step lies in memory that the graph reads: token ids, positions, tables, FlashInfer's plan. What a graph
takes for fixed is frozen when it has been captured: addresses, the workspace, the rotary table, which is grown to the longest
context before.
"""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass

import numpy as np
import torch

from radixserve.attention.flashinfer.backend import FlashInferAttention
from radixserve.attention.flashinfer.graph_decode import GraphDecodeAttention
from radixserve.errors import ConfigError
from radixserve.model.decoder import Decoder
from radixserve.runtime.forward_batch import ForwardBatch
from radixserve.runtime.graph_recorder import GraphRecorder, Recording
from radixserve.runtime.kv_store import KVStore

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class _Graph:
    attention: GraphDecodeAttention
    recording: Recording


def graph_sizes(most: int) -> list[int]:
    """The numbers of rows that are captured, ascending; the last is ``most``.

    Few, but so that no step computes much more than it needs: where a step is bound by reading weights, rows are nearly free.
    """
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, most, 16)]
    return [*(size for size in sizes if size < most), most]


class DecodeGraphs:
    """The captured steps of one decoder over one pool.

    ``spare``: a block of ``kv`` that the pool does not give out: rows that fill a graph up write there. ``most_rows``: of a step
    that is captured; ``context_length``: the longest of a row. The largest are captured first, since the smaller ones find room in
    their memory. What takes more than ``budget_bytes`` in all is dropped again, and steps of its size run in a larger graph or
    without one. Raises `ConfigError` where a step cannot be captured.
    """

    def __init__(
        self,
        decoder: Decoder,
        attention: FlashInferAttention,
        kv: KVStore,
        *,
        spare: int,
        most_rows: int,
        context_length: int,
        budget_bytes: int,
        recorder: GraphRecorder,
    ) -> None:
        self._decoder = decoder
        self._attention = attention
        self._kv = kv
        self._spare = spare
        self._context_length = context_length
        self._graphs: dict[int, _Graph] = {}
        self._staged: tuple[ForwardBatch, _Graph] | None = None
        self.replays = 0
        used = recorder.used_bytes()
        for rows in reversed(graph_sizes(most_rows)):
            self._capture(rows, recorder, used + budget_bytes)
        self.used_bytes = recorder.used_bytes() - used
        # Ascending, to be searched from the smallest on.
        self.sizes = tuple(sorted(self._graphs))
        logger.info("captured decodes of %s rows in %d MiB", list(self.sizes), self.used_bytes >> 20)

    def stage(self, batch: ForwardBatch) -> ForwardBatch | None:
        """``batch``, whose tensors are on the host, where a graph reads it; None where it is to be computed without one.

        The tensors of what is returned may be written to before `replay`: they are what the graph reads.
        """
        rows = next((size for size in self.sizes if size >= batch.num_rows), None)
        if rows is None or batch.num_tokens != batch.num_rows or self._attention.leaves_graph(batch):
            return None
        assert batch.max_seq_len <= self._context_length, "the rotary table would be made anew under the graphs"
        graph = self._graphs[rows]
        full = graph.attention.stage(batch, self._spare)
        count = batch.num_rows
        staged = dataclasses.replace(
            batch, tokens=full.tokens[:count], positions=full.positions[:count], slots=full.slots[:count]
        )
        self._staged = staged, graph
        return staged

    def replay(self, batch: ForwardBatch) -> torch.Tensor | None:
        """Hidden states, float32 [T, hidden], of what `stage` returned last; None for any other batch. As `Decoder.forward`."""
        if self._staged is None or self._staged[0] is not batch:
            return None
        hidden = self._staged[1].recording.replay()
        self.replays += 1
        return hidden[: batch.num_rows]

    def _capture(self, rows: int, recorder: GraphRecorder, limit: int) -> None:
        """Keep a graph of ``rows`` rows if the device's memory in use is no more than ``limit`` bytes then."""
        block_size = self._kv.block_size
        # One row has the longest context, so that nothing grows later; the others cost nothing.
        pages = rows * -(-self._context_length // block_size)
        attention = self._attention.graph_decode(rows, pages)
        batch = attention.stage(self._longest(rows), self._spare)
        try:
            recording = recorder.record(lambda: self._decoder.forward(batch, attention, self._kv))
        except RuntimeError as error:
            raise ConfigError(
                "cuda_graph", f"a step of {rows} decodes cannot be captured ({error}): off does without"
            ) from error
        attention.freeze()
        if recorder.used_bytes() <= limit:
            self._graphs[rows] = _Graph(attention, recording)
        else:
            logger.info("a graph of %d rows does not fit cuda_graph_memory_mb", rows)

    def _longest(self, rows: int) -> ForwardBatch:
        """Decodes on the host that read and write the spare block alone, the first at the end of the longest context."""
        seq_lens = np.ones(rows, np.int64)
        seq_lens[0] = self._context_length
        pages = -(-seq_lens // self._kv.block_size)
        positions = seq_lens - 1
        return ForwardBatch(
            tokens=torch.zeros(rows, dtype=torch.int64),
            positions=torch.from_numpy(positions),
            slots=torch.from_numpy(self._spare * self._kv.block_size + positions % self._kv.block_size),
            query_start=np.arange(rows + 1),
            seq_lens=seq_lens,
            table_start=np.concatenate(([0], np.cumsum(pages))),
            table_blocks=np.full(int(pages.sum()), self._spare),
            sample_rows=np.empty(0, np.int64),
            sample_tokens=np.empty(0, np.int64),
            block_size=self._kv.block_size,
        )
