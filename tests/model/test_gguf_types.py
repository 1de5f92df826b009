"""Dequantization against the `gguf` package, bit for bit."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf import quants

from radixserve.model.gguf_types import OTHER_TYPE_NAMES, TENSOR_TYPES, TensorType

READ = sorted(TENSOR_TYPES.items())


@pytest.mark.parametrize(("number", "kind"), READ, ids=[kind.name for _, kind in READ])
def test_every_type_equals_the_reference(number: int, kind: TensorType) -> None:
    rng = np.random.default_rng(number)
    rows, blocks = 7, 3
    raw = rng.integers(0, 256, (rows, blocks * kind.block_bytes), np.uint8)
    ours = kind.dequantize(raw)
    assert gguf.GGMLQuantizationType(number).name == kind.name
    with np.errstate(all="ignore"):
        theirs = quants.dequantize(raw, gguf.GGMLQuantizationType(number))
    if theirs.dtype != np.float32:
        theirs = theirs.astype(np.float32)
    assert ours.shape == (rows, blocks * kind.block_elements) == theirs.shape
    # NaN made from random scale bytes must be NaN in both; everything else must have the same bits.
    assert (np.isnan(ours) == np.isnan(theirs)).all()
    finite = ~np.isnan(ours)
    assert (ours[finite].view(np.uint32) == theirs[finite].view(np.uint32)).all()


@pytest.mark.parametrize(("number", "kind"), READ, ids=[kind.name for _, kind in READ])
def test_sizes_are_the_formats(number: int, kind: TensorType) -> None:
    assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(number)] == (kind.block_elements, kind.block_bytes)
    assert kind.row_bytes(4 * kind.block_elements) == 4 * kind.block_bytes


def test_names_of_types_that_are_not_read_are_right() -> None:
    known = {kind.value: kind.name for kind in gguf.GGMLQuantizationType}
    assert not OTHER_TYPE_NAMES.keys() & TENSOR_TYPES.keys()
    for number, name in OTHER_TYPE_NAMES.items():
        assert known.get(number, name) == name
