"""A model's weights as the native kernels read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from radixserve.model.config import ModelConfig
from radixserve.native.packing import PackedWeight, pack_dense


@dataclass(frozen=True, slots=True)
class NativeLinear:
    """A packed weight, and its bias in float32 where it has one."""

    weight: PackedWeight
    bias: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class NativeLayer:
    """One layer: ``qkv`` gives q, k and v side by side, ``gate_up`` the gate and then the other half.

    Norm weights are float32; ``q_norm`` and ``k_norm`` are of one head, None where the model has none.
    """

    attn_norm: torch.Tensor
    qkv: NativeLinear
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    o: NativeLinear
    mlp_norm: torch.Tensor
    gate_up: NativeLinear
    down: NativeLinear


@dataclass(frozen=True, slots=True)
class NativeWeights:
    """All of a decoder's weights, packed: nothing is shared with what they were packed from.

    ``head`` is ``embed`` itself where the two are tied: the kernels look tokens up in the packed matrix. ``dtype`` is that of
    the linears, of the activations between them, and of the KV.
    """

    dtype: torch.dtype
    embed: PackedWeight
    layers: tuple[NativeLayer, ...]
    final_norm: torch.Tensor
    head: PackedWeight

    @property
    def num_bytes(self) -> int:
        """Size of the packed matrices in bytes."""
        matrices = [self.embed] if self.head is self.embed else [self.embed, self.head]
        for layer in self.layers:
            matrices += [linear.weight for linear in (layer.qkv, layer.o, layer.gate_up, layer.down)]
        return sum(matrix.nbytes for matrix in matrices)

    @classmethod
    def pack(cls, config: ModelConfig, weights: Mapping[str, torch.Tensor]) -> NativeWeights:
        """Pack ``weights`` under canonical names, all linears of one dtype."""
        embed = pack_dense(weights["embed"])
        return cls(
            dtype=weights["embed"].dtype,
            embed=embed,
            layers=tuple(_pack_layer(weights, f"layers.{index}.") for index in range(config.num_layers)),
            final_norm=_float(weights["final_norm"]),
            head=embed if config.tied_head else pack_dense(weights["head"]),
        )


def _pack_layer(weights: Mapping[str, torch.Tensor], prefix: str) -> NativeLayer:
    def linear(*names: str) -> NativeLinear:
        """Several linears of one input as one; they all have a bias, or none has."""
        biases = [weights[f"{prefix}{name}_bias"] for name in names if f"{prefix}{name}_bias" in weights]
        assert len(biases) in (0, len(names)), names
        matrix = torch.cat([weights[prefix + name] for name in names])
        return NativeLinear(pack_dense(matrix), _float(torch.cat(biases)) if biases else None)

    def head_norm(name: str) -> torch.Tensor | None:
        weight = weights.get(prefix + name)
        return None if weight is None else _float(weight)

    return NativeLayer(
        attn_norm=_float(weights[prefix + "attn_norm"]),
        qkv=linear("q", "k", "v"),
        q_norm=head_norm("q_norm"),
        k_norm=head_norm("k_norm"),
        o=linear("o"),
        mlp_norm=_float(weights[prefix + "mlp_norm"]),
        gate_up=linear("gate", "up"),
        down=linear("down"),
    )


def _float(vector: torch.Tensor) -> torch.Tensor:
    """A float32 copy."""
    return vector.detach().to(torch.float32, copy=True).contiguous()
