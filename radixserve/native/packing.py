"""Weights in the order in which the kernels read them; the layouts are drawn in ``src/linear_dense.hpp`` and ``src/linear_quant.hpp``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from radixserve.native.abi import Format

Bytes = npt.NDArray[np.uint8]

DENSE_PANEL = 32
QUANT_PANEL = 16
GROUP = 32
SUPER = 256

# Gives zeros uint8[n], 64-byte aligned, that nobody else has.
Zeros = Callable[[int], torch.Tensor]

# Bytes and elements of one block in the file.
BLOCK_BYTES = {Format.Q8_0: 34, Format.Q4_0: 18, Format.Q4_1: 20, Format.Q4_K: 144, Format.Q6_K: 210}
BLOCK_ELEMENTS = {Format.Q8_0: GROUP, Format.Q4_0: GROUP, Format.Q4_1: GROUP, Format.Q4_K: SUPER, Format.Q6_K: SUPER}

# Weights that are packed at once: what that takes besides the result is a few times as many bytes.
_PART_ELEMENTS = 1 << 19


def _zeros(size: int) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.uint8)


@dataclass(frozen=True, slots=True, eq=False)
class PackedWeight:
    """A matrix [out_features, in_features], packed; ``data`` is uint8 and 64-byte aligned."""

    format: Format
    out_features: int
    in_features: int
    data: torch.Tensor

    @property
    def in_blocks(self) -> bool:
        """Whether it is quantized: such a weight takes fp32 and bf16 rows alike and rounds them to int8."""
        return self.format in BLOCK_BYTES

    @property
    def nbytes(self) -> int:
        """Size of the packed matrix in bytes."""
        return self.data.numel()


def pack_dense(weight: torch.Tensor, zeros: Zeros = _zeros) -> PackedWeight:
    """Pack a bf16 or fp32 matrix [out_features, in_features] (in_features a multiple of 16) into memory that ``zeros`` gives.

    The result shares nothing with ``weight``.
    """
    assert weight.dtype in (torch.bfloat16, torch.float32), weight.dtype
    out_features, in_features = weight.shape
    assert in_features % 16 == 0, in_features
    step = 2 if weight.dtype == torch.bfloat16 else 1
    panels = -(-out_features // DENSE_PANEL)
    data = zeros(panels * DENSE_PANEL * in_features * weight.itemsize)
    packed = data.view(weight.dtype).view(panels, in_features // step, DENSE_PANEL, step)
    whole = out_features // DENSE_PANEL
    split = weight[: whole * DENSE_PANEL].reshape(whole, DENSE_PANEL, in_features // step, step)
    packed[:whole].copy_(split.transpose(1, 2))
    if whole < panels:
        rest = weight[whole * DENSE_PANEL :]
        packed[whole, :, : len(rest)].copy_(rest.reshape(len(rest), in_features // step, step).transpose(0, 1))
    form = Format.DENSE_BF16 if step == 2 else Format.DENSE_F32
    return PackedWeight(form, out_features, in_features, data)


def pack_quantized(form: Format, blocks: Bytes, in_features: int, zeros: Zeros = _zeros) -> PackedWeight:
    """Pack the rows of a quantized GGUF tensor into memory that ``zeros`` gives.

    ``blocks`` is uint8[out_features, bytes of a row] as in the file; ``in_features`` a multiple of the format's block (32, or 256 for
    Q4_K and Q6_K). No number is changed. Little more than the result is held at a time.
    """
    out_features = len(blocks)
    per_row = in_features // BLOCK_ELEMENTS[form]
    assert in_features % BLOCK_ELEMENTS[form] == 0, in_features
    assert blocks.dtype == np.uint8 and blocks.shape[1] == per_row * BLOCK_BYTES[form], blocks.shape
    panels = -(-out_features // QUANT_PANEL)
    rows = QUANT_PANEL * max(1, _PART_ELEMENTS // (QUANT_PANEL * in_features))
    packed: torch.Tensor | None = None
    for first in range(0, out_features, rows):
        part = blocks[first : first + rows]
        padded = np.zeros((-(-len(part) // QUANT_PANEL) * QUANT_PANEL, per_row, BLOCK_BYTES[form]), np.uint8)
        padded[: len(part)] = part.reshape(len(part), per_row, BLOCK_BYTES[form])
        quants, scales = _PACKERS[form](padded)
        of_panels = len(padded) // QUANT_PANEL
        data = np.concatenate([quants.reshape(of_panels, -1), scales.reshape(of_panels, -1)], axis=1)
        if packed is None:
            packed = zeros(panels * data.shape[1]).view(panels, data.shape[1])
        start = first // QUANT_PANEL
        packed.numpy()[start : start + of_panels] = data
    assert packed is not None, "a matrix has rows"
    return PackedWeight(form, out_features, in_features, packed.reshape(-1))


def alternate_panels(weight: PackedWeight) -> None:
    """Put the panels of a matrix's first half and of its second in turns, in place: the order that `gated_linear` reads.

    Each half is a multiple of `DENSE_PANEL` rows.
    """
    assert weight.out_features % (2 * DENSE_PANEL) == 0, weight.out_features
    panels = weight.out_features // (2 * (QUANT_PANEL if weight.in_blocks else DENSE_PANEL))
    halves = weight.data.view(2, panels, -1)
    weight.data.copy_(halves.transpose(0, 1).reshape(-1))


def _quads(integers: Bytes) -> Bytes:
    """Integers [rows, K] -> [panels, groups, 8 quads, 16 rows, 4]."""
    rows, width = integers.shape
    split = integers.reshape(rows // QUANT_PANEL, QUANT_PANEL, width // GROUP, 8, 4)
    return split.transpose(0, 2, 3, 1, 4)


def _nibbles(integers: Bytes) -> Bytes:
    """Integers [rows, K] below 16 -> [panels, groups, 4, 16 rows, 4] with quad i low and quad i + 4 high."""
    quads = _quads(integers)
    return quads[:, :, :4] | quads[:, :, 4:] << np.uint8(4)


def _by_panel(values: Bytes) -> Bytes:
    """Bytes [rows, groups, n] of each row and group -> [panels, groups, 16 rows, n]."""
    rows, groups, size = values.shape
    return values.reshape(rows // QUANT_PANEL, QUANT_PANEL, groups, size).transpose(0, 2, 1, 3)


def _pack_q8_0(blocks: Bytes) -> tuple[Bytes, Bytes]:
    integers = blocks[:, :, 2:] ^ np.uint8(128)  # int8 + 128 as uint8
    return _quads(integers.reshape(len(blocks), -1)), _by_panel(blocks[:, :, :2])


def _low_then_high(packed: Bytes) -> Bytes:
    """Bytes [..., n] of two nibbles -> [..., 2 n], all low ones first."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


