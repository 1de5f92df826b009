from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixserve.runtime.selection import largest, nucleus, ranked

# Few distinct values, so that ties are everywhere; sizes on both sides of the block that the bound is taken over.
SIZES = st.sampled_from((1, 2, 3, 63, 64, 65, 128, 200, 1000))


def by_value(values: list[float]) -> list[int]:
    """Indices, the largest value first, ties by lowest index."""
    return sorted(range(len(values)), key=lambda index: (-values[index], index))


@settings(deadline=None, max_examples=150)
@given(SIZES, st.integers(1, 60), st.integers(0, 2**32 - 1), st.data())
def test_largest_and_ranked_agree_with_a_sort(size: int, distinct: int, seed: int, data: st.DataObject) -> None:
    values = np.random.default_rng(seed).integers(-distinct, distinct, size).astype(np.float32)
    values[values == -distinct] = -np.inf
    count = data.draw(st.integers(1, size))
    order = by_value(values.tolist())[:count]
    assert largest(values, count).tolist() == sorted(order)
    assert ranked(values, count).tolist() == order


def test_ranked_of_nothing_is_empty() -> None:
    assert ranked(np.ones(3), 0).tolist() == []


@settings(deadline=None, max_examples=150)
@given(
    SIZES,
    st.integers(1, 30),
    st.integers(0, 2**32 - 1),
    st.floats(1e-6, 1.0, exclude_max=True) | st.sampled_from((0.5, 0.25, 1 - 2**-53)),
)
def test_nucleus_is_the_smallest_set_that_reaches_the_share(size: int, distinct: int, seed: int, share: float) -> None:
    """Whole-number weights add up without rounding, so the set is exact, ties included."""
    weights = np.random.default_rng(seed).integers(0, distinct + 1, size).astype(np.float64)
    weights[seed % size] = distinct
    kept, mass, target = [], Fraction(0), Fraction(share * float(weights.sum()))
    for index in by_value(weights.tolist()):
        kept.append(index)
        mass += Fraction(float(weights[index]))
        if mass >= target:
            break
    assert nucleus(weights, share).tolist() == sorted(kept)


@pytest.mark.parametrize(("share", "kept"), [(0.25, 2), (0.26, 3), (0.5, 4), (0.51, 5), (0.999, 8), (1e-9, 1)])
def test_nucleus_of_equal_weights_takes_the_lowest_ids(share: float, kept: int) -> None:
    assert nucleus(np.ones(8), share).tolist() == list(range(kept))
