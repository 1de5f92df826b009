"""Which places no value can fill.

"Empty" is always proved; what is not proved is taken for possible. Values are finite, so a place is possible only if some shape of it
can be filled from the inside out: the least fixed point over the places that a shape cannot do without.
"""

from __future__ import annotations

from typing import Protocol

from radixserve.grammar.schema.keys import covers
from radixserve.grammar.schema.merge import Properties, item_place
from radixserve.grammar.schema.patterns import Languages, Pattern, exactly, length_pattern
from radixserve.grammar.schema.refusal import Origin
from radixserve.grammar.schema.shapes import ANYWHERE, NOWHERE, Array, Keys, Object, Place, Shape, Text, Union

_LONG = 64
_SOMEWHERE = Origin("pattern", "#")


class Reader(Protocol):
    """What knows the shapes of places."""

    languages: Languages

    def shapes(self, here: Place) -> Union:
        """The union at ``here``; raises `StillOpen`."""


class StillOpen(Exception):
    """What is asked about is being read at this moment, so nothing can be said yet."""


class Emptiness:
    """Remembers what it has decided."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._empty: dict[Place, bool] = {}
        self._texts: dict[Text, bool] = {}

    def empty(self, start: Place) -> bool:
        """Whether no value can be at ``start``."""
        if start not in self._empty:
            self._decide(start)
        return self._empty.get(start, False)

    def fillable(self, shape: Shape) -> bool:
        """Whether ``shape`` has a value, as far as is known."""
        needs = self._needs(shape)
        return needs is not None and not any(map(self.empty, needs))

    def _decide(self, start: Place) -> None:
        """Settle ``start`` and everything it depends on."""
        options: dict[Place, list[list[Place]]] = {}
        open_places: set[Place] = set()
        waiting = [start]
        while waiting:
            here = waiting.pop()
            if here in options or here in open_places or here in self._empty:
                continue
            if here in (ANYWHERE, NOWHERE):
                self._empty[here] = here == NOWHERE
                continue
            try:
                shapes = self._reader.shapes(here)
            except StillOpen:
                open_places.add(here)
                continue
            needs = [self._needs(shape) for shape in shapes]
            options[here] = [need for need in needs if need is not None]
            waiting += [need for option in options[here] for need in option]
        possible = self._fillable_from(options, open_places)
        for here in options:
            # While something is still being read, "possible" is only a guess that must not be remembered.
            if here not in possible or not open_places:
                self._empty[here] = here not in possible

    def _fillable_from(self, options: dict[Place, list[list[Place]]], known: set[Place]) -> set[Place]:
        """The least fixed point: ``known`` and all places with an option that needs only such places."""
        possible = set(known)
        blocked: dict[Place, list[Place]] = {}
        waiting = list(options)
        while waiting:
            here = waiting.pop()
            if here in possible:
                continue
            for choice in options[here]:
                lacking = next((x for x in choice if x not in possible and self._empty.get(x) is not False), None)
                if lacking is None:
                    possible.add(here)
                    waiting += blocked.pop(here, [])
                    break
                blocked.setdefault(lacking, []).append(here)
        return possible

    def _needs(self, shape: Shape) -> list[Place] | None:
        """The places that must be filled for ``shape`` to have a value; None if it has none."""
        if isinstance(shape, Text):
            return [] if self._text_possible(shape) else None
        if isinstance(shape, Array):
            needs = [item_place(shape, index) for index in range(min(shape.low, len(shape.prefix) + 1))]
            needs += [count.place for count in shape.counts if count.low > 0]
            reversed_counts = any(count.high is not None and count.high < count.low for count in shape.counts)
            return None if NOWHERE in needs or reversed_counts else needs
        if isinstance(shape, Object):
            return self._object_needs(shape)
        return []

    def _object_needs(self, shape: Object) -> list[Place] | None:
        languages = self._reader.languages
        properties = Properties(shape, languages)
        needs = [properties.place(name) for name in shape.required]
        if NOWHERE in needs:
            return None
        closed = next((rule.keys.names for rule in shape.rules if _closes(rule.keys) and rule.place == NOWHERE), None)
        if closed is not None:
            usable = {name: item for name in closed if (item := properties.place(name)) != NOWHERE}
            if len(usable) < shape.low or any(name not in usable for name in shape.required):
                return None
            for some in shape.some:
                if some.keys.unlike is None and not any(
                    covers(some.keys, name, languages) and item & some.place != NOWHERE for name, item in usable.items()
                ):
                    return None
        return needs

    def _text_possible(self, text: Text) -> bool:
        if text.values is not None:
            return True
        if text not in self._texts:
            short = text.low <= _LONG and (text.high is None or text.high <= _LONG)
            positive: list[Pattern] = list(text.patterns)
            if short and (text.low or text.high is not None):
                positive.append(length_pattern(text.low, text.high, _SOMEWHERE))
            negative = [*text.not_patterns, *(exactly(value, _SOMEWHERE) for value in text.excluded[:_LONG])]
            finite = bool(text.patterns) or text.high is not None
            self._texts[text] = not (finite or text.not_patterns) or self._reader.languages.possible(positive, negative)
        return self._texts[text]


def _closes(keys: Keys) -> bool:
    return keys.name is None and keys.pattern is None and keys.unlike is None and not keys.patterns
