"""The decoder's arithmetic on a GPU: cuBLAS products, and FlashInfer's fused kernels for what stands between them.

Not the CPU's bits, and by default not the CPU's law either: cuBLAS picks a kernel by the number of rows. The residual stream is
in the activations' dtype, because that is what the fused addition and norm work on.

Where bits may not depend on the batch (``deterministic``), products and torch's own sums are computed in tiles of `TILE_ROWS` rows,
the last one filled up with zeros, so every call is of one shape. What that rests on: cuBLAS gives the same bits at every
run of a call of one shape, version, architecture and number of SMs (NVIDIA's documentation of cuBLAS, "Results
reproducibility"), torch picks a reduction's split from its shape, and FlashInfer's norms, rotation and activation take a block of
threads for each row. What nobody promises is that a row has the same bits at every *place* of a tile: a kernel that shares
out its products unevenly (stream-K) may add up some rows in other pieces. It is tried, on the device, with the model's own weights
(`radixserve.runtime.bit_promise`), and said where it does not hold.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from radixserve.model.flashinfer_library import flashinfer
from radixserve.model.ops import GatedUnit, Linear

# So many rows that a product still takes about as long as reading its weight does (H200: 184, A100: 160), and as few
# calls for a prompt as that allows.
TILE_ROWS = 128


def in_tiles(run: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """``run`` of ``x`` [T, ...], which works row by row, in calls of one shape: `TILE_ROWS` rows, filled up with zeros."""
    tiles = []
    for tile in torch.split(x, TILE_ROWS):
        if len(tile) < TILE_ROWS:
            full = x.new_zeros((TILE_ROWS, *x.shape[1:]))
            full[: len(tile)] = tile
            tiles.append(run(full)[: len(tile)])
        else:
            tiles.append(run(tile.contiguous()))
    return tiles[0] if len(tiles) == 1 else torch.cat(tiles)


class DenseLinear:
    """A weight [out, in] as it is, for torch's own product; ``tiled``: in calls of one shape."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, *, tiled: bool = False) -> None:
        self._weight = weight.contiguous()
        self._bias = None if bias is None else bias.to(weight.dtype)
        self._tiled = tiled

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """``x weightᵀ + bias``."""
        return in_tiles(self._product, x) if self._tiled else self._product(x)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """``residual + x weightᵀ + bias``."""
        return residual + self(x)

    def _product(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self._weight, self._bias)


class WideHead:
    """The LM head: products of half precision, summed and returned in float32, so that close logits stay apart."""

    def __init__(self, weight: torch.Tensor, *, tiled: bool = False) -> None:
        self._weight = weight.contiguous()
        self._tiled = tiled

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Float32 logits of float32 ``x``, which is rounded to the weight's dtype."""
        x = x.to(self._weight.dtype)
        return in_tiles(self._product, x) if self._tiled else self._product(x)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """``residual + x weightᵀ``."""
        return residual + self(x)

    def _product(self, x: torch.Tensor) -> torch.Tensor:
        if x.device.type == "cuda":
            return torch.mm(x, self._weight.t(), out_dtype=torch.float32)
        return x.float() @ self._weight.float().t()


class FlashInferOps:
    """`radixserve.model.ops.Ops` on FlashInfer, in bf16 or float16; ``deterministic``: by the CPU's law, in tiles."""

    def __init__(self, dtype: torch.dtype, *, deterministic: bool = False) -> None:
        assert dtype in (torch.bfloat16, torch.float16), "FlashInfer's kernels know no wider type"
        self.stream = dtype
        self.name = "cublas in tiles+flashinfer" if deterministic else "cublas+flashinfer"
        self._tiled = deterministic
        self._library = flashinfer()
        # A step's cosines and sines as the kernel wants them, made by its first layer.
        self._rotation: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        """No layout of its own."""
        return DenseLinear(weight, bias, tiled=self._tiled)

    def gated(
        self,
        gate: torch.Tensor,
        up: torch.Tensor,
        gate_bias: torch.Tensor | None = None,
        up_bias: torch.Tensor | None = None,
    ) -> GatedUnit:
        """One product of both weights, then one kernel over its two halves."""
        bias = None
        if gate_bias is not None and up_bias is not None:
            bias = torch.cat((gate_bias, up_bias))
        both = DenseLinear(torch.cat((gate, up)), bias, tiled=self._tiled)
        silu_and_mul = self._library.silu_and_mul
        return lambda x: silu_and_mul(both(x))

    def head(self, weight: torch.Tensor) -> Linear:
        """Shares the weight's memory."""
        return WideHead(weight, tiled=self._tiled)

    def scale(self, weight: torch.Tensor) -> torch.Tensor:
        """The activations' dtype: the kernel reads the weight as numbers of its input's type, whatever they are."""
        return weight.to(self.stream)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float, dtype: torch.dtype) -> torch.Tensor:
        """FlashInfer's where input, weight and result are of one half precision; torch's otherwise."""
        if x.dtype == weight.dtype == dtype == self.stream:
            normed: torch.Tensor = self._library.rmsnorm(x, weight, eps)
            return normed
        wide = weight.float()
        return self._by_row(lambda rows: functional.rms_norm(rows.float(), wide.shape, wide, eps), x).to(dtype)

    def add_norm(
        self,
        linear: Linear,
        x: torch.Tensor,
        residual: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        dtype: torch.dtype,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One kernel adds to ``residual`` in place and norms in the product's memory."""
        normed = linear(x)
        assert normed.dtype == residual.dtype == weight.dtype == dtype, "the kernel takes all for the type of the first"
        self._library.fused_add_rmsnorm(normed, residual, weight, eps)
        return residual, normed

    def rope(
        self,
        heads: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        norm: torch.Tensor | None,
        eps: float,
    ) -> torch.Tensor:
        """Rotates in place, with the model's own table of cosines and sines, so every kind of scaling is covered.

        The norm of heads, where a model has one, is torch's: there is a weight for each head, not one for all.
        """
        if norm is not None:
            size = norm.shape[-1:]
            x = self._by_row(lambda rows: functional.rms_norm(rows.float(), size, None, eps), heads) * norm
            heads = x.to(heads.dtype)
        tokens, count, head_dim = heads.shape
        table, places = self._table(cos, sin)
        flat = heads.view(tokens, count * head_dim)
        # Queries and keys are turned alike; the kernel wants some of each, and any border between them does.
        self._library.apply_rope_with_cos_sin_cache_inplace(
            places, flat[:, :-head_dim], flat[:, -head_dim:], head_dim, table, is_neox=True
        )
        return heads

    def _by_row(self, run: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return in_tiles(run, x) if self._tiled else run(x)

    def _table(self, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[T, head_dim] of cosines, then sines, each of half a head, a row a token; and int32 [T], the row of each token."""
        if self._rotation is None or self._rotation[0] is not cos:
            half = cos.shape[1] // 2
            table = torch.cat((cos[:, :half], sin[:, half:]), 1)
            self._rotation = cos, table, torch.arange(len(cos), dtype=torch.int32, device=cos.device)
        return self._rotation[1], self._rotation[2]
