"""Where the torch path keeps the keys and values of every cached token."""

from __future__ import annotations

import torch

from radixserve.model.config import ModelConfig
from radixserve.runtime.block_store import BlockStore


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
