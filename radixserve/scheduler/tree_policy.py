"""The orders of the waiting queue that look at the radix tree."""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection

from sortedcontainers import SortedList

from radixserve.cache.node import Node
from radixserve.cache.prefix_cache import PrefixCache
from radixserve.scheduler.policy import head_start
from radixserve.scheduler.request import Request
from radixserve.scheduler.waiting_index import Order, Spot, WaitingIndex

# More than can have been taken from the queue and come back at one time.
_MAY_RETURN = 4096


class LongestPrefixMatch(WaitingIndex):
    """Longest matched prefix first (Zheng et al. 2024, SGLang), with ageing.

    The key of a request is ``matched - age_weight * (arrival - head start)``, where the head start is its priority, no
    further from 0 than `MAX_HEAD_START`; it changes only with the match. A later arrival can pass an earlier one only if what it
    matches more, and ``age_weight`` for what its head start is more, together exceed ``age_weight`` for every arrival between
    them. So at most ``ceil(context_length / age_weight)`` can, and as many more as the head starts of all requests so far
    differ at most (none where nobody uses priorities). A request that was passed that often (because it did not fit while
    others did) is a barrier that nothing overtakes.
    """

    def __init__(self, cache: PrefixCache, age_weight: float, context_length: int) -> None:
        super().__init__(cache)
        self.age_weight = age_weight
        self._passed_by_match = math.ceil(context_length / age_weight)
        self._head_starts: tuple[int, int] | None = None
        self._serial = 0
        self._heap: list[tuple[float, Order, int, Spot]] = []
        self._oldest: list[Order] = []
        self._admitted: SortedList[Order] = SortedList()

    @property
    def max_passed(self) -> int:
        """How many later arrivals can be admitted before a request."""
        least, most = self._head_starts or (0, 0)
        return self._passed_by_match + most - least

    def add(self, request: Request) -> None:
        """``request`` waits (again)."""
        own = head_start(request)
        least, most = self._head_starts or (own, own)
        self._head_starts = min(least, own), max(most, own)
        self._admitted.discard(request.order)
        heapq.heappush(self._oldest, request.order)
        super().add(request)
        if len(self._oldest) > 2 * len(self.spot_of) + 64:
            self._oldest = sorted(self.spot_of)

    def pop(self) -> Request | None:
        """The request with the largest key, unless an older one has been passed too often."""
        request = self._barrier() or self._best()
        if request is not None:
            self.remove(request)
            self._admitted.add(request.order)
            if len(self._admitted) > 2 * (self.max_passed + _MAY_RETURN):
                # Nobody is passed more often than the latest of them tell.
                del self._admitted[: -(self.max_passed + _MAY_RETURN)]
        return request

    def slack(self, request: Request) -> int | None:
        """How often ``request`` may still be passed."""
        return max(0, self.max_passed - self._passed(request.order))

    def _passed(self, order: Order) -> int:
        return len(self._admitted) - self._admitted.bisect_right(order)

    def _barrier(self) -> Request | None:
        """The oldest waiting request, which has been passed most, if that was often enough."""
        while self._oldest and self._oldest[0] not in self.spot_of:
            heapq.heappop(self._oldest)
        if not self._oldest or self._passed(self._oldest[0]) < self.max_passed:
            return None
        return self.spot_of[self._oldest[0]].members[self._oldest[0]]

    def _best(self) -> Request | None:
        while self._heap:
            key, order, _, spot = self._heap[0]
            first = spot.first()
            if first is None or first.order != order or key != self._key(spot, first):
                heapq.heappop(self._heap)
            elif spot.bound is None:
                return first
            else:
                self.refresh(first)
        return None

    def _key(self, spot: Spot, request: Request) -> float:
        return self.age_weight * (request.arrival - head_start(request)) - spot.value

    def spot_changed(self, spot: Spot) -> None:
        """Offer the spot's most senior request anew.

        What the heap holds of the spot's past is dropped when it surfaces.
        """
        first = spot.first()
        if first is None:
            return
        self._serial += 1
        heapq.heappush(self._heap, (self._key(spot, first), first.order, self._serial, spot))
        if len(self._heap) > 4 * len(self.spot_of) + 256:
            self._rebuild()

    def _rebuild(self) -> None:
        entries = []
        for spot in {id(spot): spot for spot in self.spot_of.values()}.values():
            first = spot.first()
            if first is not None:
                self._serial += 1
                entries.append((self._key(spot, first), first.order, self._serial, spot))
        heapq.heapify(entries)
        self._heap = entries


