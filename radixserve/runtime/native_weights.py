"""A model's weights as the native kernels read them."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from radixserve.model.config import ModelConfig
from radixserve.model.gguf_weights import placement, stored_matrices
from radixserve.native.abi import Format
from radixserve.native.huge_pages import HugeMemory
from radixserve.native.packing import (
    BLOCK_BYTES,
    DENSE_PANEL,
    PackedWeight,
    alternate_panels,
    pack_dense,
    pack_quantized,
)

BLOCK_FORMATS: dict[str, Format] = {form.name: form for form in BLOCK_BYTES}
"""Tensor types of GGUF files that the kernels read as they are."""
_FORMAT_NAMES = {Format.DENSE_BF16: "bfloat16", Format.DENSE_F32: "float32", **{f: f.name for f in BLOCK_BYTES}}


@dataclass(frozen=True, slots=True)
class NativePart:
    """A packed weight, and its bias in float32 where it has one."""

    weight: PackedWeight
    bias: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class NativeLinear:
    """A linear as parts whose outputs stand side by side: one, unless the file holds its weights in several formats.

    ``gated``: the only part is packed for the gated unit, which it is the first half of.
    """

    parts: tuple[NativePart, ...]
    gated: bool = False

    @property
    def in_blocks(self) -> bool:
        """Whether all parts are in the blocks of their file."""
        return all(part.weight.in_blocks for part in self.parts)

    @property
    def nbytes(self) -> int:
        """Size of the packed weights in bytes."""
        return sum(part.weight.nbytes for part in self.parts)


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

    ``head`` is ``embed`` itself where the two are tied: the kernels look tokens up in the packed matrix, whatever its format.
    ``dtype`` is that of the dense linears, of the activations between them, and of the KV. ``formats`` counts the model's
    matrices by the form they are packed in, ``dequantized`` those of stored types that the kernels do not read.
    """

    dtype: torch.dtype
    embed: PackedWeight
    layers: tuple[NativeLayer, ...]
    final_norm: torch.Tensor
    head: PackedWeight
    formats: Mapping[str, int]
    dequantized: Mapping[str, int]

    @property
    def num_bytes(self) -> int:
        """Size of the packed matrices in bytes."""
        tops = [self.embed] if self.head is self.embed else [self.embed, self.head]
        linears = (linear for layer in self.layers for linear in (layer.qkv, layer.o, layer.gate_up, layer.down))
        return sum(matrix.nbytes for matrix in tops) + sum(linear.nbytes for linear in linears)

    def describe(self) -> dict[str, str]:
        """What the matrices are: ``weights`` is ``native`` where some are in the file's own blocks, else the dtype of all."""
        dtype = str(self.dtype).removeprefix("torch.")
        if not set(self.formats) & set(BLOCK_FORMATS):
            return {"weights": dtype}
        facts = {"weights": "native", "weight_formats": _listed(self.formats)}
        if self.dequantized:
            facts["weights_dequantized"] = f"{_listed(self.dequantized)} to {dtype}"
        return facts

    @classmethod
    def pack(
        cls,
        config: ModelConfig,
        weights: Mapping[str, torch.Tensor],
        *,
        keep_blocks: bool = False,
    ) -> NativeWeights:
        """Pack ``weights`` under canonical names, one matrix after the other.

        ``keep_blocks``: matrices that the file holds in `BLOCK_FORMATS` are packed as they are; all others, and without it
        all, in the dtype of the weights.
        """
        packer = _Packer(weights, keep_blocks)
        embed = packer.matrix("embed")
        return cls(
            dtype=packer.dtype,
            embed=embed,
            layers=tuple(_pack_layer(packer, f"layers.{index}.") for index in range(config.num_layers)),
            final_norm=packer.vector("final_norm"),
            head=embed if config.tied_head else packer.matrix("head"),
            formats=packer.formats,
            dequantized=packer.dequantized,
        )


