"""Rounding of K and V to int8, as the torch path does it.

A head of a token is rounded by itself: ``x = scale * q`` with ``scale = max |x| / 127`` rounded up to bf16, so that q stays within 127.
The native kernels do the same (``native/src/kv_quant.hpp``). What is stored depends on that token alone, so the promise of equal bits
holds as it does for other types.
"""

from __future__ import annotations

import torch

# The least normal float32: what would need a smaller scale is rounded to zero.
_SMALLEST_SCALE = 2.0**-126


def quantize(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``x`` [..., head_dim] as int8 of the same shape and bf16 scales [...].

    The scale of a head that is not finite is NaN, so that all that is made of it becomes NaN.
    """
    wide = x.float()
    largest = wide.abs().amax(-1)
    exact = torch.where(largest.isfinite(), largest / 127.0, 0.0)
    # Upwards to the next number that bf16 has: it keeps the upper half of a float32.
    scale = ((exact.view(torch.int32) + 0xFFFF) & ~0xFFFF).view(torch.float32)
    divisor = torch.where(scale >= _SMALLEST_SCALE, scale, 1.0).unsqueeze(-1)
    q = (wide / divisor).nan_to_num().clamp(-127.0, 127.0).round().to(torch.int8)
    return q, torch.where(largest.isfinite(), scale, torch.nan).bfloat16()


def dequantize(q: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The numbers of int8 ``q`` [..., head_dim] with ``scale`` [...], in ``dtype``."""
    return (q.float() * scale.float().unsqueeze(-1)).to(dtype)