class DepthFirstWeight(WaitingIndex):
    """Depth first through the tree, the subtree with most waiting requests first, a node's own requests after its
    children's. A subtree is emptied before the next is entered, though its weight falls meanwhile.

    Requests that share a prefix are admitted together, so the prefix is used while it is there (the order that Zheng
    et al. 2024 show to be optimal for the hit rate of a batch).
    """

    def __init__(self, cache: PrefixCache) -> None:
        super().__init__(cache)
        self._weight: dict[Node, int] = {}
        self._children: dict[Node | None, SortedList[tuple[int, int, Node]]] = {}
        self._entries: dict[Node, tuple[Node | None, tuple[int, int, Node]]] = {}
        self._queues: dict[Node, list[Order]] = {}
        self._stale: dict[Spot, None] = {}
        self._serial = 0
        self._last: Node | None = None

    def pop(self) -> Request | None:
        """The most senior request of the next node in that order."""
        self._resolve()
        node = self._last
        while node is not None and node not in self._weight:
            node = node.parent
        while children := self._children.get(node):
            node = children[0][2]
        if node is None:
            return None
        queue = self._queues[node]
        while queue[0] not in self.spot_of or self.spot_of[queue[0]].node is not node:
            heapq.heappop(queue)
        self._last = node
        order = heapq.heappop(queue)
        request = self.spot_of[order].members[order]
        self.remove(request)
        return request

    def slack(self, request: Request) -> int | None:
        """Any number may pass: this order follows the tree, not arrival."""
        return None

    def _resolve(self) -> None:
        """Weights need every request's exact place, so stale spots are resolved whole."""
        while self._stale:
            spot, _ = self._stale.popitem()
            if spot.bound is not None:
                for request in list(spot.members.values()):
                    self.refresh(request)

    def spot_changed(self, spot: Spot) -> None:
        """Remember stale spots."""
        if spot.bound is not None:
            self._stale[spot] = None

    def joined(self, node: Node, request: Request) -> None:
        """One more request below every node of the path."""
        heapq.heappush(self._queues.setdefault(node, []), request.order)
        self._add_weight(node, 1)

    def left(self, node: Node, request: Request) -> None:
        """One request less below every node of the path."""
        self._add_weight(node, -1)

    def moved(self, source: Node, target: Node, orders: Collection[Order]) -> None:
        """Requests moved between a node and its parent: only the lower one's weight changes."""
        queue = self._queues.setdefault(target, [])
        for order in orders:
            heapq.heappush(queue, order)
        if source in self._weight:
            self._set_weight(source, self._weight[source] - len(orders))

    def split(self, upper: Node, lower: Node) -> None:
        """The new upper node has all that was below the old one."""
        weight = self._weight.get(lower, 0)
        if weight:
            self._unfile(lower)
            self._file(upper, weight)
            self._file(lower, weight)
        super().split(upper, lower)

    def merged(self, upper: Node, lower: Node) -> None:
        """The lower node has all that was below the upper one."""
        weight = self._weight.pop(upper, 0)
        if weight:
            self._unfile(upper)
            self._queues.pop(upper, None)
            self._unfile(lower)
            self._file(lower, weight)
        super().merged(upper, lower)

    def _add_weight(self, node: Node, change: int) -> None:
        step: Node | None = node
        while step is not None:
            self._set_weight(step, self._weight.get(step, 0) + change)
            step = step.parent

    def _set_weight(self, node: Node, weight: int) -> None:
        self._unfile(node)
        if weight:
            self._file(node, weight)
        else:
            self._weight.pop(node, None)
            self._queues.pop(node, None)

    def _file(self, node: Node, weight: int) -> None:
        """List ``node`` among its siblings by weight."""
        self._weight[node] = weight
        self._serial += 1
        entry = (-weight, self._serial, node)
        self._entries[node] = (node.parent, entry)
        self._children.setdefault(node.parent, SortedList()).add(entry)

    def _unfile(self, node: Node) -> None:
        filed = self._entries.pop(node, None)
        if filed is None:
            return
        parent, entry = filed
        siblings = self._children[parent]
        siblings.remove(entry)
        if not siblings:
            del self._children[parent]
