"""Where the torch path keeps the keys and values of every cached token."""

from __future__ import annotations

import torch

from radixserve.model.config import ModelConfig
from radixserve.runtime.block_store import BlockStore
from radixserve.runtime.kv_quantization import dequantize, quantize


class KVStore(BlockStore):
    """A block store whose blocks are plain [block_size, kv_heads, head_dim], so that a slot is one row."""

    def __init__(
        self,
        config: ModelConfig,
        *,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        num_layers: int | None = None,
    ) -> None:
        super().__init__(
            config, num_blocks=num_blocks, block_size=block_size, dtype=dtype, device=device, num_layers=num_layers
        )
        self._width = config.num_kv_heads * config.head_dim
        self._plain = (num_blocks, block_size, config.num_kv_heads, config.head_dim)

    def keys(self, layer: int) -> torch.Tensor:
        """The live K of a layer, [num_blocks, block_size, kv_heads, head_dim]."""
        return self.layer(layer)[0].view(self._plain)

    def values(self, layer: int) -> torch.Tensor:
        """The live V of a layer, [num_blocks, block_size, kv_heads, head_dim]."""
        return self.layer(layer)[1].view(self._plain)

    def write(self, layer: int, slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """Store ``k``, ``v`` [T, kv_heads, head_dim] in int64 ``slots`` [T], which are distinct."""
        for half, new in zip(self.layer(layer), (k, v), strict=True):
            half.view(-1, self._width).index_copy_(0, slots, new.reshape(-1, self._width))

    def read(self, layer: int, blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Copies of K and V of int64 ``blocks`` [n] of a layer, each [n, block_size, kv_heads, head_dim]."""
        return self.keys(layer).index_select(0, blocks), self.values(layer).index_select(0, blocks)


class Int8KVStore(KVStore):
    """The same rounded to int8: a block is [block_size, kv_heads, head_dim] of integers, then their bf16 scales [block_size, kv_heads].

    ``dtype``: of what is read; keys and values are copies of a whole layer here.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        num_layers: int | None = None,
    ) -> None:
        super().__init__(
            config, num_blocks=num_blocks, block_size=block_size, dtype=torch.int8, device=device, num_layers=num_layers
        )
        self._dtype = dtype

    def keys(self, layer: int) -> torch.Tensor:
        """K of a layer as numbers, [num_blocks, block_size, kv_heads, head_dim]."""
        return self._numbers(self.layer(layer)[0])

    def values(self, layer: int) -> torch.Tensor:
        """V of a layer as numbers, [num_blocks, block_size, kv_heads, head_dim]."""
        return self._numbers(self.layer(layer)[1])

    def write(self, layer: int, slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """Round and store ``k``, ``v`` [T, kv_heads, head_dim] in int64 ``slots`` [T], which are distinct."""
        places = (slots // self.block_size, slots % self.block_size)
        for half, new in zip(self.layer(layer), (k, v), strict=True):
            for held, part in zip(self._parts(half), quantize(new), strict=True):
                held.index_put_(places, part)

    def read(self, layer: int, blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of int64 ``blocks`` [n] of a layer as numbers, each [n, block_size, kv_heads, head_dim]."""
        k, v = (self._numbers(half.index_select(0, blocks)) for half in self.layer(layer))
        return k, v

    def _numbers(self, blocks: torch.Tensor) -> torch.Tensor:
        """What int8 ``blocks`` [n, elements] hold, in the dtype of the arithmetic."""
        return dequantize(*self._parts(blocks), dtype=self._dtype)

    def _parts(self, blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Views of ``blocks``: integers [n, block_size, kv_heads, head_dim] and scales [n, block_size, kv_heads]."""
        _, size, kv_heads, head_dim = self._plain
        end = size * kv_heads * head_dim
        integers, scales = blocks[:, :end], blocks[:, end:]
        return integers.view(-1, size, kv_heads, head_dim), scales.view(torch.bfloat16).view(-1, size, kv_heads)


def create_kv_store(
    config: ModelConfig,
    *,
    num_blocks: int,
    block_size: int,
    dtype: torch.dtype,
    kv_dtype: torch.dtype,
    device: torch.device,
    num_layers: int | None = None,
) -> KVStore:
    """A store of ``kv_dtype`` for arithmetic in ``dtype``."""
    rounded = kv_dtype == torch.int8
    return (Int8KVStore if rounded else KVStore)(
        config,
        num_blocks=num_blocks,
        block_size=block_size,
        dtype=dtype if rounded else kv_dtype,
        device=device,
        num_layers=num_layers,
    )
