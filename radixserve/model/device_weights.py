"""Weights on another device than the one they were read to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch


class DeviceWeights(Mapping[str, torch.Tensor]):
    """The same weights, each copied to ``device`` when it is asked for and not kept: packing takes them one by one.

    ``dtype``: of the matrices.
    """

    def __init__(self, weights: Mapping[str, torch.Tensor], dtype: torch.dtype, device: torch.device) -> None:
        self._weights = weights
        self.dtype = dtype
        self.device = device

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._weights[name].to(self.device)

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)
