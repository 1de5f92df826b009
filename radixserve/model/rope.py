"""Rotary position embedding: frequencies, and the one table of cosines and sines that every path reads.

Su et al. 2021, "RoFormer", section 3.2.2, in the half-rotation order: element i of a head turns together with element
``i + head_dim / 2``. The table is computed in float64 and rounded once, always in whole blocks of positions, because an
ulp of difference in a cosine is enough to move logits visibly.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch

from radixserve.model.config import ModelConfig, RopeScaling

TABLE_BLOCK = 1024

Float64Array = npt.NDArray[np.float64]


def inverse_frequencies(head_dim: int, theta: float, scaling: RopeScaling) -> Float64Array:
    """Radians per position, float64[head_dim / 2], after the model's scaling."""
    plain = theta ** -(np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    if scaling.kind == "none":
        return plain
    if scaling.kind == "linear":
        return plain / scaling.factor
    if scaling.kind == "llama3":
        return _llama3(plain, scaling)
    return plain / np.asarray(scaling.frequency_factors, np.float64)


def _llama3(plain: Float64Array, scaling: RopeScaling) -> Float64Array:
    """Llama 3.1's rule, in turns per original context: stretch what turns less than ``low_freq_factor`` times.

    What turns more than ``high_freq_factor`` times is kept; between the two the blend is linear.
    """
    turns = scaling.original_context * plain / (2 * math.pi)
    span = scaling.high_freq_factor - scaling.low_freq_factor
    keep = np.clip((turns - scaling.low_freq_factor) / span, 0.0, 1.0)
    return plain * (keep + (1.0 - keep) / scaling.factor)


def cosines_and_sines(frequencies: Float64Array, first: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of positions [first, first + count), float32 [count, head_dim / 2] on the CPU.

    The bits of a position do not depend on ``first`` and ``count``: both are multiples of `TABLE_BLOCK`.
    """
    assert first % TABLE_BLOCK == count % TABLE_BLOCK == 0
    cos, sin = (torch.empty(count, len(frequencies)) for _ in range(2))
    for start in range(0, count, TABLE_BLOCK):
        positions = np.arange(first + start, first + start + TABLE_BLOCK, dtype=np.float64)
        angles = positions[:, None] * frequencies
        cos[start : start + TABLE_BLOCK] = torch.from_numpy(np.cos(angles))
        sin[start : start + TABLE_BLOCK] = torch.from_numpy(np.sin(angles))
    return cos, sin


class RopeTable:
    """Cosines and signed sines by absolute position, grown on demand.

    ``lookup`` returns two float32 [T, head_dim] tensors ``cos`` and ``sin`` such that the rotation of a head x is
    ``x * cos + swap_halves(x) * sin``: the sine of the first half carries its minus sign.
    """

    def __init__(self, config: ModelConfig, device: torch.device) -> None:
        self._frequencies = inverse_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
        self._device = device
        self._cos = torch.empty(0, config.head_dim, device=device)
        self._sin = torch.empty(0, config.head_dim, device=device)

    def lookup(self, positions: torch.Tensor, limit: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows of the table for int64 ``positions`` [T], all below ``limit``."""
        if limit > len(self._cos):
            self._grow(limit)
        return self._cos.index_select(0, positions), self._sin.index_select(0, positions)

    def _grow(self, limit: int) -> None:
        """Extend the table to at least ``limit`` positions, at least doubling it so that growth is rare."""
        held = len(self._cos)
        wanted = math.ceil(max(limit, 2 * held) / TABLE_BLOCK) * TABLE_BLOCK
        cos, sin = cosines_and_sines(self._frequencies, held, wanted - held)
        cos, sin = torch.cat((cos, cos), 1).to(self._device), torch.cat((-sin, sin), 1).to(self._device)
        self._cos, self._sin = torch.cat((self._cos, cos)), torch.cat((self._sin, sin))
