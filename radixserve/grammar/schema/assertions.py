"""Keywords that look at one type: what they allow, and what they forbid.

A keyword says nothing about values of other types, so both are unions over all six.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction

from radixserve.grammar.schema.document import Document, Node, Resource
from radixserve.grammar.schema.json_values import KINDS
from radixserve.grammar.schema.literal_values import values_allowed, values_forbidden
from radixserve.grammar.schema.patterns import Pattern, PatternSet
from radixserve.grammar.schema.refusal import Origin
from radixserve.grammar.schema.shapes import (
    ANY_OF_KIND,
    ANYWHERE,
    NOWHERE,
    Array,
    Count,
    Keys,
    Literal,
    Number,
    Object,
    Place,
    Rule,
    Shape,
    Some,
    Text,
    Union,
    absent,
    place,
)
from radixserve.grammar.schema.spelling import Keywords

# Makes one pattern of an expression that has lookaheads.
SinglePatterns = Callable[[PatternSet, Origin], Pattern]


class Assertions:
    """The one-type keywords of a subschema. ``origin``: where the subschema stands."""

    def __init__(
        self, document: Document, node: Node, keywords: Keywords, scope: tuple[Resource, ...], single: SinglePatterns
    ) -> None:
        self._document = document
        self._node = node
        self._keywords = keywords
        self._scope = scope
        self._single = single

    def allowed(self) -> Iterator[Union]:
        """Unions whose conjunction is what the keywords allow."""
        k = self._keywords
        kinds = self._kinds()
        integer = k.types is not None and "integer" in k.types and "number" not in k.types
        numbers = [Number(multiple=Fraction(1))] if integer else []
        numbers += [Number(low=bound, low_open=is_open, origin=origin) for bound, is_open, origin in k.lows]
        numbers += [Number(high=bound, high_open=is_open, origin=origin) for bound, is_open, origin in k.highs]
        if k.multiple_of is not None:
            numbers.append(Number(multiple=k.multiple_of[0], origin=k.multiple_of[1]))
        by_kind: dict[str, list[Shape]] = {kind: [shape] for kind, shape in ANY_OF_KIND.items()}
        by_kind["number"] = [*numbers] or by_kind["number"]
        by_kind["string"] = [self._text()]
        by_kind["array"] = [self._array()]
        by_kind["object"] = [self._object()]
        # Only numbers have several shapes to be merged; the other types get the wildcard in further rounds.
        for turn in range(max(map(len, by_kind.values()))):
            yield tuple(
                by_kind[kind][turn] if turn < len(by_kind[kind]) else ANY_OF_KIND[kind]
                for kind in KINDS
                if kind in kinds
            )
        for values, origin in k.values:
            yield values_allowed(values, origin, self._document)

    def forbidden(self) -> Iterator[list[Union]]:
        """For each keyword what it forbids, as unions whose conjunction that is."""
        k = self._keywords
        if k.types is not None:
            kinds = self._kinds()
            others: list[Shape] = [shape for kind, shape in ANY_OF_KIND.items() if kind not in kinds]
            if "integer" in k.types and "number" not in k.types:
                others.append(Number(not_multiples=((Fraction(1), self._node.origin("type")),)))
            yield [tuple(others)]
        for values, origin in k.values:
            yield values_forbidden(values, origin, self._document)
        for bound, is_open, origin in k.lows:
            yield [(Number(high=bound, high_open=not is_open, origin=origin),)]
        for bound, is_open, origin in k.highs:
            yield [(Number(low=bound, low_open=not is_open, origin=origin),)]
        if k.multiple_of is not None:
            yield [(Number(not_multiples=(k.multiple_of,)),)]
        yield [tuple(self._not_text())]
        yield [tuple(self._not_array())]
        yield [tuple(self._not_object())]

    def below(self, node: Node, *, positive: bool = True) -> Place:
        """The place where ``node`` holds, or does not."""
        return place([Literal(node, positive, self._scope)])

    def _kinds(self) -> frozenset[str]:
        types = self._keywords.types
        return frozenset(KINDS if types is None else ("number" if name == "integer" else name for name in types))

    def _text(self) -> Text:
        k = self._keywords
        low, high = k.lengths
        patterns = k.pattern.positive if k.pattern else ()
        if k.format is not None:
            patterns = (*patterns, k.format[0])
            high = k.format[1] if high is None else high if k.format[1] is None else min(high, k.format[1])
        return Text(
            None,
            low,
            high,
            patterns,
            k.pattern.negative if k.pattern else (),
            origin=self._bound("minLength", "maxLength", k.lengths),
        )

    def _bound(self, least: str, most: str, bounds: tuple[int, int | None]) -> Origin | None:
        """The keyword that sets the bound that is more likely to be too much."""
        if bounds[1] is not None:
            return self._node.origin(most)
        return self._node.origin(least) if bounds[0] else None

    def _not_text(self) -> Iterator[Shape]:
        k = self._keywords
        low, high = k.lengths
        if low:
            yield Text(high=low - 1, origin=self._node.origin("minLength"))
        if high is not None:
            yield Text(low=high + 1, origin=self._node.origin("maxLength"))
        if k.pattern is not None:
            yield from (Text(not_patterns=(pattern,)) for pattern in k.pattern.positive)
            yield from (Text(patterns=(pattern,)) for pattern in k.pattern.negative)
        if k.format is not None:
            yield Text(not_patterns=(k.format[0],))
            if k.format[1] is not None:
                yield Text(low=k.format[1] + 1)

    def _array(self) -> Array:
        k = self._keywords
        counts: tuple[Count, ...] = ()
        if k.contains is not None:
            node, low, high, origin = k.contains
            counts = (Count(0, self.below(node), low, high, origin),)
        return Array(
            tuple(map(self.below, k.prefix)),
            self.below(k.rest[0]) if k.rest else ANYWHERE,
            k.item_counts[0],
            k.item_counts[1],
            counts,
            k.unique,
            origin=self._bound("minItems", "maxItems", k.item_counts),
        )

    def _not_array(self) -> Iterator[Shape]:
        k = self._keywords
        low, high = k.item_counts
        if low:
            yield Array(high=low - 1, origin=self._node.origin("minItems"))
        if high is not None:
            yield Array(low=high + 1, origin=self._node.origin("maxItems"))
        for index, node in enumerate(k.prefix):
            yield Array((ANYWHERE,) * index + (self.below(node, positive=False),), low=index + 1)
        if k.rest is not None:
            bad = self.below(k.rest[0], positive=False)
            yield Array(counts=(Count(len(k.prefix), bad, 1, None, k.rest[1]),))
        if k.contains is not None:
            node, least, most, origin = k.contains
            if least:
                yield Array(counts=(Count(0, self.below(node), 0, least - 1, origin),))
            if most is not None:
                yield Array(counts=(Count(0, self.below(node), most + 1, None, origin),))
        if k.unique is not None:
            yield Array(not_unique=k.unique)

    def _object(self) -> Object:
        k = self._keywords
        rules = [Rule(Keys(name), self.below(node)) for name, node in k.properties]
        rules += [Rule(Keys(pattern=pattern), self.below(node)) for pattern, node, _ in self._patterned()]
        if k.additional is not None:
            rules.append(Rule(self.others(), self.below(k.additional[0])))
        low, high = k.property_counts
        return Object(
            tuple(rules),
            k.required,
            low,
            high,
            (self.below(k.property_names[0]),) if k.property_names else (),
            origin=self._node.origin("minProperties" if low else "maxProperties") if low or high is not None else None,
        )

    def _not_object(self) -> Iterator[Shape]:
        k = self._keywords
        low, high = k.property_counts
        if low:
            yield Object(high=low - 1, origin=self._node.origin("minProperties"))
        if high is not None:
            yield Object(low=high + 1, origin=self._node.origin("maxProperties"))
        yield from map(absent, k.required)
        for name, names in k.dependent_required:
            for other in names:
                yield Object((Rule(Keys(other), NOWHERE),), (name,))
        for name, node in k.properties:
            yield Object((Rule(Keys(name), self.below(node, positive=False)),), (name,))
        for pattern, node, origin in self._patterned():
            yield Object(some=(Some(Keys(pattern=pattern), self.below(node, positive=False), origin),))
        if k.additional is not None:
            bad = self.below(k.additional[0], positive=False)
            yield Object(some=(Some(self.others(), bad, k.additional[1]),))
        if k.property_names is not None:
            node, origin = k.property_names
            yield Object(some=(Some(Keys(unlike=self.below(node)), ANYWHERE, origin),))

    def others(self) -> Keys:
        """The property names that neither ``properties`` nor ``patternProperties`` is about."""
        k = self._keywords
        return Keys(
            names=frozenset(name for name, _ in k.properties),
            patterns=tuple(pattern for pattern, _, _ in self._patterned()),
        )

    def _patterned(self) -> Iterator[tuple[Pattern, Node, Origin]]:
        for patterns, node, origin in self._keywords.pattern_properties:
            yield self._single(patterns, origin), node, origin
