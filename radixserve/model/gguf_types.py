"""GGUF tensor types: their block layouts and dequantization.

A quantized row is a sequence of blocks of 32 or 256 weights. The layouts, with ``d`` and ``m`` half-precision floats and
weights numbered 0..n-1 inside their block:

====== ======= ===== ==========================================================================================
type   weights bytes fields
====== ======= ===== ==========================================================================================
Q8_0   32      34    d, int8 q[32]                                w = d*q
Q4_0   32      18    d, nibbles q[16]                             w = d*(q - 8)
Q4_1   32      20    d, m, nibbles q[16]                          w = d*q + m
Q5_0   32      22    d, fifth bits h[4], nibbles q[16]            w = d*((h<<4|q) - 16)
Q5_1   32      24    d, m, fifth bits h[4], nibbles q[16]         w = d*(h<<4|q) + m
Q4_K   256     144   d, m, six-bit scales[12], nibbles q[128]     w = d*s*q - m*t
Q5_K   256     176   d, m, six-bit scales[12], h[32], q[128]      w = d*s*(h<<4|q) - m*t
Q6_K   256     210   low q[128], high q[64], int8 scales[16], d   w = d*s*(q - 32)
====== ======= ===== ==========================================================================================

In a block of 32 the low nibbles are weights 0..15 and the high nibbles weights 16..31. In a K block every 32 bytes of
nibbles hold two runs of 32 weights, low first; ``s`` and ``t`` change every 32 weights (Q6_K: every 16).

Every product is rounded to float32 in the order written above, which is the order of the format's reference
implementation: the results are equal bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Blocks = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

_NIBBLES = np.array([0, 4], np.uint8)[:, None]
_BITS = np.arange(8, dtype=np.uint8)[:, None]
_PAIRS = np.array([0, 2, 4, 6], np.uint8)[:, None]


@dataclass(frozen=True, slots=True)
class TensorType:
    """How weights are stored.

    ``block_elements`` weights take ``block_bytes`` bytes laid out as ``dtype``; ``expand`` turns blocks [n] into float32
    [n, block_elements].
    """

    name: str
    block_elements: int
    dtype: np.dtype[Any]
    expand: Callable[[Blocks], Floats]

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        return self.dtype.itemsize

    def row_bytes(self, elements: int) -> int:
        """Bytes of a row of ``elements`` weights (a multiple of ``block_elements``)."""
        return elements // self.block_elements * self.block_bytes

    def dequantize(self, raw: Bytes) -> Floats:
        """Weights of ``raw``, uint8 [..., row bytes], as float32 [..., row elements]."""
        blocks = np.ascontiguousarray(raw).reshape(-1).view(self.dtype)
        with np.errstate(over="ignore", invalid="ignore"):  # damaged scales make inf and NaN; they are passed on
            return self.expand(blocks).reshape(*raw.shape[:-1], -1)


def _f32(blocks: Blocks) -> Floats:
    return blocks.astype(np.float32)


def _bf16(blocks: Blocks) -> Floats:
    return (blocks.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _column(values: Blocks) -> Floats:
    return values.astype(np.float32)[:, None]


def _nibbles(packed: Bytes) -> Bytes:
    """[n, 16] bytes -> [n, 32] values 0..15, low nibbles first."""
    return ((packed[:, None, :] >> _NIBBLES) & np.uint8(15)).reshape(len(packed), 32)


def _five_bits(blocks: Blocks) -> Bytes:
    """Nibbles of a 32-weight block with bit i of the little-endian ``high`` word as fifth bit of weight i."""
    high = np.unpackbits(blocks["high"], axis=-1, bitorder="little")
    return _nibbles(blocks["q"]) | (high << np.uint8(4))


def _q8_0(blocks: Blocks) -> Floats:
    return blocks["q"].astype(np.float32) * _column(blocks["d"])


def _q4_0(blocks: Blocks) -> Floats:
    return _column(blocks["d"]) * (_nibbles(blocks["q"]).astype(np.float32) - np.float32(8))


def _q4_1(blocks: Blocks) -> Floats:
    return _column(blocks["d"]) * _nibbles(blocks["q"]).astype(np.float32) + _column(blocks["m"])


def _q5_0(blocks: Blocks) -> Floats:
    return _column(blocks["d"]) * (_five_bits(blocks).astype(np.float32) - np.float32(16))


def _q5_1(blocks: Blocks) -> Floats:
    return _column(blocks["d"]) * _five_bits(blocks).astype(np.float32) + _column(blocks["m"])


def _six_bit_scales(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Eight scales and eight minima [n, 8] of a K block from their 12 bytes.

    Bytes 0..3 hold scales 0..3 and bytes 4..7 minima 0..3 in their low six bits. Byte 8+i holds the low nibbles of scale
    4+i (low) and minimum 4+i (high), whose upper two bits are the top bits of bytes i and 4+i.
    """
    first, second, third = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([first & 63, (third & 15) | ((first >> 6) << 4)], axis=1)
    minima = np.concatenate([second & 63, (third >> 4) | ((second >> 6) << 4)], axis=1)
    return scales, minima


