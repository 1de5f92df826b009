"""Where the native decoder keeps the activations of a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from radixserve.model.config import ModelConfig
from radixserve.runtime.native_weights import NativeLayer, NativeLinear, NativeWeights


@dataclass(frozen=True, slots=True)
class _Field:
    """So many elements of each row of a byte matrix."""

    width: int
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of a row, a multiple of a cache line."""
        return -(-self.width * self.dtype.itemsize // 64) * 64

    def of(self, rows: torch.Tensor, start: int) -> torch.Tensor:
        """The elements from byte ``start`` of each of ``rows``, uint8 [n, bytes]."""
        return rows[:, start : start + self.width * self.dtype.itemsize].view(self.dtype)


@dataclass(frozen=True, slots=True, eq=False)
class NativeBuffers:
    """Activations of up to ``tokens`` tokens.

    ``residual`` [tokens, hidden] is the float32 stream, ``delta`` what the last linear adds to it, ``stream`` both. The others of attention
    (``qkv``, ``q``, ``attended``) and of the feed-forward unit (``gate_up``, ``inner``) are never alive at once and share
    memory. ``inner`` is the first half of ``gate_up``, which is only written where the gated unit is not computed in one pass, and then
    over its own gate.
    """

    stream: torch.Tensor
    residual: torch.Tensor
    delta: torch.Tensor
    hidden: torch.Tensor
    qkv: torch.Tensor
    q: torch.Tensor
    attended: torch.Tensor
    gate_up: torch.Tensor
    inner: torch.Tensor

    @classmethod
    def allocate(cls, config: ModelConfig, weights: NativeWeights, tokens: int) -> NativeBuffers:
        """Memory that is not touched costs nothing, so a capacity that is rarely used is cheap."""
        heads = config.num_heads * config.head_dim
        around_hidden = _input_type(weights, lambda layer: (layer.qkv, layer.gate_up))
        around_inner = _input_type(weights, lambda layer: (layer.down,))

        def buffer(width: int, kind: torch.dtype = weights.dtype) -> torch.Tensor:
            return torch.empty(tokens, width, dtype=kind)

        qkv, q, attended = (
            _Field(heads + 2 * config.num_kv_heads * config.head_dim, around_hidden),
            _Field(heads, weights.dtype),
            _Field(heads, weights.dtype),
        )
        gate_up = _Field(2 * config.intermediate_size, around_inner)
        shared = buffer(max(qkv.nbytes + q.nbytes + attended.nbytes, gate_up.nbytes), torch.uint8)
        whole = gate_up.of(shared, 0)
        stream = torch.empty(2, tokens, config.hidden_size)
        return cls(
            stream=stream,
            residual=stream[0],
            delta=stream[1],
            hidden=buffer(config.hidden_size, around_hidden),
            qkv=qkv.of(shared, 0),
            q=q.of(shared, qkv.nbytes),
            attended=attended.of(shared, qkv.nbytes + q.nbytes),
            gate_up=whole,
            inner=whole[:, : config.intermediate_size],
        )


def _input_type(weights: NativeWeights, readers: Callable[[NativeLayer], tuple[NativeLinear, ...]]) -> torch.dtype:
    """The type of an activation that linears read, given which of a layer do.

    Linears in blocks round what they read to int8, and once is enough: float32 where all readers are such.
    """
    if all(linear.in_blocks for layer in weights.layers for linear in readers(layer)):
        return torch.float32
    return weights.dtype
