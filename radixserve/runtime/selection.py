"""Exact selection of the most likely tokens, without sorting the vocabulary.

"Most likely" is by value, ties by lowest index, everywhere. Values are one-dimensional float arrays without NaN.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.floating[Any]]
Float64Array = npt.NDArray[np.float64]
IndexArray = npt.NDArray[np.intp]

_BLOCK = 64


def largest(values: FloatArray, count: int) -> IndexArray:
    """Indices of the ``count`` largest values (1 <= count <= len(values)), in ascending order of index."""
    size = len(values)
    if count >= size:
        return np.arange(size)
    whole = size // _BLOCK
    if count <= whole:
        # ``count`` blocks have a maximum of at least ``bound``, so at least ``count`` values reach it.
        maxima = values[: whole * _BLOCK].reshape(whole, _BLOCK).max(axis=1)
        bound = np.partition(maxima, whole - count)[whole - count]
        candidates = np.flatnonzero(values >= bound)
        return candidates[_largest(values[candidates], count)]
    return _largest(values, count)


def ranked(values: FloatArray, count: int) -> IndexArray:
    """Indices of the ``count`` largest values, the largest first."""
    if count == 0:
        return np.empty(0, np.intp)
    indices = largest(values, count)
    # The indices ascend, so a stable sort leaves ties by lowest index.
    return indices[np.argsort(-values[indices], kind="stable")]


def nucleus(weights: Float64Array, share: float) -> IndexArray:
    """Indices, ascending, of the smallest set of largest weights that holds at least ``share`` of their sum.

    ``weights`` are not negative and not all zero; 0 < ``share`` < 1. Nucleus sampling: Holtzman et al. 2020, section
    3.1.
    """
    total = float(weights.sum())
    # All weights below ``floor`` together are less than half of what may be left out, so the set lies above it: only
    # that part is sorted. The other half is room for rounding.
    floor = 0.5 * (1.0 - share) * total / len(weights)
    descending = np.sort(weights[weights >= floor])[::-1]
    reached = int(np.searchsorted(np.cumsum(descending), share * total))
    # Rounding may leave the whole sum a little below the target; then everything that was sorted is kept.
    count = min(reached + 1, len(descending))
    return _at_least(weights, float(descending[count - 1]), count)


def _largest(values: FloatArray, count: int) -> IndexArray:
    if count == len(values):
        return np.arange(count)
    kth = np.partition(values, len(values) - count)[len(values) - count]
    return _at_least(values, kth, count)


def _at_least(values: FloatArray, kth: Any, count: int) -> IndexArray:
    """Ascending indices of the ``count`` largest values, given that the last of them is ``kth``."""
    indices = np.flatnonzero(values >= kth)
    surplus = len(indices) - count
    if surplus > 0:
        ties = np.flatnonzero(values[indices] == kth)
        indices = np.delete(indices, ties[len(ties) - surplus :])
    return indices
