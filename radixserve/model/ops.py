"""The seam between the decoder and the kernels that do its arithmetic.

The decoder is written once against these protocols; an implementation packs the weights as it likes and fuses what it
likes behind a handful of calls a layer. The law for all of them on a CPU: **the bits of an output row depend on that row
alone**, never on how many other rows are in the batch, on the row's place in it, or on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

# A gated feed-forward unit: x [T, hidden] -> silu(gate x) * (up x), [T, intermediate].
GatedUnit = Callable[[torch.Tensor], torch.Tensor]


# Sums this rank's part, [T, hidden], over all ranks of a tensor-parallel decoder, who all call it at the same places.
SumOverRanks = Callable[[torch.Tensor], torch.Tensor]


class Linear(Protocol):
    """A weight [out, in] with an optional bias [out], packed for its kernel; ``x`` is [T, in]."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """``x weightᵀ + bias`` as [T, out]."""

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """``residual + x weightᵀ + bias`` as [T, out], of the dtype of ``residual``; neither input is changed."""


class Ops(Protocol):
    """Builds packed weights and runs the element-wise parts of a layer.

    ``stream``: dtype of the residual stream.
    """

    name: str
    stream: torch.dtype

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        """Pack a weight; its dtype is the dtype of the activations. The caller may drop ``weight`` afterwards."""

    def gated(
        self,
        gate: torch.Tensor,
        up: torch.Tensor,
        gate_bias: torch.Tensor | None = None,
        up_bias: torch.Tensor | None = None,
    ) -> GatedUnit:
        """Pack the two input projections of the feed-forward block (both [intermediate, hidden])."""

    def head(self, weight: torch.Tensor) -> Linear:
        """Pack the LM head [vocab, hidden] so that float32 activations give float32 logits."""

    def scale(self, weight: torch.Tensor) -> torch.Tensor:
        """A norm's weight in the dtype in which `rms_norm` and `add_norm` take it."""

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float, dtype: torch.dtype) -> torch.Tensor:
        """RMSNorm of the last axis of ``x`` (Zhang and Sennrich 2019), rounded to ``dtype``."""

    def add_norm(
        self,
        linear: Linear,
        x: torch.Tensor,
        residual: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        dtype: torch.dtype,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """``linear.add(x, residual)``, and its `rms_norm`. The caller gives ``residual`` away: it may be the sum afterwards."""

    def rope(
        self,
        heads: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        norm: torch.Tensor | None,
        eps: float,
    ) -> torch.Tensor:
        """Rotate ``heads`` [T, n, head_dim] by ``cos`` and ``sin`` (float32 [T, head_dim], see `RopeTable`).

        The caller gives ``heads`` away: the result may lie in its memory.

        Before that comes an RMSNorm of each head with its row of ``norm`` (float32 [n, head_dim]), if the model has one.
        """
