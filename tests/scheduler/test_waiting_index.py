"""The place of every waiting request against a fresh walk through the tree, after every change of the tree."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixserve.cache.node import Node
from radixserve.cache.token_key import key_slice
from radixserve.scheduler.policy import head_start
from radixserve.scheduler.request import Request
from radixserve.scheduler.waiting_index import WaitingIndex
from tests.scheduler.garden import Garden


def has_twins(garden: Garden, request: Request) -> bool:
    """Whether public nodes and the tenant's own both hold a block of what ``request`` matches: it follows one branch only."""
    tree = garden.cache.tree
    node, length = tree.root(request.namespace.tree), 0
    options: list[Node] = []
    while length <= garden.match(request).length:
        options = tree.children_with(node, request.namespace.salt, key_slice(request.key, length, length + garden.size))
        if len(options) != 1:
            break
        node, length = options[0], options[0].end
    return len(options) == 2


def check_places(garden: Garden, index: WaitingIndex) -> None:
    """Where a request is filed it matches; it matches no less than its spot's depth and no more than its spot's bound."""
    assert set(index.spot_of) == {request.order for request in garden.waiting}
    assert len(index) == len(garden.waiting)
    for request in garden.waiting:
        spot = index.spot_of[request.order]
        fresh = garden.match(request)
        assert spot.members[request.order] is request
        assert spot.salt == request.namespace.salt
        assert spot.depth <= fresh.length
        assert spot.depth == fresh.length or fresh.length <= (spot.bound or 0) or has_twins(garden, request)
        assert spot.node.alive
        assert spot.node.start < spot.depth <= spot.node.end or spot.node.parent is None
        assert spot.node.salt in (b"", spot.salt)
        held = b"".join(step.data for step in spot.node.path())
        assert key_slice(held, 0, spot.depth) == key_slice(request.key, 0, spot.depth)
        end = spot.depth + garden.size
        assert spot.block == (key_slice(request.key, spot.depth, end) if end <= request.match_limit else b"")
    spots = {id(spot): spot for spot in index.spot_of.values()}.values()
    for spot in spots:
        first = spot.first()
        assert first is not None
        assert first is min(spot.members.values(), key=lambda item: (item.arrival - head_start(item), item.order))


@settings(deadline=None, max_examples=200)
@given(st.integers(0, 2**32), st.integers(0, 120), st.sampled_from([1, 2, 4]))
def test_every_place_is_true_after_every_change(seed: int, count: int, size: int) -> None:
    """Inserts, splits, merges, failed steps, evictions of whole nodes and of their ends, public and salted prefixes."""
    garden = Garden(seed, size)
    index = WaitingIndex(garden.cache)
    for _ in range(count):
        garden.change(index)
        check_places(garden, index)
    for request in list(garden.waiting):
        index.refresh(request)
        spot = index.spot_of[request.order]
        assert (spot.depth, spot.bound) == (garden.match(request).length, None) or has_twins(garden, request)
    for request in garden.waiting:
        assert index.remove(request)
        assert not index.remove(request)
    assert not index._spots and not index._parked and not index.spot_of, "nothing is remembered of who is gone"


def test_a_child_that_appears_is_told_to_all_who_wait_for_it_at_once() -> None:
    garden = Garden(0, 4)
    index = WaitingIndex(garden.cache)
    waiting = [garden.wait(index, [1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, own]) for own in range(5)]
    other = garden.wait(index, [9, 1, 1, 1, 2])
    assert len({id(index.spot_of[request.order]) for request in waiting}) == 1
    garden.hold([1, 1, 1, 1, 2, 2, 2, 2])
    spot = index.spot_of[waiting[0].order]
    assert (spot.depth, spot.bound) == (0, 8)
    assert index.spot_of[other.order].bound is None
    index.refresh(waiting[0])
    assert index.spot_of[waiting[0].order].depth == 8
    assert index.spot_of[waiting[1].order].depth == 0, "the others stay until they are about to be picked"


@pytest.mark.parametrize(("holder", "seen"), [(b"", True), (b"a", True), (b"b", False)])
def test_what_another_tenant_holds_moves_nobody(holder: bytes, seen: bool) -> None:
    garden = Garden(0, 4)
    index = WaitingIndex(garden.cache)
    request = garden.wait(index, [1, 1, 1, 1, 2], salt=b"a")
    garden.hold([1, 1, 1, 1], salt=holder)
    assert index.spot_of[request.order].bound == (4 if seen else None)


def test_an_eviction_takes_the_place_back_to_what_is_left() -> None:
    garden = Garden(0, 4)
    garden.hold([1] * 12)
    index = WaitingIndex(garden.cache)
    request = garden.wait(index, [1] * 12 + [2])
    spot = index.spot_of[request.order]
    assert (spot.depth, spot.bound) == (12, None)
    garden.cache.evict(1)
    assert index.spot_of[request.order].depth == 8
    garden.cache.evict(2)
    spot = index.spot_of[request.order]
    assert (spot.depth, spot.bound, spot.block) == (0, None, key_slice(request.key, 0, 4))
