"""Which property names an object treats one by one, and how all other names fall into groups with the same place.

Names are grouped by the combination of patterns that they match, so groups are disjoint, as the engine wants them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from radixserve.grammar.schema.dialect import CONSTRAINING
from radixserve.grammar.schema.expansion import Expansion
from radixserve.grammar.schema.keys import covers
from radixserve.grammar.schema.limits import ROOT
from radixserve.grammar.schema.merge import Properties, admits
from radixserve.grammar.schema.patterns import Pattern, exactly, fits_trie, length_pattern, none_of, source
from radixserve.grammar.schema.refusal import Origin
from radixserve.grammar.schema.shapes import ANYWHERE, NOWHERE, Keys, Object, Place, Text

EVERY_NAME = "^"


@dataclass(frozen=True, slots=True)
class Group:
    """Other properties with the same place: their names match ``text``. ``covered``: the sets of names they all belong to."""

    place: Place
    text: str
    covered: frozenset[Keys]


@dataclass(frozen=True, slots=True)
class _Condition:
    """Names that match all of ``positive`` and none of ``negative``."""

    positive: tuple[Pattern, ...]
    negative: tuple[Pattern, ...] = ()

    def holds(self, matched: Iterable[Pattern]) -> bool:
        """Whether names that match exactly ``matched`` are meant."""
        return set(self.positive) <= set(matched) and not set(self.negative) & set(matched)


class Layout:
    """The properties of a shape: ``names`` in order with their ``places``, those that are ``usable``, and ``groups`` of others."""

    def __init__(self, shape: Object, expansion: Expansion) -> None:
        self._languages = expansion.languages
        self._expansion = expansion
        empty = expansion.emptiness.empty
        # What `propertyNames` allow (None: everything), and the names that violate one.
        self._allowed = self._allowed_names(shape)
        self._unlike = {
            some.keys: self._violating(some.keys.unlike) for some in shape.some if some.keys.unlike is not None
        }
        self._properties = Properties(shape, self._languages)
        self.names = self._explicit(shape)
        self.places = {name: self._place(name) for name in self.names}
        self.usable = [name for name in self.names if not empty(self.places[name])]
        self.groups = tuple(group for group in self._grouped(shape) if not empty(group.place))

    def covers(self, keys: Keys, name: str) -> bool:
        """Whether ``name`` is one of ``keys``."""
        if keys.unlike is None:
            return covers(keys, name, self._languages)
        return any(admits(text, name, self._languages) for text in self._unlike[keys])

    def _strings(self, here: Place) -> list[Text]:
        return [shape for shape in self._expansion.shapes(here) if isinstance(shape, Text)]

    def _violating(self, here: Place) -> list[Text]:
        # A place under `propertyNames` is of one subschema.
        if here.literals is None:
            return [Text()]
        return [text for literal in here.literals for text in self._strings(Place((~literal,)))]

    def _allowed_names(self, shape: Object) -> list[Text] | None:
        here = ANYWHERE
        for item in shape.names:
            here = here & item
        texts = self._strings(here)
        return None if Text() in texts else texts

    def _explicit(self, shape: Object) -> list[str]:
        names = [rule.keys.name for rule in shape.rules if rule.keys.name is not None]
        names += shape.required
        for keys in (*(rule.keys for rule in shape.rules), *(some.keys for some in shape.some)):
            names += [*sorted(keys.names), *([keys.name] if keys.name is not None else [])]
        for text in (*(self._allowed or ()), *(text for texts in self._unlike.values() for text in texts)):
            names += [*(text.values or ()), *text.excluded]
        return list(dict.fromkeys(names))

    def _place(self, name: str) -> Place:
        if self._allowed is not None and not any(admits(text, name, self._languages) for text in self._allowed):
            return NOWHERE
        return self._properties.place(name)

    def _grouped(self, shape: Object) -> Iterator[Group]:
        allowed = [_Condition(())] if self._allowed is None else _conditions(self._allowed)
        keys: dict[Keys, list[_Condition]] = {}
        for item in (*(rule.keys for rule in shape.rules), *(some.keys for some in shape.some)):
            if item.unlike is not None:
                keys[item] = _conditions(self._unlike[item])
            elif item.name is None:
                keys[item] = [_Condition((item.pattern,) if item.pattern else (), item.patterns)]
        conditions = [condition for those in (allowed, *keys.values()) for condition in those]
        atoms = list(dict.fromkeys(p for condition in conditions for p in (*condition.positive, *condition.negative)))
        signatures = set(self._languages.joint(atoms).labels) if atoms else {frozenset()}
        groups: dict[tuple[Place, frozenset[Keys]], set[frozenset[int]]] = {}
        for labels in sorted(signatures, key=sorted):
            matched = [atoms[label] for label in labels]
            if any(condition.holds(matched) for condition in allowed):
                covered = frozenset(item for item, those in keys.items() if any(one.holds(matched) for one in those))
                place = ANYWHERE
                for rule in shape.rules:
                    place = place & rule.place if rule.keys in covered else place
                groups.setdefault((place, covered), set()).add(labels)
        for (place, covered), members in groups.items():
            text = self._text(atoms, members, signatures, place) if place != NOWHERE else None
            if text is not None:
                yield Group(place, text, covered)

    def _text(
        self, atoms: list[Pattern], members: set[frozenset[int]], signatures: set[frozenset[int]], place: Place
    ) -> str | None:
        """A pattern for the names of a group; None if it has no names besides the explicit ones."""
        apart = [name for name in self.names if self._labels(atoms, name) in members and self._clashes(name, place)]
        if not apart:
            if members == signatures:
                return EVERY_NAME
            for label, pattern in enumerate(atoms):
                if members == {labels for labels in signatures if label in labels}:
                    return source(pattern)
        origin = atoms[0].origin if atoms else origin_of(place)
        if not atoms and fits_trie(apart):
            return none_of(apart)
        patterns = [*atoms, *(exactly(name, origin) for name in apart)]
        if not any(labels in members for labels in self._languages.joint(patterns).labels):
            return None
        return self._languages.rewritten(patterns, lambda labels: labels in members, origin)

    def _clashes(self, name: str, group: Place) -> bool:
        """Whether the engine would treat the explicit ``name`` wrongly, were it left in the pattern of ``group``: it applies the group to
        it, too (and fails where both are recursive), and it spells some characters of names in one way only.
        """
        odd = any(char < " " or char == "\x7f" for char in name)
        return odd or (group != ANYWHERE and self.places[name] != NOWHERE)

    def _labels(self, atoms: list[Pattern], name: str) -> frozenset[int]:
        return frozenset(label for label, pattern in enumerate(atoms) if self._languages.matches(pattern, name))


def _conditions(texts: Iterable[Text]) -> list[_Condition]:
    """``texts`` as conditions on names that are not explicit; finite sets of names are."""
    found = []
    for text in texts:
        if text.values is None:
            bounded = text.low or text.high is not None
            length = [length_pattern(text.low, text.high, text.origin or ROOT)] if bounded else []
            found.append(_Condition((*text.patterns, *length), text.not_patterns))
    return found


def implies(stronger: Place, weaker: Place) -> bool:
    """Whether every value of ``stronger`` is one of ``weaker``, as far as their literals tell."""
    if stronger.literals is None or weaker.literals is None:
        return stronger.literals is None
    return set(weaker.literals) <= set(stronger.literals)


def origin_of(here: Place) -> Origin:
    """Where the first subschema of ``here`` stands."""
    if not here.literals:
        return ROOT
    path = here.literals[0].node.path
    return Origin(next((token for token in reversed(path.split("/")) if token in CONSTRAINING), "schema"), path)
