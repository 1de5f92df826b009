"""Where in the tree each waiting request's match ends, kept true at a cost that depends on what changes and not on
how many wait.

Requests whose match ends at the same place and that go on with the same block form a *spot*. Only a new child that
begins with that block can make their match longer, so a spot is found from the child that is added, in one
dictionary lookup, and all its requests are told at once by marking it *stale* with an upper bound of what they might
match now. A stale spot is resolved one request at a time, when one of them is about to be picked.

Where a tenant's nodes and public ones hold the same tokens, a request is filed on one of the two branches and follows
that one only: it may wait longer than what the other has come to hold would let it, and is served that all the same.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator

from radixserve.cache.node import Node
from radixserve.cache.prefix_cache import PrefixCache
from radixserve.cache.token_key import key_slice
from radixserve.scheduler.policy import head_start
from radixserve.scheduler.request import Request

Order = tuple[int, int]
Place = tuple[int, bytes]


class Spot:
    """Waiting requests that match exactly ``depth`` tokens, to a point on ``node``'s edge, and go on with ``block``.

    ``block`` is empty where the requests end before another whole block could match. ``bound``: None, or, for a
    stale spot, an upper bound (tokens) of what its requests match now.
    """

    __slots__ = ("_heap", "block", "bound", "depth", "members", "node", "parked", "salt")

    def __init__(self, node: Node, depth: int, block: bytes, salt: bytes) -> None:
        self.node = node
        self.depth = depth
        self.block = block
        self.salt = salt
        self.bound: int | None = None
        self.parked: list[Node] = []
        self.members: dict[Order, Request] = {}
        self._heap: list[tuple[int, Order]] = []

    @property
    def value(self) -> int:
        """Tokens matched, or the bound of a stale spot."""
        return self.depth if self.bound is None else self.bound

    def add(self, request: Request) -> None:
        """``request`` matches here."""
        self.members[request.order] = request
        heapq.heappush(self._heap, _seniority(request))
        if len(self._heap) > 2 * len(self.members) + 64:
            # One that is popped, does not fit and comes back leaves an entry behind every time.
            self._heap = sorted(map(_seniority, self.members.values()))

    def absorb(self, other: Spot) -> None:
        """Take over all requests of ``other``, which is left empty."""
        if len(other._heap) > len(self._heap):
            self._heap, other._heap = other._heap, self._heap
        self.members.update(other.members)
        for entry in other._heap:
            heapq.heappush(self._heap, entry)
        other.members, other._heap = {}, []

    def first(self) -> Request | None:
        """The most senior request, by arrival and head start."""
        while self._heap:
            request = self.members.get(self._heap[0][1])
            if request is not None:
                return request
            heapq.heappop(self._heap)
        return None


def _seniority(request: Request) -> tuple[int, Order]:
    return (request.arrival - head_start(request), request.order)


class WaitingIndex:
    """All spots, by place. A `TreeObserver`: it follows every change of the tree's shape.

    A policy derives from it and overrides the hooks to keep its own order.
    """

    def __init__(self, cache: PrefixCache) -> None:
        self.cache = cache
        self.spot_of: dict[Order, Spot] = {}
        self._spots: dict[Node, dict[Place, dict[bytes, Spot]]] = {}
        self._parked: dict[Node, set[Spot]] = {}
        cache.tree.observer = self

    def __len__(self) -> int:
        return len(self.spot_of)

    def __iter__(self) -> Iterator[Request]:
        return iter([spot.members[order] for order, spot in self.spot_of.items()])

    # ---------------------------------------------------------------- hooks

    def spot_changed(self, spot: Spot) -> None:
        """The value or the most senior request of ``spot`` changed."""

    def joined(self, node: Node, request: Request) -> None:
        """``request`` joined a spot at ``node``."""

    def left(self, node: Node, request: Request) -> None:
        """``request`` left a spot at ``node``."""

    def moved(self, source: Node, target: Node, orders: Collection[Order]) -> None:
        """Requests that were at ``source`` are at ``target``, because the tree changed around them."""

    # ---------------------------------------------------------------- requests

    def add(self, request: Request) -> None:
        """``request`` waits (again)."""
        self._place(request, None)

    def remove(self, request: Request) -> bool:
        """``request`` no longer waits; False if it did not."""
        spot = self.spot_of.pop(request.order, None)
        if spot is None:
            return False
        del spot.members[request.order]
        self.left(spot.node, request)
        if spot.members:
            self.spot_changed(spot)
        else:
            self._forget(spot)
        return True

    def refresh(self, request: Request) -> None:
        """Find the exact place of a request, from where its spot is."""
        spot = self.spot_of[request.order]
        # A merge may have left the spot in the middle of an edge, which need not match to its end.
        start = spot.node if spot.depth == spot.node.end else spot.node.parent
        self.remove(request)
        self._place(request, start)

    def _place(self, request: Request, start: Node | None) -> None:
        size = self.cache.block_size
        match = self.cache.match(request.namespace, request.key, request.match_limit, start)
        end = match.length + size
        block = key_slice(request.key, match.length, end) if end <= request.match_limit else b""
        spot = self._spot(match.node, match.length, block, request.namespace.salt)
        # The match is exact, so a stale mark on its spot is out of date: nothing held continues with this block.
        self._settle(spot)
        spot.add(request)
        self.spot_of[request.order] = spot
        self.joined(spot.node, request)
        self.spot_changed(spot)

    # ---------------------------------------------------------------- spots

    def _spot(self, node: Node, depth: int, block: bytes, salt: bytes) -> Spot:
        salts = self._spots.setdefault(node, {}).setdefault((depth, block), {})
        spot = salts.get(salt)
        if spot is None:
            spot = salts[salt] = Spot(node, depth, block, salt)
        return spot

    def _forget(self, spot: Spot) -> None:
        self._settle(spot)
        self._unlist(spot)

    def _unlist(self, spot: Spot) -> None:
        places = self._spots[spot.node]
        salts = places[(spot.depth, spot.block)]
        del salts[spot.salt]
        if not salts:
            del places[(spot.depth, spot.block)]
            if not places:
                del self._spots[spot.node]

    def _settle(self, spot: Spot) -> None:
        spot.bound = None
        for node in spot.parked:
            parked = self._parked[node]
            parked.discard(spot)
            if not parked:
                del self._parked[node]
        spot.parked = []

    def _mark_stale(self, spot: Spot, child: Node) -> None:
        spot.bound = max(spot.bound or 0, child.end)
        if child not in spot.parked:
            spot.parked.append(child)
            self._parked.setdefault(child, set()).add(spot)
        self.spot_changed(spot)

    def _relocate(self, spot: Spot, node: Node, depth: int, block: bytes) -> None:
        """The tree changed so that the requests of ``spot`` match to another place; its own entry was removed."""
        self._settle(spot)
        target = self._spot(node, depth, block, spot.salt)
        for order in spot.members:
            self.spot_of[order] = target
        target.absorb(spot)
        self._settle(target)
        for child in self.cache.tree.children_with(node, spot.salt, block) if depth == node.end else ():
            # What is below this child was there before: how far it reaches is not known.
            self._mark_stale(target, child)
            target.bound = max(request.match_limit for request in target.members.values())
        self.spot_changed(target)

    # ---------------------------------------------------------------- the tree changed

    def child_added(self, parent: Node, child: Node) -> None:
        """Requests that end at ``parent`` and go on like ``child`` match more now."""
        size = self.cache.block_size
        places = self._spots.get(parent)
        if places and child.length >= size:
            salts = places.get((parent.end, key_slice(child.data, 0, size)), {})
            for spot in list(salts.values()):
                if child.salt in (b"", spot.salt):
                    self._mark_stale(spot, child)
        if self._parked:
            step: Node | None = parent
            while step is not None:
                for spot in self._parked.get(step, ()):
                    if spot.bound is not None and spot.bound < child.end:
                        spot.bound = child.end
                        self.spot_changed(spot)
                step = step.parent

    def split(self, upper: Node, lower: Node) -> None:
        """What ended on the upper part is at ``upper`` now."""
        if lower in self._parked:
            spots = self._parked[upper] = self._parked.pop(lower)
            for spot in spots:
                spot.parked[spot.parked.index(lower)] = upper
        places = self._spots.get(lower)
        if not places:
            return
        for place in [place for place in places if place[0] <= upper.end]:
            self._rehang(lower, upper, place)

    def merged(self, upper: Node, lower: Node) -> None:
        """What ended at ``upper`` ends inside ``lower`` now."""
        if upper in self._parked:
            for spot in self._parked.pop(upper):
                spot.parked.remove(upper)
                if lower not in spot.parked:
                    spot.parked.append(lower)
                self._parked.setdefault(lower, set()).add(spot)
        for place in list(self._spots.get(upper, ())):
            self._rehang(upper, lower, place)

    def _rehang(self, source: Node, target: Node, place: Place) -> None:
        """Move the spots of one place from one node to another; the place itself is unchanged."""
        places = self._spots[source]
        salts = places.pop(place)
        if not places:
            del self._spots[source]
        self._spots.setdefault(target, {})[place] = salts
        for spot in salts.values():
            spot.node = target
            self.moved(source, target, spot.members)

    def trimmed(self, node: Node, removed: bytes) -> None:
        """What ended in the part that is gone matches less now.

        With it gone, stale marks for it are moot but harmless.
        """
        size = self.cache.block_size
        gone = not node.alive
        target, depth = (node.parent, node.start) if gone else (node, node.end)
        assert target is not None, "a root is never trimmed"
        places = self._spots.get(node)
        if places:
            block = key_slice(removed, 0, size)
            for place in [place for place in places if place[0] > depth]:
                for spot in list(places[place].values()):
                    orders = list(spot.members)
                    self._unlist(spot)
                    self._relocate(spot, target, depth, block)
                    if gone:
                        self.moved(node, target, orders)
        if gone:
            for spot in list(self._parked.get(node, ())):
                spot.parked.remove(node)
                self._parked[node].discard(spot)
                if not spot.parked:
                    self._settle(spot)
                    self.spot_changed(spot)
            self._parked.pop(node, None)
