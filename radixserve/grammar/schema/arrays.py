"""Arrays in the engine's spelling, which has fixed first items, one schema for the rest, and bounds on the length.

``contains`` is split by the positions at which it is satisfied, ``uniqueItems`` by the orders in which few values can stand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations
from math import comb

from radixserve.grammar.schema.domains import Domains
from radixserve.grammar.schema.emptiness import Emptiness
from radixserve.grammar.schema.json_values import identity
from radixserve.grammar.schema.limits import Limits
from radixserve.grammar.schema.merge import item_place, tidy_array
from radixserve.grammar.schema.refusal import Origin, SchemaRefused
from radixserve.grammar.schema.shapes import ANYWHERE, NOWHERE, Array, Count, Literal, Place, place

JsonSchema = dict[str, object]
_UNBOUNDED = "an array of any length has too many places for it"


class Arrays:
    """Writes the arrays of one schema. ``child`` writes a place: a schema, or False where nothing may be."""

    def __init__(
        self, emptiness: Emptiness, domains: Domains, limits: Limits, child: Callable[[Place], object]
    ) -> None:
        self._emptiness = emptiness
        self._domains = domains
        self._limits = limits
        self._child = child

    def write(self, shape: Array) -> Iterator[JsonSchema]:
        """Schemas that together accept the arrays of ``shape``."""
        for counted in self._without_counts(shape):
            for plain in self._without_unique(counted):
                yield self._plain(plain)

    def _plain(self, shape: Array) -> JsonSchema:
        schema: JsonSchema = {"type": "array"}
        for keyword, bound in (("minItems", shape.low), ("maxItems", shape.high)):
            if bound is not None and bound > self._limits.items:
                raise SchemaRefused(
                    shape.origin or Origin(keyword, "#"), f"lengths over {self._limits.items} are not enforced"
                )
        if shape.prefix:
            schema["prefixItems"] = [self._child(item) for item in shape.prefix]
        if shape.high is not None and shape.high <= len(shape.prefix):
            schema["items"] = False
        elif shape.rest != ANYWHERE:
            schema["items"] = self._child(shape.rest)
        if shape.low:
            schema["minItems"] = shape.low
        if shape.high is not None:
            schema["maxItems"] = shape.high
        return schema

    def _trimmed(self, shape: Array) -> Array | None:
        """``shape`` cut where nothing can stand."""
        prefix = tuple(NOWHERE if self._emptiness.empty(item) else item for item in shape.prefix)
        rest = NOWHERE if self._emptiness.empty(shape.rest) else shape.rest
        return tidy_array(replace(shape, prefix=prefix, rest=rest))

    def _without_counts(self, shape: Array) -> Iterator[Array]:
        trimmed = self._trimmed(shape)
        if trimmed is None:
            return
        if not trimmed.counts:
            yield trimmed
            return
        count, rest = trimmed.counts[0], replace(trimmed, counts=trimmed.counts[1:])
        for variant in self._counted(rest, count):
            yield from self._without_counts(variant)

    def _counted(self, shape: Array, count: Count) -> Iterator[Array]:
        start, low, high = count.start, count.low, count.high
        if high is not None and low > high:
            return
        if low == 0 and high is None:
            yield shape
            return
        if count.place == ANYWHERE:
            yield replace(
                shape,
                low=max(shape.low, start + low) if low else shape.low,
                high=_least(shape.high, start + high if high is not None else None),
            )
            return
        length = len(shape.prefix) if shape.high is None else shape.high
        length = max(length, start)
        opposite = self._opposite(count)
        if shape.high is None:
            if self._emptiness.empty(shape.rest & opposite) and length == start:
                yield replace(
                    shape,
                    low=max(shape.low, start + low) if low else shape.low,
                    high=start + high if high is not None else None,
                )
                return
            if high == 0:
                prefix = tuple(
                    item_place(shape, i) & opposite if i >= start else item_place(shape, i) for i in range(length)
                )
                yield replace(shape, prefix=prefix, rest=shape.rest & opposite)
                return
            if not self._emptiness.empty(shape.rest & count.place):
                raise SchemaRefused(count.origin, _UNBOUNDED)
        matches = {i: item_place(shape, i) & count.place for i in range(start, length)}
        usable = [i for i, item in matches.items() if not self._emptiness.empty(item)]
        cases = comb(len(usable), low) if high is None else sum(comb(len(usable), n) for n in range(low, high + 1))
        if cases > self._limits.alternatives or cases * length > self._limits.items * 4:
            raise SchemaRefused(count.origin, f"it splits into more than {self._limits.alternatives} cases")
        sizes = [low] if high is None else range(low, min(high, len(usable)) + 1)
        for size in sizes:
            for chosen in combinations(usable, size):
                # Without an upper bound these are the first that match, and after the last of them all is free.
                end = length if high is not None else max(chosen, default=-1) + 1
                items = [item_place(shape, i) for i in range(length)]
                for i in range(start, end):
                    items[i] = matches[i] if i in chosen else items[i] & opposite
                yield replace(shape, prefix=tuple(items), low=max(shape.low, max(chosen, default=-1) + 1))

    def _opposite(self, count: Count) -> Place:
        literals = count.place.literals
        if literals is None:
            return ANYWHERE
        if len(literals) != 1:
            raise SchemaRefused(count.origin, "it is combined with other keywords in a way that cannot be enforced")
        return place([~literals[0]])

    def _without_unique(self, shape: Array) -> Iterator[Array]:
        if shape.not_unique is not None:
            raise SchemaRefused(shape.not_unique, "that items are not unique cannot be enforced")
        if shape.unique is None or (shape.high is not None and shape.high < 2):
            yield replace(shape, unique=None)
            return
        if shape.high is not None and shape.high <= self._limits.alternatives and self._apart(shape, shape.high):
            yield replace(shape, unique=None)
            return
        yield from self._orders(shape, shape.unique)

    def _apart(self, shape: Array, length: int) -> bool:
        """Whether the items at any two positions are different in any case."""
        places = [item_place(shape, i) for i in range(length)]
        if length > 24 or len(set(places)) < length:
            return False
        return all(self._emptiness.empty(a & b) for a, b in combinations(places, 2))

    def _orders(self, shape: Array, origin: Origin) -> Iterator[Array]:
        """All arrays of different values, by the longest ones: an array may end early."""
        domains = [self._domains.values(item) for item in (*shape.prefix, shape.rest)]
        if shape.high is not None and shape.high <= len(shape.prefix):
            domains.pop()
        if any(domain is None for domain in domains):
            raise SchemaRefused(origin, "it is enforced only where the items have few possible values")
        literals: list[dict[object, Literal]] = [
            {identity(value): self._domains.literal(value, origin) for value in domain}
            for domain in domains
            if domain is not None
        ]
        high = shape.high if shape.high is not None else len(shape.prefix) + len(literals[-1])
        found: list[tuple[Literal, ...]] = []
        waiting: list[tuple[object, ...]] = [()]
        while waiting:
            used = waiting.pop()
            options = literals[min(len(used), len(literals) - 1)] if len(used) < high else {}
            longer = [(*used, key) for key in options if key not in used]
            if longer:
                waiting += reversed(longer)
            elif len(used) >= shape.low:
                found.append(tuple(literals[min(i, len(literals) - 1)][key] for i, key in enumerate(used)))
            if len(found) + len(waiting) > self._limits.alternatives:
                raise SchemaRefused(origin, f"it splits into more than {self._limits.alternatives} orders")
        for sequence in found:
            yield Array(tuple(place([literal]) for literal in sequence), NOWHERE, shape.low, len(sequence))


def _least(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else min(a, b)
