"""The orders that look at the tree against their definition, worked out anew at every pop."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from radixserve.cache.node import Node
from radixserve.scheduler.request import Request
from radixserve.scheduler.tree_policy import DepthFirstWeight, LongestPrefixMatch
from tests.scheduler.garden import Garden
from tests.scheduler.test_waiting_index import check_places, has_twins

FOREVER = 10**9


def best(garden: Garden, age_weight: float) -> Request:
    """Longest match less age, which a priority up to 64 is part of; the most senior among equals."""

    def key(request: Request) -> tuple[float, tuple[int, int]]:
        age = request.arrival - min(64, max(-64, request.priority))
        return age_weight * age - garden.match(request).length, request.order

    return min(garden.waiting, key=key)


@settings(deadline=None, max_examples=150)
@given(st.integers(0, 2**32), st.integers(0, 100), st.sampled_from([1, 2, 4]), st.sampled_from([0.25, 1.0, 8.0]))
def test_longest_prefix_match_pops_the_best_key(seed: int, count: int, size: int, age_weight: float) -> None:
    garden = Garden(seed, size)
    queue = LongestPrefixMatch(garden.cache, age_weight, FOREVER)
    for step in range(count):
        garden.change(queue)
        if step % 3 == 2 and garden.waiting and not any(has_twins(garden, request) for request in garden.waiting):
            expected = best(garden, age_weight)
            popped = queue.pop()
            assert popped is expected
            garden.waiting.remove(popped)
            if garden.rng.random() < 0.4:
                garden.waiting.append(popped)
                queue.add(popped)
        check_places(garden, queue)
    drained = [queue.pop() for _ in garden.waiting]
    assert set(map(id, drained)) == set(map(id, garden.waiting))
    assert queue.pop() is None
    assert len(queue) == 0 and not queue._spots and not queue._parked


def check_next(garden: Garden, popped: Request, spots: dict[tuple[int, int], Node], last: Node | None) -> None:
    """``popped`` is the most senior at a node that is reached by always taking a child with most requests below it.

    The walk starts at the nearest ancestor of the last one that still has requests below it, else at the roots.
    """
    weight: Counter[Node] = Counter()
    at: dict[Node, list[Request]] = {}
    for request in garden.waiting:
        node = spots[request.order]
        at.setdefault(node, []).append(request)
        step: Node | None = node
        while step is not None:
            weight[step] += 1
            step = step.parent
    while last is not None and not weight[last]:
        last = last.parent
    place = spots[popped.order]
    path = [garden.cache.tree.root(popped.namespace.tree), *place.path()]
    if last is None:
        assert weight[path[0]] == max(weight[root] for root in garden.cache.tree.roots().values())
    else:
        assert last in path
        path = path[path.index(last) :]
    for parent, child in pairwise(path):
        assert weight[child] == max(weight[other] for other in (parent.children or {}).values())
    assert not any(weight[child] for child in (place.children or {}).values()), "children come before the node's own"
    assert popped.order == min(request.order for request in at[place])


@settings(deadline=None, max_examples=150)
@given(st.integers(0, 2**32), st.integers(0, 100), st.sampled_from([1, 2, 4]))
def test_depth_first_weight_walks_into_the_heaviest_subtree(seed: int, count: int, size: int) -> None:
    garden = Garden(seed, size)
    queue = DepthFirstWeight(garden.cache)
    last = None
    for step in range(count):
        garden.change(queue)
        if step % 3 == 2 and garden.waiting:
            queue._resolve()
            check_places(garden, queue)
            assert all(spot.bound is None for spot in queue.spot_of.values())
            spots = {order: spot.node for order, spot in queue.spot_of.items()}
            popped = queue.pop()
            assert popped is not None
            check_next(garden, popped, spots, last)
            last = spots[popped.order]
            garden.waiting.remove(popped)
        check_places(garden, queue)
        assert sum(queue._weight.get(root, 0) for root in garden.cache.tree.roots().values()) == len(garden.waiting)
    while garden.waiting:
        popped = queue.pop()
        assert popped is not None
        garden.waiting.remove(popped)
    assert queue.pop() is None
    assert not any([queue._weight, queue._children, queue._entries, queue._queues, queue._spots, queue._parked])


def test_equal_keys_go_by_arrival() -> None:
    """Eight tokens more are worth one arrival at weight 8: a tie, which the older one wins; sixteen beat it."""
    garden = Garden(0, 4)
    garden.hold([1] * 16)
    queue = LongestPrefixMatch(garden.cache, 8.0, FOREVER)
    older = garden.wait(queue, [2, 2, 2])
    equal = garden.wait(queue, [1] * 8 + [3])
    longer = garden.wait(queue, [1] * 16 + [4])
    still_longer = garden.wait(queue, [1] * 16 + [5])
    # Keys are 0, 8 - 8, 16 - 16 and 24 - 16: the last is short of the others by eight.
    assert [queue.pop() for _ in range(4)] == [older, equal, longer, still_longer]


def test_a_request_that_was_passed_often_enough_is_a_barrier() -> None:
    garden = Garden(0, 4)
    garden.hold([1] * 16)
    queue = LongestPrefixMatch(garden.cache, 4.0, 8)
    assert queue.max_passed == 2, "by their match alone four could pass"
    old = garden.wait(queue, [2, 2, 2])
    young = [garden.wait(queue, [1] * 16 + [3]) for _ in range(5)]
    assert [queue.pop(), queue.pop()] == young[:2]
    assert queue.slack(old) == 0
    assert queue.pop() is old
    queue.add(old)
    assert queue.pop() is old, "it does not fit and comes back: nothing overtakes it"
    assert [queue.pop(), queue.pop(), queue.pop()] == young[2:]


def test_a_priority_is_a_head_start_with_a_bound() -> None:
    garden = Garden(0, 4)
    queue = LongestPrefixMatch(garden.cache, 8.0, 80)
    assert queue.max_passed == 10
    plain = [garden.wait(queue, [2, index]) for index in range(70)]
    assert queue.max_passed == 10, "where nobody uses priorities nothing changes"
    high = garden.wait(queue, [3], priority=5)
    assert queue.max_passed == 15
    highest = garden.wait(queue, [3], priority=2**31 - 1)
    lowest = garden.wait(queue, [3], priority=-(2**31) + 1)
    assert queue.max_passed == 10 + 128
    # ``highest`` came as the 72nd and counts as the 8th; of equals the older one is first.
    order = [queue.pop() for _ in range(72)]
    assert order.index(highest) == 8 and order.index(high) == 67 and order[:8] == plain[:8]
    later = [garden.wait(queue, [3]) for _ in range(70)]
    assert [queue.pop() for _ in range(63)] == later[:63] and queue.pop() is lowest


def test_a_head_start_and_a_match_add_up() -> None:
    garden = Garden(0, 4)
    garden.hold([1] * 16)
    queue = LongestPrefixMatch(garden.cache, 8.0, FOREVER)
    first = garden.wait(queue, [2])
    matched = garden.wait(queue, [1] * 16 + [3])
    urgent = garden.wait(queue, [1] * 8 + [2], priority=2)
    # Keys 0, 8 - 16 and 0 - 8.
    assert [queue.pop() for _ in range(3)] == [matched, urgent, first]


def test_one_that_comes_back_was_not_admitted() -> None:
    """A request that is popped and put back has passed nobody."""
    garden = Garden(0, 4)
    garden.hold([1] * 16)
    queue = LongestPrefixMatch(garden.cache, 4.0, 8)
    old = garden.wait(queue, [2, 2, 2])
    young = garden.wait(queue, [1] * 16 + [3])
    for _ in range(10):
        assert queue.pop() is young
        queue.add(young)
    assert queue.slack(old) == 2


def test_nothing_grows_with_one_that_never_fits() -> None:
    """Popped and put back at every step, as what does not fit is."""
    garden = Garden(0, 4)
    lpm = LongestPrefixMatch(garden.cache, 8.0, FOREVER)
    for _ in range(3):
        garden.wait(lpm, [2, 2, 2])
    dfs = DepthFirstWeight(garden.cache)
    for request in garden.waiting:
        dfs.add(request)
    for queue in (lpm, dfs):
        first = garden.waiting[0]
        for _ in range(2000):
            assert queue.pop() is first
            queue.add(first)
    assert max(len(lpm._heap), len(lpm._oldest), len(lpm._admitted)) < 300
    assert max(len(spot._heap) for spot in {*lpm.spot_of.values(), *dfs.spot_of.values()}) < 300
    assert max(len(orders) for orders in dfs._queues.values()) < 300


def test_requests_behind_the_most_wanted_prefix_come_first_and_together() -> None:
    garden = Garden(0, 4)
    garden.hold([1] * 4 + [2] * 4)
    garden.hold([1] * 4 + [3] * 4)
    garden.hold([5] * 8)
    queue = DepthFirstWeight(garden.cache)
    few = [garden.wait(queue, [5] * 8 + [index]) for index in range(2)]
    short = garden.wait(queue, [1] * 4 + [9])
    many = [garden.wait(queue, [1] * 4 + [2] * 4 + [index]) for index in range(3)]
    none = garden.wait(queue, [7])
    assert [queue.pop() for _ in range(7)] == [*many, short, *few, none]
