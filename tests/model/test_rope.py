"""Rotary frequencies and the table of cosines and sines."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from radixserve.model.config import RopeScaling
from radixserve.model.rope import TABLE_BLOCK, RopeTable, inverse_frequencies
from tests.tiny_decoder import tiny_config


def test_plain_frequencies() -> None:
    assert inverse_frequencies(4, 10000.0, RopeScaling()).tolist() == pytest.approx([1.0, 0.01])


def test_linear_divides_all() -> None:
    plain = inverse_frequencies(64, 1e4, RopeScaling())
    np.testing.assert_allclose(inverse_frequencies(64, 1e4, RopeScaling("linear", factor=4.0)), plain / 4)


def test_given_factors_divide_one_by_one() -> None:
    scaling = RopeScaling("factors", frequency_factors=(1.0, 8.0))
    assert inverse_frequencies(4, 1e4, scaling).tolist() == pytest.approx([1.0, 0.00125])


def test_llama3_keeps_short_and_stretches_long_wavelengths() -> None:
    plain = inverse_frequencies(128, 5e5, RopeScaling())
    scaled = inverse_frequencies(128, 5e5, RopeScaling("llama3", 8.0, 1.0, 4.0, original_context=8192))
    wavelength = 2 * np.pi / plain
    np.testing.assert_array_equal(scaled[wavelength < 8192 / 4], plain[wavelength < 8192 / 4])
    np.testing.assert_allclose(scaled[wavelength > 8192], plain[wavelength > 8192] / 8)
    between = (wavelength > 8192 / 4) & (wavelength < 8192)
    assert between.any()
    assert ((scaled < plain) & (scaled > plain / 8))[between].all()


def test_table_rotates_pairs_and_does_not_depend_on_its_growth() -> None:
    config = tiny_config("llama", head_dim=8)
    positions = torch.tensor([0, 1, 5, TABLE_BLOCK + 3])
    small = RopeTable(config, torch.device("cpu"))
    small.lookup(positions[:1], 1)
    cos, sin = small.lookup(positions, TABLE_BLOCK + 4)
    big = RopeTable(config, torch.device("cpu"))
    big.lookup(positions[:1], 10 * TABLE_BLOCK)
    assert torch.equal(cos, big.lookup(positions, TABLE_BLOCK + 4)[0])
    assert torch.equal(sin, big.lookup(positions, TABLE_BLOCK + 4)[1])
    x = torch.randn(8, generator=torch.Generator().manual_seed(0))
    rotated = x * cos + torch.roll(x, 4) * sin
    angles = positions.double()[:, None] * torch.from_numpy(inverse_frequencies(8, 1e4, RopeScaling()))
    pairs = torch.complex(x[:4].double(), x[4:].double()) * torch.polar(torch.ones_like(angles), angles)
    torch.testing.assert_close(rotated, torch.cat((pairs.real, pairs.imag), 1).float())
