"""The protocol of an attention backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

    from radixserve.model.config import ModelConfig
    from radixserve.runtime.forward_batch import ForwardBatch
    from radixserve.runtime.kv_store import KVStore


class AttentionBackend(Protocol):
    """Writes K and V of a step's tokens into their slots, then attends each query to its own paged past.

    ``plan`` is called once a step, ``forward`` once a layer; the batch is passed explicitly, there is no global state.
    """

    name: str

    @staticmethod
    def supports(model: ModelConfig, device: str, dtype: torch.dtype, kv_dtype: torch.dtype | None = None) -> list[str]:
        """Reasons why this backend cannot serve the model here; empty if it can.

        ``dtype``: of queries, keys and values that it is given; ``kv_dtype``: of the store, None for the same.
        """

    def plan(self, batch: ForwardBatch) -> None:
        """Prepare what all layers of this step share."""

    def forward(
        self,
        layer: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        batch: ForwardBatch,
        kv: KVStore,
    ) -> torch.Tensor:
        """Append ``k``, ``v`` [T, kv_heads, head_dim] (k already rotated) to the batch's slots of ``layer`` for all
        rows, then return softmax(q kᵀ / sqrt(head_dim)) v as [T, heads, head_dim], causal by absolute position; the window and the soft cap
        of the model's configuration are applied.
        """