def _listed(counts: Mapping[str, int]) -> str:
    """``Q4_1 210, Q8_0 1``."""
    return ", ".join(f"{name} {counts[name]}" for name in sorted(counts))


def _rows(matrices: Sequence[torch.Tensor]) -> torch.Tensor:
    """One matrix of the rows of all; a single one, which may be the largest of the model, is not copied."""
    return matrices[0] if len(matrices) == 1 else torch.cat(list(matrices))


class _Packer:
    """Packs weights by name, in the form that the file and ``keep_blocks`` make of each."""

    def __init__(self, weights: Mapping[str, torch.Tensor], keep_blocks: bool) -> None:
        self.dtype, _ = placement(weights)
        self.formats: Counter[str] = Counter()
        self.dequantized: Counter[str] = Counter()
        self._weights = weights
        self._stored = stored_matrices(weights)
        self._keep_blocks = keep_blocks
        self._zeros = HugeMemory().zeros

    def matrix(self, *names: str) -> PackedWeight:
        """Matrices of one form and one input as one."""
        form = self._form(names[0])
        stored = [self._stored[name] for name in names if name in self._stored]
        if form is None:
            packed = pack_dense(_rows([self._weights[name] for name in names]), self._zeros)
        elif len(stored) == 1:
            packed = pack_quantized(form, stored[0].blocks(), stored[0].in_features, self._zeros)
        else:
            blocks = np.concatenate([matrix.blocks() for matrix in stored])
            packed = pack_quantized(form, blocks, stored[0].in_features, self._zeros)
        for matrix in stored:
            if form is None:
                self.dequantized[matrix.type_name] += 1
            matrix.release()
        self.formats[_FORMAT_NAMES[packed.format]] += len(names)
        return packed

    def linear(self, prefix: str, *names: str) -> NativeLinear:
        """Several linears of one input as one; they all have a bias, or none has."""
        biased = [f"{prefix}{name}_bias" in self._weights for name in names]
        assert all(biased) or not any(biased), names
        parts = []
        for _, group in itertools.groupby(names, lambda name: self._form(prefix + name)):
            alike = [prefix + name for name in group]
            bias = torch.cat([self.vector(f"{name}_bias") for name in alike]) if biased[0] else None
            parts.append(NativePart(self.matrix(*alike), bias))
        return NativeLinear(tuple(parts))

    def gated(self, prefix: str) -> NativeLinear:
        """The gate and what it gates, for one pass over both where they are of one form and fill panels."""
        linear = self.linear(prefix, "gate", "up")
        weight = linear.parts[0].weight
        if len(linear.parts) > 1 or weight.out_features % (2 * DENSE_PANEL):
            return linear
        alternate_panels(weight)
        return NativeLinear(linear.parts, gated=True)

    def vector(self, name: str) -> torch.Tensor:
        """A float32 copy."""
        return self._weights[name].detach().to(torch.float32, copy=True).contiguous()

    def optional_vector(self, name: str) -> torch.Tensor | None:
        """A float32 copy, None where the model has no such vector."""
        return self.vector(name) if name in self._weights else None

    def _form(self, name: str) -> Format | None:
        """The block format in which the weight is kept; None where it is packed dense."""
        stored = self._stored.get(name)
        return BLOCK_FORMATS.get(stored.type_name) if stored is not None and self._keep_blocks else None


def _pack_layer(packer: _Packer, prefix: str) -> NativeLayer:
    return NativeLayer(
        attn_norm=packer.vector(prefix + "attn_norm"),
        qkv=packer.linear(prefix, "q", "k", "v"),
        q_norm=packer.optional_vector(prefix + "q_norm"),
        k_norm=packer.optional_vector(prefix + "k_norm"),
        o=packer.linear(prefix, "o"),
        mlp_norm=packer.vector(prefix + "mlp_norm"),
        gate_up=packer.gated(prefix),
        down=packer.linear(prefix, "down"),
    )