def _pack_q4_0(blocks: Bytes) -> tuple[Bytes, Bytes]:
    return _nibbles(_low_then_high(blocks[:, :, 2:]).reshape(len(blocks), -1)), _by_panel(blocks[:, :, :2])


def _pack_q4_1(blocks: Bytes) -> tuple[Bytes, Bytes]:
    integers = _low_then_high(blocks[:, :, 4:]).reshape(len(blocks), -1)
    d, m = _by_panel(blocks[:, :, :2]), _by_panel(blocks[:, :, 2:4])
    return _nibbles(integers), np.stack([d, m], axis=2)


def _pack_q4_k(blocks: Bytes) -> tuple[Bytes, Bytes]:
    rows, supers, _ = blocks.shape
    integers = _low_then_high(blocks[:, :, 16:].reshape(rows, supers, 4, 32)).reshape(rows, -1)
    # Twelve bytes hold eight scales and eight minima of six bits: the first four of each are whole in bytes 0-3 and 4-7; the others have
    # four low bits in bytes 8-11 (scale low, minimum high) and two high bits on top of bytes 0-3 and 4-7.
    first, second, third = blocks[:, :, 4:8], blocks[:, :, 8:12], blocks[:, :, 12:16]
    scale = np.concatenate([first & 63, third & 15 | first >> 6 << 4], axis=-1)
    minimum = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], axis=-1)
    halves = np.stack([_by_panel(blocks[:, :, :2]), _by_panel(blocks[:, :, 2:4])], axis=2)
    of_groups = np.stack([_by_panel(scale).swapaxes(2, 3), _by_panel(minimum).swapaxes(2, 3)], axis=3)
    panels = rows // QUANT_PANEL
    return _nibbles(integers), np.concatenate(
        [halves.reshape(panels, supers, 64), of_groups.reshape(panels, supers, 256)], axis=2
    )


def _pack_q6_k(blocks: Bytes) -> tuple[Bytes, Bytes]:
    rows, supers, _ = blocks.shape
    # Two halves of 128 weights; in each, 64 bytes of low nibbles and 32 bytes of high bit pairs for quarters of 32 weights.
    low = _low_then_high(blocks[:, :, :128].reshape(rows, supers, 2, 64)).reshape(rows, -1)
    pairs = blocks[:, :, 128:192].reshape(rows, supers, 2, 1, 32)
    high = (pairs >> np.array([0, 2, 4, 6], np.uint8).reshape(4, 1) & np.uint8(3)).reshape(rows, -1)
    quads = _quads(high)
    two_bits = quads[:, :, 0:2] | quads[:, :, 2:4] << 2 | quads[:, :, 4:6] << 4 | quads[:, :, 6:8] << 6
    panels, groups = quads.shape[:2]
    quants = np.concatenate([_nibbles(low).reshape(panels, groups, 256), two_bits.reshape(panels, groups, 128)], axis=2)
    d = _by_panel(blocks[:, :, 208:210]).reshape(panels, supers, 32)
    of_groups = _by_panel(blocks[:, :, 192:208]).swapaxes(2, 3).reshape(panels, supers, 256)
    return quants, np.concatenate([d, of_groups], axis=2)


_PACKERS: dict[Format, Callable[[Bytes], tuple[Bytes, Bytes]]] = {
    Format.Q8_0: _pack_q8_0,
    Format.Q4_0: _pack_q4_0,
    Format.Q4_1: _pack_q4_1,
    Format.Q4_K: _pack_q4_k,
    Format.Q6_K: _pack_q6_k,
}