def _k_runs(packed: Bytes) -> Bytes:
    """128 bytes of nibbles [n, 128] -> [n, 8, 32] values 0..15 in weight order."""
    runs = (packed.reshape(-1, 4, 1, 32) >> _NIBBLES) & np.uint8(15)
    return runs.reshape(-1, 8, 32)


def _k_affine(blocks: Blocks, q: Bytes) -> Floats:
    scales, minima = _six_bit_scales(blocks["scales"])
    step = (_column(blocks["d"]) * scales.astype(np.float32))[:, :, None]
    offset = (_column(blocks["m"]) * minima.astype(np.float32))[:, :, None]
    return (step * q.astype(np.float32) - offset).reshape(-1, 256)


def _q4_k(blocks: Blocks) -> Floats:
    return _k_affine(blocks, _k_runs(blocks["q"]))


def _q5_k(blocks: Blocks) -> Floats:
    high = (blocks["high"][:, None, :] >> _BITS) & np.uint8(1)
    return _k_affine(blocks, _k_runs(blocks["q"]) | (high << np.uint8(4)))


def _q6_k(blocks: Blocks) -> Floats:
    low = ((blocks["low"].reshape(-1, 2, 1, 64) >> _NIBBLES) & np.uint8(15)).reshape(-1, 2, 4, 32)
    high = (blocks["high"].reshape(-1, 2, 1, 32) >> _PAIRS) & np.uint8(3)
    q = (low | (high << np.uint8(4))).astype(np.float32) - np.float32(32)
    step = _column(blocks["d"]) * blocks["scales"].astype(np.float32)
    return (step[:, :, None] * q.reshape(-1, 16, 16)).reshape(-1, 256)


def _quantized(name: str, elements: int, fields: list[Any], expand: Callable[[Blocks], Floats]) -> TensorType:
    return TensorType(name, elements, np.dtype(fields), expand)


TENSOR_TYPES: dict[int, TensorType] = {
    0: TensorType("F32", 1, np.dtype("<f4"), _f32),
    1: TensorType("F16", 1, np.dtype("<f2"), _f32),
    2: _quantized("Q4_0", 32, [("d", "<f2"), ("q", "u1", 16)], _q4_0),
    3: _quantized("Q4_1", 32, [("d", "<f2"), ("m", "<f2"), ("q", "u1", 16)], _q4_1),
    6: _quantized("Q5_0", 32, [("d", "<f2"), ("high", "u1", 4), ("q", "u1", 16)], _q5_0),
    7: _quantized("Q5_1", 32, [("d", "<f2"), ("m", "<f2"), ("high", "u1", 4), ("q", "u1", 16)], _q5_1),
    8: _quantized("Q8_0", 32, [("d", "<f2"), ("q", "i1", 32)], _q8_0),
    12: _quantized("Q4_K", 256, [("d", "<f2"), ("m", "<f2"), ("scales", "u1", 12), ("q", "u1", 128)], _q4_k),
    13: _quantized(
        "Q5_K", 256, [("d", "<f2"), ("m", "<f2"), ("scales", "u1", 12), ("high", "u1", 32), ("q", "u1", 128)], _q5_k
    ),
    14: _quantized("Q6_K", 256, [("low", "u1", 128), ("high", "u1", 64), ("scales", "i1", 16), ("d", "<f2")], _q6_k),
    30: TensorType("BF16", 1, np.dtype("<u2"), _bf16),
}
"""The types the loader reads, by their number in the file."""

OTHER_TYPE_NAMES: dict[int, str] = {
    9: "Q8_1",
    10: "Q2_K",
    11: "Q3_K",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
    40: "NVFP4",
}
"""Names of types that are known but not read, for the error that refuses them."""
