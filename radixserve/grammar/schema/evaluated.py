"""What subschemas have looked at, and what is left for ``unevaluatedProperties`` and ``unevaluatedItems``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from radixserve.grammar.schema.dialect import Draft
from radixserve.grammar.schema.document import Document, Node
from radixserve.grammar.schema.merge import item_place
from radixserve.grammar.schema.patterns import Pattern
from radixserve.grammar.schema.refusal import UNSUPPORTED, SchemaRefused
from radixserve.grammar.schema.shapes import Array, Count, Keys, Object, Place, Rule, Shape, Some
from radixserve.grammar.schema.spelling import Keywords

if TYPE_CHECKING:
    from radixserve.grammar.schema.assertions import Assertions
    from radixserve.grammar.schema.expansion import Alternative


@dataclass(frozen=True, slots=True)
class Seen:
    """Properties with ``names`` or matching ``patterns`` (or all); the first ``items`` items (None: all), and those that satisfy one of
    ``contained``.
    """

    names: frozenset[str] = frozenset()
    patterns: tuple[Pattern, ...] = ()
    all_properties: bool = False
    items: int | None = 0
    contained: tuple[Node, ...] = ()

    def also(self, other: Seen) -> Seen:
        """What either has looked at."""
        return Seen(
            self.names | other.names,
            tuple(dict.fromkeys((*self.patterns, *other.patterns))),
            self.all_properties or other.all_properties,
            None if self.items is None or other.items is None else max(self.items, other.items),
            tuple(dict.fromkeys((*self.contained, *other.contained))),
        )


NOTHING_SEEN = Seen()


def looked_at(shape: Shape, k: Keywords, own: Assertions) -> Seen:
    """What the keywords of one subschema look at in values of ``shape``."""
    if isinstance(shape, Object):
        keys = own.others()
        return Seen(keys.names, keys.patterns, k.additional is not None)
    if isinstance(shape, Array):
        # Since 2020-12 the items that `contains` finds count, too.
        contained = (
            (k.contains[0],) if k.contains is not None and k.contains[0].resource.draft >= Draft.DRAFT_2020 else ()
        )
        return Seen(items=None if k.rest is not None else len(k.prefix), contained=contained)
    return NOTHING_SEEN


def leftover(alternative: Alternative, k: Keywords, own: Assertions, document: Document, node: Node) -> Alternative:
    """``alternative``, with ``unevaluated*`` applied to what was not looked at."""
    shape, seen = alternative
    assert seen is not None
    if isinstance(shape, Object) and k.unevaluated_properties is not None:
        if not seen.all_properties:
            rule = Rule(Keys(names=seen.names, patterns=seen.patterns), own.below(k.unevaluated_properties[0]))
            shape = _with_rule(shape, rule)
        return type(alternative)(shape, seen.also(Seen(all_properties=True)))
    if isinstance(shape, Array) and k.unevaluated_items is not None:
        if seen.items is not None:
            rest = k.unevaluated_items[0]
            if seen.contained:
                if document.dynamic:
                    raise SchemaRefused(k.unevaluated_items[1], "beside contains and dynamic references", UNSUPPORTED)
                rest = document.either([rest, *seen.contained], k.unevaluated_items[1].path)
            shape = _with_rest(shape, seen.items, own.below(rest))
        return type(alternative)(shape, seen.also(Seen(items=None)))
    return alternative


def unseen_found(alternative: Alternative, k: Keywords, own: Assertions) -> Iterator[Shape]:
    """The shapes in which something that was not looked at violates ``unevaluated*``."""
    shape, seen = alternative
    assert seen is not None
    if isinstance(shape, Object) and k.unevaluated_properties is not None and not seen.all_properties:
        node, origin = k.unevaluated_properties
        yield Object(
            some=(Some(Keys(names=seen.names, patterns=seen.patterns), own.below(node, positive=False), origin),)
        )
    if isinstance(shape, Array) and k.unevaluated_items is not None and seen.items is not None:
        node, origin = k.unevaluated_items
        bad = own.below(node, positive=False)
        for contained in seen.contained:
            bad = bad & own.below(contained, positive=False)
        yield Array(counts=(Count(seen.items, bad, 1, None, origin),))


def _with_rule(shape: Object, rule: Rule) -> Object:
    rules = {mine.keys: mine for mine in shape.rules}
    mine = rules.get(rule.keys)
    rules[rule.keys] = rule if mine is None else Rule(rule.keys, mine.place & rule.place)
    return Object(tuple(rules.values()), shape.required, shape.low, shape.high, shape.names, shape.some, shape.origin)


def _with_rest(shape: Array, start: int, rest: Place) -> Array:
    length = max(start, len(shape.prefix))
    prefix = tuple(
        item_place(shape, index) & rest if index >= start else item_place(shape, index) for index in range(length)
    )
    return Array(prefix, shape.rest & rest, shape.low, shape.high, shape.counts, shape.unique, shape.not_unique)
