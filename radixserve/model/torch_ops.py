"""The decoder's arithmetic in plain torch, on oneDNN's prepacked linears where this build has them.

What was measured about bits, and decides what is used here (torch 2.13, AVX-512 with bf16):

- oneDNN's prepacked linear gives a row the same bits at every batch size, its epilogues (silu, multiply, add)
  included, except a single row in float32 with a long K; `row_floor` looks for such sizes and pads them away.
- torch's plain float32 linear does not (1, 2, 3, 5, 6, 7, ... rows differ from many), so it is only used, padded,
  where oneDNN is missing.
- ``torch.nn.functional.silu`` rounds an element differently in the vector loop and in its tail, so silu is an epilogue
  of the GEMM, or composed of ``exp`` (which does not) and exactly rounded operations. For the same reason nothing here
  uses a compound element-wise operation (addcmul, lerp) whose contraction could differ between the two loops.
"""

from __future__ import annotations

import functools

import torch
from torch.nn import functional

from radixserve.model.ops import GatedUnit, Linear

PACK_ROWS = 16
PROBE_ROWS = 600
PROBE_SIZES = (
    1,
    2,
    3,
    4,
    5,
    6,
    7,
    8,
    9,
    10,
    11,
    12,
    13,
    15,
    16,
    17,
    24,
    31,
    32,
    33,
    48,
    63,
    64,
    65,
    128,
    256,
    257,
    512,
)


def onednn_linears(dtype: torch.dtype) -> bool:
    """Whether prepacked oneDNN linears exist in this torch build and run ``dtype`` on this CPU."""
    if not torch._C._has_mkldnn or not hasattr(torch.ops.mkldnn, "_reorder_linear_weight"):
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32


