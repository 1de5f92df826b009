"""The paged KV cache as the kernels lay it out (drawn in ``src/rope_append.hpp``), and the way to and from plain tensors.

A layer's K and V are arrays of sub-blocks of 16 tokens; slot s is place ``s % 16`` of sub-block ``s // 16``, for every block size that is
a multiple of 16. Elements of one block, in all sub-blocks and heads, are contiguous, so that a copy of a block is one copy of memory.
"""

from __future__ import annotations

import torch

SUB_BLOCK = 16


def cache_shape(num_blocks: int, block_size: int, kv_heads: int, head_dim: int) -> tuple[int, int]:
    """Shape of a layer's K, and of its V: [blocks, elements of a block]."""
    assert block_size % SUB_BLOCK == 0, block_size
    return num_blocks, block_size * kv_heads * head_dim


def plain_k(cache: torch.Tensor, kv_heads: int, head_dim: int) -> torch.Tensor:
    """A layer's K as [slots, kv_heads, head_dim] (a view where strides allow it, else a copy)."""
    step = 2 if cache.dtype == torch.bfloat16 else 1
    split = cache.view(-1, kv_heads, head_dim // step, SUB_BLOCK, step)
    return split.permute(0, 3, 1, 2, 4).reshape(-1, kv_heads, head_dim)


def plain_v(cache: torch.Tensor, kv_heads: int, head_dim: int) -> torch.Tensor:
    """A layer's V as [slots, kv_heads, head_dim] (a view where strides allow it, else a copy)."""
    step = 2 if cache.dtype == torch.bfloat16 else 1
    split = cache.view(-1, kv_heads, SUB_BLOCK // step, head_dim, step)
    return split.permute(0, 2, 4, 1, 3).reshape(-1, kv_heads, head_dim)
