"""Memory of the KV pool: which bytes belong to a block, and nothing about how K and V lie inside them."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from radixserve.model.config import ModelConfig
from radixserve.native.kv_layout import head_elements
from radixserve.runtime.host_copies import on_device


def block_bytes(config: ModelConfig, block_size: int, dtype: torch.dtype) -> int:
    """Bytes of K and V of one block over all layers, in a store of ``dtype``."""
    heads = config.num_layers * config.num_kv_heads * block_size
    return 2 * heads * head_elements(config.head_dim, dtype) * dtype.itemsize


class BlockMirror(Protocol):
    """Where other parts of the same blocks are kept."""

    def copy_blocks(self, copies: npt.NDArray[np.int32]) -> None:
        """As `BlockStore.copy_blocks`; ``copies`` has at least one."""

    def poison(self, block_ids: npt.ArrayLike) -> None:
        """As `BlockStore.poison`."""


class BlockStore:
    """K and V of ``num_blocks`` blocks in all layers, or in the first ``num_layers``.

    One tensor [layers, 2, num_blocks, block_size * kv_heads * head_dim] of ``dtype``, of int8 with the scales beside (`head_elements`).
    It is addressed by block; who owns a block is the cache's business, and the order of elements inside one that of the kernels
    which read and write it. Memory is not
    touched before it is written, so an unused part of the pool costs no resident memory and holds garbage: readers must
    never let a slot that was not written reach a result. ``mirror``: does first what is done to blocks here.
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
        elements = block_size * config.num_kv_heads * head_elements(config.head_dim, dtype)
        self._data = torch.empty((self.num_layers, 2, num_blocks, elements), dtype=dtype, device=device)
        # Torch neither indexes nor fills float8 everywhere, so blocks of single bytes are moved as such.
        self._moved = self._data.view(torch.uint8) if dtype.itemsize == 1 else self._data
        self.mirror: BlockMirror | None = None
        # A byte of ones is NaN in every float8, and two are in the bf16 scales of int8.
        self._poison = 255.0 if dtype.itemsize == 1 else float("nan")

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
        if self.mirror is not None:
            self.mirror.copy_blocks(copies)
        pairs = on_device(copies.astype(np.int64), self._data.device)
        sources = self._moved.index_select(2, pairs[:, 0])
        self._moved.index_copy_(2, pairs[:, 1], sources)

    def poison(self, block_ids: npt.ArrayLike) -> None:
        """Fill blocks with NaN, those of int8 with such scales, so that a read of a freed block shows."""
        if self.mirror is not None:
            self.mirror.poison(block_ids)
        ids = torch.from_numpy(np.asarray(block_ids, np.int64).reshape(-1)).to(self._data.device)
        self._moved.index_fill_(2, ids, self._poison)
