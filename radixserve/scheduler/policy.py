"""The order of the waiting queue.

`WaitingQueue` is the protocol; ``fcfs`` and ``priority`` are here, ``lpm`` and ``dfs-weight``, which look at the
tree, in `tree_policy`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Protocol

from radixserve.scheduler.request import Request

# Under ``lpm`` a request of this priority, or a higher one, is as if it had come so many arrivals earlier.
MAX_HEAD_START = 64


def head_start(request: Request) -> int:
    """The arrivals that ``request`` goes before (or, negative, behind) its own by its priority, where age counts."""
    return max(-MAX_HEAD_START, min(MAX_HEAD_START, request.priority))


class WaitingQueue(Protocol):
    """Requests that wait for admission. All operations are O(log n) at most, amortised."""

    def __len__(self) -> int:
        """Requests waiting."""

    def __iter__(self) -> Iterator[Request]:
        """All waiting requests, in no particular order."""

    def add(self, request: Request) -> None:
        """``request`` waits (again)."""

    def remove(self, request: Request) -> bool:
        """``request`` no longer waits; False if it did not."""

    def pop(self) -> Request | None:
        """Take the request that comes next, or None."""

    def slack(self, request: Request) -> int | None:
        """How many later arrivals may still be admitted before ``request``, which was popped and does not fit; None.

        Any number.
        """


class OrderedQueue:
    """A queue ordered by a key that never changes; removal is lazy."""

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, ...], Request]] = []
        self._waiting: dict[tuple[int, int], Request] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Request]:
        return iter(list(self._waiting.values()))

    def key(self, request: Request) -> tuple[int, ...]:
        """The sort key; unique, because it ends in the request's order."""
        return request.order

    def add(self, request: Request) -> None:
        """``request`` waits (again)."""
        self._waiting[request.order] = request
        heapq.heappush(self._heap, (self.key(request), request))
        if len(self._heap) > 2 * len(self._waiting) + 64:
            self._heap = [(self.key(item), item) for item in self._waiting.values()]
            heapq.heapify(self._heap)

    def remove(self, request: Request) -> bool:
        """``request`` no longer waits; False if it did not."""
        return self._waiting.pop(request.order, None) is not None

    def pop(self) -> Request | None:
        """The request with the smallest key."""
        while self._heap:
            _, request = heapq.heappop(self._heap)
            if self.remove(request):
                return request
        return None

    def slack(self, request: Request) -> int | None:
        """None may pass: the order is strict."""
        return 0


class FirstComeFirstServed(OrderedQueue):
    """By arrival."""


class ByPriority(OrderedQueue):
    """Higher ``priority`` first, then by arrival. A low priority can wait for ever; that is what it asks for."""

    def key(self, request: Request) -> tuple[int, ...]:
        """Priority, then arrival."""
        return (-request.priority, *request.order)
