"""The paged KV cache as the kernels lay it out (drawn in ``src/rope_append.hpp``), and the way to and from plain tensors.

A layer's K and V are arrays of sub-blocks of 16 tokens; slot s is place ``s % 16`` of sub-block ``s // 16``, for every block size that is
a multiple of 16. Elements of one block, in all sub-blocks and heads, are contiguous, so that a copy of a block is one copy of memory. A
cache of int8 holds the scales among them, as pairs of elements.
"""

from __future__ import annotations

import torch

SUB_BLOCK = 16


def head_elements(head_dim: int, dtype: torch.dtype) -> int:
    """Elements of ``dtype`` that one head of a token takes in K, and in V: of int8 two more, which are its bf16 scale."""
    return head_dim + (torch.bfloat16.itemsize if dtype == torch.int8 else 0)


def cache_shape(
    num_blocks: int, block_size: int, kv_heads: int, head_dim: int, dtype: torch.dtype = torch.bfloat16
) -> tuple[int, int]:
    """Shape of a layer's K, and of its V: [blocks, elements of a block]."""
    assert block_size % SUB_BLOCK == 0, block_size
    return num_blocks, block_size * kv_heads * head_elements(head_dim, dtype)


def plain_k(cache: torch.Tensor, kv_heads: int, head_dim: int) -> torch.Tensor:
    """A layer's K as [slots, kv_heads, head_dim] (a view where strides allow it, else a copy); integers of int8 without their scales."""
    step = 1 if cache.dtype == torch.float32 else 2
    split = _heads(cache, kv_heads, head_dim).reshape(-1, kv_heads, head_dim // step, SUB_BLOCK, step)
    return split.permute(0, 3, 1, 2, 4).reshape(-1, kv_heads, head_dim)


def plain_v(cache: torch.Tensor, kv_heads: int, head_dim: int) -> torch.Tensor:
    """A layer's V as [slots, kv_heads, head_dim] (a view where strides allow it, else a copy); integers of int8 without their scales."""
    step = 1 if cache.dtype == torch.float32 else 2
    split = _heads(cache, kv_heads, head_dim).reshape(-1, kv_heads, SUB_BLOCK // step, head_dim, step)
    return split.permute(0, 2, 4, 1, 3).reshape(-1, kv_heads, head_dim)


def plain_scales(cache: torch.Tensor, kv_heads: int, head_dim: int) -> torch.Tensor:
    """The scales of a layer's K or V in int8: bf16 [slots, kv_heads], a copy."""
    heads = cache.view(-1, kv_heads, SUB_BLOCK * head_elements(head_dim, cache.dtype))
    scales = heads[:, :, SUB_BLOCK * head_dim :].contiguous().view(torch.bfloat16)
    return scales.transpose(1, 2).reshape(-1, kv_heads)


def _heads(cache: torch.Tensor, kv_heads: int, head_dim: int) -> torch.Tensor:
    """The numbers of each head of each sub-block, [sub-blocks, kv_heads, 16 * head_dim]: a view."""
    heads = cache.view(-1, kv_heads, SUB_BLOCK * head_elements(head_dim, cache.dtype))
    return heads[:, :, : SUB_BLOCK * head_dim]
