"""The final norm and the LM head of a native decoder, recorded: all logits of some tokens, or their largest alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from radixserve.model.config import ModelConfig
from radixserve.native import operations as ops
from radixserve.native.abi import Rows
from radixserve.native.library import NativeLibrary
from radixserve.native.operations import Operation
from radixserve.native.program import Program, StepBatch
from radixserve.runtime.native_weights import NativeWeights
from radixserve.runtime.top_logits import TopLogits


@dataclass(frozen=True, slots=True, eq=False)
class _Top:
    """A program that finds so many largest logits a row, and where it writes them."""

    program: Program
    ids: npt.NDArray[np.int32]
    values: npt.NDArray[np.float32]


class NativeHead:
    """Works on up to ``rows`` tokens of a step whose hidden states are ``residual + delta`` (float32 [tokens, hidden]).

    Both ways take their outputs from the same kernel, so the largest logits have the bits that they have among all logits.
    """

    def __init__(
        self,
        library: NativeLibrary,
        config: ModelConfig,
        weights: NativeWeights,
        residual: torch.Tensor,
        delta: torch.Tensor,
        *,
        rows: int,
    ) -> None:
        self._library = library
        self._weight = weights.head
        self._normed = torch.empty(
            rows, config.hidden_size, dtype=torch.float32 if weights.head.in_blocks else weights.dtype
        )
        self._norm = ops.norm(
            residual, weights.final_norm, self._normed, eps=config.rms_norm_eps, delta=delta, rows=Rows.WANTED
        )
        # Memory that is not touched costs nothing.
        self._logits = torch.empty(rows, config.vocab_size)
        self._all = self._program(ops.linear(self._weight, self._normed, self._logits, rows=Rows.WANTED))
        self._tops: dict[int, _Top] = {}

    def logits(self, batch: StepBatch, count: int) -> torch.Tensor:
        """Float32 [count, vocab] of the ``count`` wanted rows of ``batch``: a view that the next call writes over."""
        self._check(count)
        self._all.run(batch)
        return self._logits[:count]

    def top(self, batch: StepBatch, count: int, k: int) -> TopLogits:
        """The ``k`` largest logits of the ``count`` wanted rows of ``batch``: views that the next call writes over."""
        self._check(count)
        top = self._tops.get(k) or self._record_top(k)
        top.program.run(batch)
        return TopLogits(top.ids[:count], top.values[:count])

    def _record_top(self, k: int) -> _Top:
        rows = len(self._normed)
        ids, values = torch.empty(rows, k, dtype=torch.int32), torch.empty(rows, k)
        program = self._program(ops.linear_top_k(self._weight, self._normed, ids, values))
        top = self._tops[k] = _Top(program, ids.numpy(), values.numpy())
        return top

    def _program(self, operation: Operation) -> Program:
        return Program(self._library, [self._norm, operation])

    def _check(self, count: int) -> None:
        assert count <= len(self._normed), f"{count} rows, room for {len(self._normed)}"
