"""Linears of which every rank of a tensor-parallel decoder has some columns."""

from __future__ import annotations

import torch

from radixserve.model.ops import Linear, SumOverRanks


class SummedLinear:
    """A linear whose product is a sum over ranks; ``part``: this rank's columns. The bias is in one rank's part only."""

    def __init__(self, part: Linear, sum_over_ranks: SumOverRanks) -> None:
        self.part = part
        self._sum = sum_over_ranks

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """The whole product, of the parts of ``x`` that the ranks have."""
        return self._sum(self.part(x))

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """``residual`` and the whole product, in the type of ``residual``."""
        return residual + self._sum(self.part(x))


def own_part(linear: Linear) -> Linear:
    """What of ``linear`` this process computes by itself."""
    return linear.part if isinstance(linear, SummedLinear) else linear
