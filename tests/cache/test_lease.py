"""The arrays that stand for a lease's block table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixserve.cache.lease import Lease
from radixserve.cache.namespace import Namespace
from radixserve.cache.node import Node


def lease(table: list[int]) -> Lease:
    return Lease(Namespace("m", "", b""), Node(None, b"", b"", [], 0), table)


@settings(deadline=None, derandomize=True, max_examples=200)
@given(st.data())
def test_a_snapshot_is_what_the_table_is_and_stays_what_it_was(data: Any) -> None:
    """Tables grow in place and are otherwise replaced, as `Lease` demands; whatever comes in between."""
    blocks = st.lists(st.integers(0, 9), max_size=4)
    subject = lease(data.draw(blocks))
    taken: list[tuple[np.ndarray[Any, np.dtype[np.int32]], list[int]]] = []
    for _ in range(data.draw(st.integers(1, 12))):
        match data.draw(st.sampled_from(["grow", "cut", "replace", "look"])):
            case "grow":
                subject.table += data.draw(blocks)
            case "cut":
                subject.table = subject.table[: data.draw(st.integers(0, len(subject.table)))]
            case "replace":
                subject.table = data.draw(blocks)
        count = data.draw(st.integers(0, len(subject.table)))
        snapshot = subject.snapshot(count)
        assert snapshot.tolist() == subject.table[:count] and snapshot.dtype == np.int32
        assert subject.snapshot(count) is snapshot
        taken.append((snapshot, subject.table[:count]))
    for snapshot, was in taken:
        assert snapshot.tolist() == was
        with pytest.raises(ValueError, match="read-only"):
            snapshot[:] = 0


def test_it_is_the_same_array_until_the_blocks_are_others() -> None:
    subject = lease([7, 8])
    first = subject.snapshot(2)
    subject.table += [9]
    assert subject.snapshot(2) is first
    grown = subject.snapshot(3)
    assert grown.tolist() == [7, 8, 9] and subject.snapshot(3) is grown
    subject.table = [7, 8, 9]
    assert subject.snapshot(3) is not grown
