"""The decoder's arithmetic on a GPU: cuBLAS products, and FlashInfer's fused kernels for what stands between them.

Not the CPU's bits, and not the CPU's law either: cuBLAS picks a kernel by the number of rows. The residual stream is in the
activations' dtype, because that is what the fused addition and norm work on.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from radixserve.model.flashinfer_library import flashinfer
from radixserve.model.ops import GatedUnit, Linear


class DenseLinear:
    """A weight [out, in] as it is, for torch's own product."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = weight.contiguous()
        self._bias = None if bias is None else bias.to(weight.dtype)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """``x weightᵀ + bias``."""
        return functional.linear(x, self._weight, self._bias)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """``residual + x weightᵀ + bias``."""
        return residual + self(x)


class WideHead:
    """The LM head: products of half precision, summed and returned in float32, so that close logits stay apart."""

    def __init__(self, weight: torch.Tensor) -> None:
        self._weight = weight.contiguous()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Float32 logits of float32 ``x``, which is rounded to the weight's dtype."""
        x = x.to(self._weight.dtype)
        if x.device.type == "cuda":
            return torch.mm(x, self._weight.t(), out_dtype=torch.float32)
        return x.float() @ self._weight.float().t()

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """``residual + x weightᵀ``."""
        return residual + self(x)


class FlashInferOps:
    """`radixserve.model.ops.Ops` on FlashInfer, in bf16 or float16."""

    name = "cublas+flashinfer"

    def __init__(self, dtype: torch.dtype) -> None:
        assert dtype in (torch.bfloat16, torch.float16), "FlashInfer's kernels know no wider type"
        self.stream = dtype
        self._library = flashinfer()
        # A step's cosines and sines as the kernel wants them, made by its first layer.
        self._rotation: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        """No layout of its own."""
        return DenseLinear(weight, bias)

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
        both = DenseLinear(torch.cat((gate, up)), bias)
        silu_and_mul = self._library.silu_and_mul
        return lambda x: silu_and_mul(both(x))

    def head(self, weight: torch.Tensor) -> Linear:
        """Shares the weight's memory."""
        return WideHead(weight)

    def scale(self, weight: torch.Tensor) -> torch.Tensor:
        """The activations' dtype: the kernel reads the weight as numbers of its input's type, whatever they are."""
        return weight.to(self.stream)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float, dtype: torch.dtype) -> torch.Tensor:
        """FlashInfer's where input, weight and result are of one half precision; torch's otherwise."""
        if x.dtype == weight.dtype == dtype == self.stream:
            normed: torch.Tensor = self._library.rmsnorm(x, weight, eps)
            return normed
        return functional.rms_norm(x.float(), weight.shape, weight.float(), eps).to(dtype)

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
            x = functional.rms_norm(heads.float(), norm.shape[-1:], None, eps) * norm
            heads = x.to(heads.dtype)
        tokens, count, head_dim = heads.shape
        table, places = self._table(cos, sin)
        flat = heads.view(tokens, count * head_dim)
        # Queries and keys are turned alike; the kernel wants some of each, and any border between them does.
        self._library.apply_rope_with_cos_sin_cache_inplace(
            places, flat[:, :-head_dim], flat[:, -head_dim:], head_dim, table, is_neox=True
        )
        return heads

    def _table(self, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[T, head_dim] of cosines, then sines, each of half a head, a row a token; and int32 [T], the row of each token."""
        if self._rotation is None or self._rotation[0] is not cos:
            half = cos.shape[1] // 2
            table = torch.cat((cos[:, :half], sin[:, half:]), 1)
            self._rotation = cos, table, torch.arange(len(cos), dtype=torch.int32, device=cos.device)
        return self._rotation[1], self._rotation[2]
