r"""Objects in the engine's spelling: named properties in a fixed order, then others whose names match disjoint patterns.

What the engine does with the names decides the spelling. Properties under ``additionalProperties`` may be spelled with needless
escapes (``"\u0061"`` for ``"a"``), and so pass for others than they are; those under ``patternProperties`` may not. So others
always go there. A named property must satisfy the schema of every pattern that its name matches, too. The engine does not
keep the names of others apart: two of them may be the same, which is one property to whoever reads the document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from radixserve.grammar.schema.emptiness import Emptiness
from radixserve.grammar.schema.expansion import Expansion
from radixserve.grammar.schema.layout import EVERY_NAME, Layout, implies
from radixserve.grammar.schema.limits import ROOT
from radixserve.grammar.schema.presence import Presence, presences
from radixserve.grammar.schema.refusal import Origin, SchemaRefused
from radixserve.grammar.schema.shapes import ANYWHERE, Keys, Object, Place, Rule, Some

JsonSchema = dict[str, object]


class Objects:
    """Writes the objects of one schema. ``child`` writes a place: a schema, or False where nothing may be."""

    def __init__(self, expansion: Expansion, child: Callable[[Place], object]) -> None:
        self._expansion = expansion
        self._languages = expansion.languages
        self._emptiness: Emptiness = expansion.emptiness
        self._limits = expansion.budget.limits
        self._child = child

    def write(self, shape: Object) -> Iterator[JsonSchema]:
        """Schemas that together accept the objects of ``shape``."""
        layout = Layout(shape, self._expansion)
        if shape.some:
            yield from self._with_some(replace(shape, some=shape.some[1:]), shape.some[0], layout)
            return
        yield from self._laid_out(shape, layout, others=0)

    def _with_some(self, shape: Object, some: Some, layout: Layout) -> Iterator[JsonSchema]:
        """One case for each property that may be the one that is asked for."""
        for name in layout.names:
            item = layout.places[name] & some.place
            if layout.covers(some.keys, name) and not self._emptiness.empty(item):
                rule = Rule(Keys(name), item)
                required = tuple(dict.fromkeys((*shape.required, name)))
                yield from self.write(replace(shape, rules=_put(shape, rule), required=required))
        inside = [group for group in layout.groups if some.keys in group.covered]
        if not inside:
            return
        implied = all(implies(group.place, some.place) for group in inside)
        if len(inside) < len(layout.groups) or not implied or shape.some:
            raise SchemaRefused(some.origin, "that some property of unknown name violates it cannot be enforced")
        yield from self._laid_out(shape, layout, others=1, origin=some.origin)

    def _laid_out(
        self, shape: Object, layout: Layout, *, others: int, origin: Origin | None = None
    ) -> Iterator[JsonSchema]:
        required, usable = frozenset(shape.required), frozenset(layout.usable)
        if not required <= usable:
            return
        optional = [name for name in layout.usable if name not in required]
        high = None if shape.high is None else shape.high - len(shape.required)
        low = max(shape.low - len(shape.required), 0)
        where = origin or shape.origin or ROOT
        for presence in presences(optional, low, high, others, bool(layout.groups), self._limits.alternatives, where):
            yield self._plain(shape, layout, presence)

    def _plain(self, shape: Object, layout: Layout, presence: Presence) -> JsonSchema:
        always, usable = frozenset(shape.required) | presence.required, frozenset(layout.usable)
        required = [name for name in layout.usable if name in always]
        properties: dict[str, object] = {}
        for name in layout.names:
            if name in usable and name not in presence.absent:
                properties[name] = self._child(layout.places[name])
            elif layout.groups:
                properties[name] = False
        schema: JsonSchema = {"type": "object"}
        if properties:
            schema["properties"] = properties
        if required:
            schema["required"] = required
        groups = layout.groups if presence.others_high is None or presence.others_high > 0 else ()
        if not properties and len(groups) == 1 and groups[0].text == EVERY_NAME:
            if groups[0].place != ANYWHERE:
                schema["additionalProperties"] = self._child(groups[0].place)
        else:
            if groups:
                schema["patternProperties"] = {group.text: self._child(group.place) for group in groups}
            schema["additionalProperties"] = False
        if groups and presence.others_low:
            schema["minProperties"] = len(required) + presence.others_low
        if groups and presence.others_high is not None:
            schema["maxProperties"] = len(required) + presence.others_high
        return schema


def _put(shape: Object, rule: Rule) -> tuple[Rule, ...]:
    """The rules of ``shape`` with ``rule`` in the place of the one for the same keys."""
    rules = tuple(rule if mine.keys == rule.keys else mine for mine in shape.rules)
    return rules if rule in rules else (*rules, rule)