class OneDNNLinear:
    """A linear on oneDNN's weight layout; epilogues are applied to the float32 accumulator before it is rounded.

    ``min_rows``: fewer rows are padded to as many with zeros; see `row_floor`.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, min_rows: int) -> None:
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), PACK_ROWS)
        self._bias = None if bias is None else bias.to(weight.dtype)
        self._min_rows = min_rows

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """``x weightᵀ + bias``."""
        return self._run(x, "none")

    def silu(self, x: torch.Tensor) -> torch.Tensor:
        """``silu(x weightᵀ + bias)``."""
        return self._run(x, "swish")

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """``residual + x weightᵀ + bias`` in float32."""
        if x.dtype == residual.dtype:
            return self._run_binary(x, residual, "add")
        return residual + self(x)

    def multiply(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """``(x weightᵀ + bias) * other``."""
        return self._run_binary(x, other, "mul")

    def _run(self, x: torch.Tensor, epilogue: str) -> torch.Tensor:
        rows = len(x)
        x = _pad_rows(x, self._min_rows)
        result: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, epilogue, [], "")
        return result[:rows]

    def _run_binary(self, x: torch.Tensor, other: torch.Tensor, epilogue: str) -> torch.Tensor:
        rows = len(x)
        x, other = _pad_rows(x, self._min_rows), _pad_rows(other, self._min_rows)
        result: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, other, self._packed, self._bias, epilogue)
        return result[:rows]


class PlainLinear:
    """A linear on torch's own GEMM: the fallback of builds without oneDNN. The same meaning as `OneDNNLinear`."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, min_rows: int) -> None:
        self._weight = weight.contiguous()
        self._bias = None if bias is None else bias.to(weight.dtype)
        self._min_rows = min_rows

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """``x weightᵀ + bias``."""
        rows = len(x)
        product = functional.linear(_pad_rows(x, self._min_rows), self._weight)[:rows]
        return product if self._bias is None else product + self._bias

    def silu(self, x: torch.Tensor) -> torch.Tensor:
        """``silu(x weightᵀ + bias)``, of operations whose results do not depend on an element's place."""
        y = self(x).float()
        return (y / (1.0 + torch.exp(-y))).to(x.dtype)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """``residual + x weightᵀ + bias`` in float32."""
        return residual + self(x)

    def multiply(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """``(x weightᵀ + bias) * other``."""
        return self(x) * other


PackedLinear = OneDNNLinear | PlainLinear


def cancelling_operands(
    out_features: int, in_features: int, rows: int, dtype: torch.dtype, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """A weight and inputs whose products cancel exactly, in an order that is shuffled along K.

    What is left of each sum is the rounding of its partial sums alone, so two orders of accumulation differ in nearly
    every element, where with plain random numbers the rounding of the result hides almost all of it.
    """
    generator = torch.Generator().manual_seed(out_features * 31 + in_features + seed)
    half = in_features // 2
    shuffled = torch.randperm(2 * half, generator=generator)
    w = torch.randn(out_features, half, generator=generator).to(dtype)
    a = torch.randn(rows, half, generator=generator).to(dtype)
    weight = torch.zeros(out_features, in_features, dtype=dtype)
    x = torch.zeros(rows, in_features, dtype=dtype)
    weight[:, : 2 * half] = torch.cat((w, -w), 1)[:, shuffled]
    x[:, : 2 * half] = torch.cat((a, a), 1)[:, shuffled]
    return weight, x


@functools.cache
def row_floor(onednn: bool, out_features: int, in_features: int, dtype: torch.dtype, threads: int) -> int:
    """The smallest batch size from which on a row has the same bits at every probed size, by trial.

    1 for nearly every shape. ``threads`` is the number that torch runs on: GEMMs are split by it.
    """
    assert threads == torch.get_num_threads()
    kind: type[PackedLinear] = OneDNNLinear if onednn else PlainLinear
    weight, x = cancelling_operands(out_features, in_features, PROBE_ROWS, dtype)
    linear = kind(weight, None, 1)
    whole = linear(x)
    differing = [rows for rows in PROBE_SIZES if not torch.equal(linear(x[:rows]), whole[:rows])]
    return max(differing) + 1 if differing else 1


class TorchOps:
    """`radixserve.model.ops.Ops` on the CPU in torch.

    The residual stream stays in float32: rounding it to bf16 after every block costs more accuracy (SmolLM2: a mean KL of
    0.0011 to float32, where this has 0.0002) than everything else in bf16 together.
    """

    stream = torch.float32

    def __init__(self, dtype: torch.dtype) -> None:
        self._onednn = onednn_linears(dtype)
        self._onednn_head = onednn_linears(torch.float32)
        self.name = "torch+onednn" if self._onednn else "torch"

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        """The weight in oneDNN's layout, or torch's own where that is missing."""
        return _pack(weight, bias, self._onednn)

    def gated(
        self,
        gate: torch.Tensor,
        up: torch.Tensor,
        gate_bias: torch.Tensor | None = None,
        up_bias: torch.Tensor | None = None,
    ) -> GatedUnit:
        """Two GEMMs with epilogues, rather than one of both weights.

        The intermediate tensor is then neither rounded twice nor read and written by passes of their own.
        """
        gate_linear = _pack(gate, gate_bias, self._onednn)
        up_linear = _pack(up, up_bias, self._onednn)
        return lambda x: up_linear.multiply(x, gate_linear.silu(x))

    def head(self, weight: torch.Tensor) -> Linear:
        """A float32 copy of the weight: bf16 GEMMs round their output to bf16, far too coarse for logprobs."""
        return _pack(weight.float(), None, self._onednn_head)

    def scale(self, weight: torch.Tensor) -> torch.Tensor:
        """Float32."""
        return weight.float()

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float, dtype: torch.dtype) -> torch.Tensor:
        """Torch's own RMSNorm."""
        return functional.rms_norm(x, weight.shape, weight, eps).to(dtype)

    def add_norm(
        self,
        linear: Linear,
        x: torch.Tensor,
        residual: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        dtype: torch.dtype,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The addition is the linear's own."""
        residual = linear.add(x, residual)
        return residual, self.rms_norm(residual, weight, eps, dtype)

    def rope(
        self,
        heads: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        norm: torch.Tensor | None,
        eps: float,
    ) -> torch.Tensor:
        """Each product and the sum are rounded by themselves, in float32."""
        x = heads.float()
        if norm is not None:
            x = functional.rms_norm(x, norm.shape[-1:], None, eps) * norm
        swapped = torch.roll(x, x.shape[-1] // 2, -1)
        return (x * cos.unsqueeze(1) + swapped * sin.unsqueeze(1)).to(heads.dtype)


def _pack(weight: torch.Tensor, bias: torch.Tensor | None, onednn: bool) -> PackedLinear:
    kind: type[PackedLinear] = OneDNNLinear if onednn else PlainLinear
    out_features, in_features = weight.shape
    floor = row_floor(onednn, out_features, in_features, weight.dtype, torch.get_num_threads())
    return kind(weight, bias, floor)


def _pad_rows(x: torch.Tensor, rows: int) -> torch.Tensor:
    """``x`` with zero rows appended up to ``rows``."""
    if len(x) >= rows:
        return x
    padded = x.new_zeros(rows, x.shape[1])
    padded[: len(x)] = x
    return padded
