"""Places that only few values can fill."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from radixserve.grammar.schema.document import Document
from radixserve.grammar.schema.emptiness import Emptiness, Reader
from radixserve.grammar.schema.json_values import identity, plain
from radixserve.grammar.schema.merge import Properties, item_place
from radixserve.grammar.schema.refusal import Origin
from radixserve.grammar.schema.shapes import (
    NOWHERE,
    Array,
    Boolean,
    Keys,
    Literal,
    Null,
    Number,
    Object,
    Place,
    Shape,
    Text,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

_FEW = 64
_DEEP = 8


class Domains:
    """Lists the values of places, where they are few."""

    def __init__(self, reader: Reader, emptiness: Emptiness, document: Document) -> None:
        self._reader = reader
        self._emptiness = emptiness
        self._document = document
        self._literals: dict[object, Literal] = {}

    def literal(self, value: object, origin: Origin) -> Literal:
        """What only ``value`` satisfies."""
        key = identity(value)
        if key not in self._literals:
            node = self._document.constant(value, f"{origin.path}/value{len(self._literals)}")
            self._literals[key] = Literal(node)
        return self._literals[key]

    def values(self, here: Place, depth: int = 0) -> list[object] | None:
        """All values of ``here``, or None if they are many, or not known to be few."""
        if depth > _DEEP:
            return None
        found: dict[object, object] = {}
        for shape in self._reader.shapes(here):
            values = self._of(shape, depth)
            if values is None:
                return None
            found.update((identity(value), value) for value in values)
            if len(found) > _FEW:
                return None
        return list(found.values())

    def _of(self, shape: Shape, depth: int) -> Iterable[object] | None:
        if isinstance(shape, Null):
            return [None]
        if isinstance(shape, Boolean):
            return [False, True] if shape.value is None else [shape.value]
        if isinstance(shape, Number):
            return self._numbers(shape)
        if isinstance(shape, Text):
            return shape.values if shape.values is not None else [""] if shape.high == 0 else None
        if isinstance(shape, Array):
            if shape.high is None or shape.high > _DEEP or shape.counts or shape.unique or shape.not_unique:
                return None
            items = [self.values(item_place(shape, index), depth + 1) for index in range(shape.high)]
            lists: list[object] = []
            for length in range(shape.low, shape.high + 1):
                combined = self._product(items[:length])
                if combined is None:
                    return None
                lists += map(list, combined)
            return lists
        return self._objects(shape, depth)

    def _objects(self, shape: Object, depth: int) -> list[object] | None:
        closed = [
            rule.keys for rule in shape.rules if rule.place == NOWHERE and rule.keys == Keys(names=rule.keys.names)
        ]
        if shape.some or shape.names or not closed:
            return None
        if shape.low > len(shape.required) or (shape.high is not None and shape.high < len(closed[0].names)):
            return None
        properties = Properties(shape, self._reader.languages)
        places = {name: properties.place(name) for name in sorted(closed[0].names)}
        places = {name: item for name, item in places.items() if not self._emptiness.empty(item)}
        if set(places) != set(shape.required):
            return None
        combined = self._product([self.values(item, depth + 1) for item in places.values()])
        return None if combined is None else [dict(zip(places, values, strict=True)) for values in combined]

    def _numbers(self, shape: Number) -> list[object] | None:
        low, high, step = shape.low, shape.high, shape.multiple
        if low is None or high is None:
            return None
        if low == high:
            return [plain(low)]
        if step is None or (high - low) / step >= _FEW:
            return None
        values = [low + index * step for index in range(int((high - low) / step) + 1)]
        return [plain(x) for x in values if all((x / divisor).denominator != 1 for divisor, _ in shape.not_multiples)]

    def _product(self, parts: list[list[object] | None]) -> list[tuple[object, ...]] | None:
        size = 1
        known = []
        for part in parts:
            if part is None:
                return None
            known.append(part)
            size *= len(part)
            if size > _FEW:
                return None
        return list(product(*known))
