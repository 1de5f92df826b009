"""Memory of the KV pool: which bytes belong to a block, and nothing about how K and V lie inside them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from radixserve.model.config import ModelConfig


class BlockStore:
    """K and V of ``num_blocks`` blocks in all layers, or in the first ``num_layers``.

    One tensor [layers, 2, num_blocks, block_size * kv_heads * head_dim]. It is addressed by block; who owns a block is the
    cache's business, and the order of elements inside one that of the kernels which read and write it. Memory is not
    touched before it is written, so an unused part of the pool costs no resident memory and holds garbage: readers must
    never let a slot that was not written reach a result.
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
        self.num_layers = config.num_layers if num_layers is None else num_layers
        self.num_blocks = num_blocks
        self.block_size = block_size
        elements = block_size * config.num_kv_heads * config.head_dim
        self._data = torch.empty((self.num_layers, 2, num_blocks, elements), dtype=dtype, device=device)

    @property
    def num_bytes(self) -> int:
        """Size of the whole store in bytes."""
        return self._data.nbytes

    @property
    def block_bytes(self) -> int:
        """Bytes of one block over all layers, K and V."""
        return self._data.nbytes // self.num_blocks

    def layer(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The live K and V of a layer, each [num_blocks, elements of a block]."""
        return self._data[layer, 0], self._data[layer, 1]

    def copy_blocks(self, copies: npt.NDArray[np.int32]) -> None:
        """Copy whole blocks in every layer; ``copies`` [C, 2] is (source, destination). All sources are read first."""
        if len(copies) == 0:
            return
        pairs = torch.from_numpy(copies.astype(np.int64)).to(self._data.device)
        sources = self._data.index_select(2, pairs[:, 0])
        self._data.index_copy_(2, pairs[:, 1], sources)

    def poison(self, block_ids: npt.ArrayLike) -> None:
        """Fill blocks with NaN, so that a read of a freed block shows."""
        ids = torch.from_numpy(np.asarray(block_ids, np.int64).reshape(-1)).to(self._data.device)
        self._data.index_fill_(2, ids, float("nan"))
