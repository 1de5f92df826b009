"""One decoder for Llama, Mistral, Qwen2 and Qwen3.

They are the same pre-norm transformer (Touvron et al. 2023, section 2.2, with the grouped heads of Ainslie et al. 2023)
and differ in biases (Qwen2), per-head norms of q and k (Qwen3), a sliding window (Mistral 7B, Jiang et al. 2023, section
2) and rotary scaling; all of it is data in `ModelConfig`, so there is no class per architecture.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from radixserve.model.config import ModelConfig
from radixserve.model.ops import GatedUnit, Linear, Ops, SumOverRanks
from radixserve.model.rope import RopeTable
from radixserve.model.summed_linear import SummedLinear

if TYPE_CHECKING:
    from radixserve.attention.base import AttentionBackend
    from radixserve.runtime.forward_batch import ForwardBatch
    from radixserve.runtime.kv_store import KVStore

Weights = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """Packed weights of one layer.

    ``qkv`` gives q, k and v side by side; ``qk_norm`` is float32 [heads + kv_heads, head_dim] or None.
    """

    attn_norm: torch.Tensor
    qkv: Linear
    qk_norm: torch.Tensor | None
    o: Linear
    mlp_norm: torch.Tensor
    gated: GatedUnit
    down: Linear


class Decoder:
    """The forward pass over one flattened batch.

    Packs its own copies of the ``weights`` (canonical names, see the loader) and keeps none of the originals except the
    embedding table.

    ``sum_over_ranks``: the decoder is one rank's part, ``config`` and ``weights`` are those of that part, and what o and down give is
    summed. ``with_head``: whether it is asked for `logits`; without, it has no LM head.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        ops: Ops,
        *,
        sum_over_ranks: SumOverRanks | None = None,
        with_head: bool = True,
    ) -> None:
        self.config = config
        self.ops = ops
        self._embed = weights["embed"]
        self.dtype = self._embed.dtype
        self._rope = RopeTable(config, self._embed.device)
        self.layers = [
            _build_layer(config, weights, f"layers.{index}", ops, sum_over_ranks) for index in range(config.num_layers)
        ]
        self._final_norm = weights["final_norm"].float()
        # The table itself, not weights["embed"] again: that may be another copy of it.
        self.head = ops.head(self._embed if config.tied_head else weights["head"]) if with_head else None

    def forward(self, batch: ForwardBatch, attention: AttentionBackend, kv: KVStore) -> torch.Tensor:
        """Hidden states, float32 [T, hidden], after the last layer and before the final norm.

        K and V of the batch's tokens are in ``kv`` afterwards.
        """
        config, ops = self.config, self.ops
        num_rotated = config.num_heads + config.num_kv_heads
        attention.plan(batch)
        cos, sin = self._rope.lookup(batch.positions, batch.max_seq_len)
        eps, last = config.rms_norm_eps, self.layers[-1]
        x = self._embed.index_select(0, batch.tokens).to(ops.stream)
        h = ops.rms_norm(x, self.layers[0].attn_norm, eps, self.dtype)
        for index, layer in enumerate(self.layers):
            heads = layer.qkv(h).view(batch.num_tokens, -1, config.head_dim)
            rotated = ops.rope(heads[:, :num_rotated], cos, sin, layer.qk_norm, eps)
            q, k = rotated[:, : config.num_heads], rotated[:, config.num_heads :]
            attended = attention.forward(index, q, k, heads[:, num_rotated:], batch, kv)
            x, h = ops.add_norm(layer.o, attended.view(batch.num_tokens, -1), x, layer.mlp_norm, eps, self.dtype)
            if layer is last:
                break
            following = self.layers[index + 1].attn_norm
            x, h = ops.add_norm(layer.down, layer.gated(h), x, following, eps, self.dtype)
        return last.down.add(last.gated(h), x).float()

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Float32 logits [n, vocab] of rows [n, hidden] that ``forward`` returned. The caller bounds n."""
        assert self.head is not None, "made without a head"
        return self.head(self.ops.rms_norm(hidden, self._final_norm, self.config.rms_norm_eps, torch.float32))


def _build_layer(
    config: ModelConfig, weights: Weights, prefix: str, ops: Ops, sum_over_ranks: SumOverRanks | None
) -> DecoderLayer:
    def bias(name: str) -> torch.Tensor | None:
        return weights.get(f"{prefix}.{name}_bias")

    def weight(name: str) -> torch.Tensor:
        return weights[f"{prefix}.{name}"]

    def summed(part: Linear) -> Linear:
        return part if sum_over_ranks is None else SummedLinear(part, sum_over_ranks)

    qkv_bias = None
    if config.bias_qkv:
        qkv_bias = torch.cat([weights[f"{prefix}.{name}_bias"].float() for name in "qkv"])
    qk_norm = None
    if config.qk_norm:
        q_norm, k_norm = weight("q_norm").float(), weight("k_norm").float()
        qk_norm = torch.cat((q_norm.expand(config.num_heads, -1), k_norm.expand(config.num_kv_heads, -1)))
    return DecoderLayer(
        attn_norm=ops.scale(weight("attn_norm")),
        qkv=ops.linear(torch.cat((weight("q"), weight("k"), weight("v"))), qkv_bias),
        qk_norm=qk_norm,
        o=summed(ops.linear(weight("o"), bias("o"))),
        mlp_norm=ops.scale(weight("mlp_norm")),
        gated=ops.gated(weight("gate"), weight("up"), bias("gate"), bias("up")),
        down=summed(ops.linear(weight("down"), bias("down"))),
    )
