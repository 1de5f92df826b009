"""From literals to unions of shapes: what subschemas mean together.

Every keyword that combines subschemas is a rule of propositional logic over them; negation is pushed down to the keywords of one type.
A union's members may overlap, which costs nothing: the engine reads all of them at once. Only ``oneOf`` and what
counts which subschemas held (``unevaluatedProperties``) need members told apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import NamedTuple

from radixserve.grammar.schema.assertions import Assertions
from radixserve.grammar.schema.dialect import REFERENCES
from radixserve.grammar.schema.document import Document, Node, Resource
from radixserve.grammar.schema.emptiness import Emptiness, StillOpen
from radixserve.grammar.schema.evaluated import NOTHING_SEEN, Seen, leftover, looked_at, unseen_found
from radixserve.grammar.schema.limits import Budget, too_complex
from radixserve.grammar.schema.merge import merge, tidy
from radixserve.grammar.schema.patterns import Languages, Pattern, PatternSet
from radixserve.grammar.schema.refusal import UNSUPPORTED, Origin, SchemaRefused
from radixserve.grammar.schema.shapes import ANY_SHAPES, Array, Literal, Object, Place, Shape, Union, absent, place
from radixserve.grammar.schema.spelling import Keywords, read_keywords


class Alternative(NamedTuple):
    """A shape, and what of its values subschemas have looked at on the way (None where nobody asks)."""

    shape: Shape
    seen: Seen | None = None


Alternatives = tuple[Alternative, ...]


class Expansion:
    """Reads the places of one document, each once."""

    def __init__(self, document: Document, budget: Budget, *, assert_formats: bool) -> None:
        self.document = document
        self.budget = budget
        self.languages = Languages(budget)
        self.emptiness = Emptiness(self)
        self._assert_formats = assert_formats
        self._shapes: dict[frozenset[Literal], Union] = {}
        self._known: dict[tuple[Literal, bool], Alternatives] = {}
        self._keywords: dict[Node, Keywords] = {}
        # Literals being read, outermost first; those before `_chain_start` are of other places.
        self._open: list[Literal] = []
        self._chain_start = 0
        self._reading: set[frozenset[Literal]] = set()

    def root(self) -> Place:
        """The place of the whole document."""
        return place([Literal(self.document.root, scope=self._entered((), self.document.root))])

    def shapes(self, here: Place) -> Union:
        """What may stand at ``here``; empty only if nothing may. Raises `StillOpen` inside of its own reading."""
        here = self.resolved(here)
        if here.literals is None:
            return ()
        key = frozenset(here.literals)
        if key not in self._shapes:
            if key in self._reading:
                raise StillOpen
            self.budget.spend("places")
            self._reading.add(key)
            outer, self._chain_start = self._chain_start, len(self._open)
            try:
                found: Alternatives = tuple(map(Alternative, ANY_SHAPES))
                for literal in here.literals:
                    found = self._product(found, self._read(literal, track=False))
            finally:
                self._reading.discard(key)
                self._chain_start = outer
            self._shapes[key] = tuple(dict.fromkeys(shape for shape, _ in found))
        return self._shapes[key]

    def resolved(self, here: Place) -> Place:
        """``here`` with subschemas that are mere references replaced by what they refer to, so that places are recognized."""
        if not here.literals:
            return here
        found = [self._resolved(literal) for literal in here.literals]
        return here if all(a is b for a, b in zip(found, here.literals, strict=True)) else place(found)

    def _resolved(self, literal: Literal) -> Literal:
        passed = {literal}
        while isinstance(schema := literal.node.schema, dict) and not REFERENCES.isdisjoint(schema):
            k = self._read_keywords(literal.node)
            if len(k.references) != 1 or list(k.said()) != ["references"]:
                return literal
            target = self._targets(literal.node, k, literal.scope)[0]
            literal = target if literal.positive else ~target
            if literal in passed:
                return literal
            passed.add(literal)
        return literal

    def single(self, patterns: PatternSet, origin: Origin) -> Pattern:
        """One pattern for an expression that may have lookaheads."""
        return self.languages.single(patterns, origin)

    def _read(self, literal: Literal, *, track: bool) -> Alternatives:
        schema = literal.node.schema
        if isinstance(schema, bool) or not schema:
            accepts = (schema is not False) is literal.positive
            return tuple(Alternative(shape, NOTHING_SEEN if track else None) for shape in ANY_SHAPES) if accepts else ()
        key = (literal, track)
        if key not in self._known:
            if literal in self._open[self._chain_start :]:
                raise SchemaRefused(Origin("$ref", literal.node.path), "it refers to itself without end", UNSUPPORTED)
            deep = len(self._open) >= self.budget.limits.chain
            if literal in self._open or (deep and self._chain_start):
                raise StillOpen
            if deep:
                raise too_complex(f"more than {self.budget.limits.chain} subschemas of one place refer to one another")
            self._open.append(literal)
            try:
                found = (self._holds if literal.positive else self._fails)(literal.node, literal.scope, track)
            finally:
                self._open.pop()
            self._known[key] = found
        return self._known[key]

    def _holds(self, node: Node, scope: tuple[Resource, ...], track: bool) -> Alternatives:
        k = self._read_keywords(node)
        demanding = k.unevaluated_items is not None or k.unevaluated_properties is not None
        own = self._assertions(node, k, scope)
        found = self._held(node, scope, k, own, track=track or demanding)
        if demanding:
            found = self._tidied(leftover(alternative, k, own, self.document, node) for alternative in found)
            if not track:
                found = tuple(dict.fromkeys(Alternative(shape) for shape, _ in found))
        return found

    def _held(
        self, node: Node, scope: tuple[Resource, ...], k: Keywords, own: Assertions, *, track: bool
    ) -> Alternatives:
        """All that ``node`` says but for ``unevaluated*``."""
        found: Alternatives = tuple(map(Alternative, ANY_SHAPES))
        for union in own.allowed():
            found = self._product(found, self._plain(union))
        if track:
            found = tuple(Alternative(shape, looked_at(shape, k, own)) for shape, _ in found)
        for target in self._targets(node, k, scope):
            found = self._product(found, self._read(target, track=track))
        for part in k.all_of:
            found = self._product(found, self._read(self._literal(part, scope), track=track))
        if k.has_any_of:
            found = self._product(found, self._any_of([self._literal(part, scope) for part in k.any_of], track=track))
        if k.has_one_of:
            found = self._product(found, self._one_of([self._literal(part, scope) for part in k.one_of], track=track))
        if k.negated is not None:
            found = self._product(found, self._read(~self._literal(k.negated, scope), track=track))
        if k.condition is not None and (track or k.condition[1] or k.condition[2]):
            test, then, otherwise = k.condition
            held = self._read(self._literal(test, scope), track=track)
            failed = self._read(~self._literal(test, scope), track=track)
            if then is not None:
                held = self._product(held, self._read(self._literal(then, scope), track=track))
            if otherwise is not None:
                failed = self._product(failed, self._read(self._literal(otherwise, scope), track=track))
            found = self._product(found, (*held, *failed))
        for name, names in k.dependent_required:
            if names:
                union = (*ANY_SHAPES[:-1], absent(name), Object(required=(name, *names)))
                found = self._product(found, self._plain(union))
        for name, part in k.dependent_schemas:
            present = self._product(
                self._plain((Object(required=(name,)),)), self._read(self._literal(part, scope), track=track)
            )
            found = self._product(found, (*self._plain((*ANY_SHAPES[:-1], absent(name))), *present))
        return found

    def _fails(self, node: Node, scope: tuple[Resource, ...], track: bool) -> Alternatives:
        """What ``node`` does not accept. A subschema that fails has looked at nothing."""
        k = self._read_keywords(node)
        own = self._assertions(node, k, scope)
        found: list[Alternative] = []
        for factors in own.forbidden():
            union = self._plain(factors[0])
            for factor in factors[1:]:
                union = self._product(union, self._plain(factor))
            found += self._tidied(union)
        for target in self._targets(node, k, scope):
            found += self._read(~target, track=False)
        for part in k.all_of:
            found += self._read(~self._literal(part, scope), track=False)
        if k.has_any_of:
            found += self._none_of([self._literal(part, scope) for part in k.any_of])
        if k.has_one_of:
            parts = [self._literal(part, scope) for part in k.one_of]
            found += self._none_of(parts)
            for index, first in enumerate(parts):
                for second in parts[index + 1 :]:
                    found += self._product(self._read(first, track=False), self._read(second, track=False))
        if k.negated is not None:
            found += self._read(self._literal(k.negated, scope), track=False)
        if k.condition is not None:
            test, then, otherwise = k.condition
            for premise, conclusion in ((self._literal(test, scope), then), (~self._literal(test, scope), otherwise)):
                if conclusion is not None:
                    failed = self._read(~self._literal(conclusion, scope), track=False)
                    found += self._product(self._read(premise, track=False), failed)
        for name, part in k.dependent_schemas:
            failed = self._read(~self._literal(part, scope), track=False)
            found += self._product(self._plain((Object(required=(name,)),)), failed)
        if k.unevaluated_items is not None or k.unevaluated_properties is not None:
            for alternative in self._held(node, scope, k, own, track=True):
                found += self._product(
                    self._plain((alternative.shape,)), self._plain(unseen_found(alternative, k, own))
                )
        seen = NOTHING_SEEN if track else None
        self._check(len(found))
        return tuple(dict.fromkeys(Alternative(shape, seen) for shape, _ in found))

    def _any_of(self, parts: Sequence[Literal], *, track: bool) -> Alternatives:
        read = [self._read(part, track=track) for part in parts]
        if not track or sum(any(seen != NOTHING_SEEN for _, seen in part) for part in read) == 0:
            return tuple(dict.fromkeys(alternative for part in read for alternative in part))
        # Which of them hold decides what was looked at, so every combination is a member of its own.
        none: Alternatives = tuple(Alternative(shape, NOTHING_SEEN) for shape in ANY_SHAPES)
        some: Alternatives = ()
        for part, held in zip(parts, read, strict=True):
            failed = self._read(~part, track=True)
            some = (*self._product(some, held), *self._product(some, failed), *self._product(none, held))
            none = self._product(none, failed)
        return tuple(dict.fromkeys(some))

    def _one_of(self, parts: Sequence[Literal], *, track: bool) -> Alternatives:
        found: list[Alternative] = []
        overlaps: dict[int, list[int]] = {index: [] for index in range(len(parts))}
        read = [self._read(part, track=track) for part in parts]
        for first, second in combinations(range(len(parts)), 2):
            both = self._product(read[first], read[second])
            if any(self.emptiness.fillable(shape) for shape, _ in both):
                overlaps[first].append(second)
                overlaps[second].append(first)
        for index, union in enumerate(read):
            for other in overlaps[index]:
                union = self._product(union, self._read(~parts[other], track=track))
            found += union
        self._check(len(found))
        return tuple(dict.fromkeys(found))

    def _none_of(self, parts: Iterable[Literal]) -> Alternatives:
        found: Alternatives = tuple(map(Alternative, ANY_SHAPES))
        for part in parts:
            found = self._product(found, self._read(~part, track=False))
        return found

    def _targets(self, node: Node, k: Keywords, scope: tuple[Resource, ...]) -> list[Literal]:
        targets = []
        for keyword, value, origin in k.references:
            if keyword == "$dynamicRef":
                target = self.document.resolve_dynamic(node, value, origin, scope)
            elif keyword == "$recursiveRef":
                target = self.document.resolve_recursive(node, value, origin, scope)
            else:
                target = self.document.resolve(node, value, origin)
            targets.append(self._literal(target, scope))
        return targets

    def _literal(self, node: Node, scope: tuple[Resource, ...]) -> Literal:
        return Literal(node, scope=self._entered(scope, node))

    def _entered(self, scope: tuple[Resource, ...], node: Node) -> tuple[Resource, ...]:
        if not self.document.dynamic or node.resource in scope:
            return scope
        return (*scope, node.resource)

    def _read_keywords(self, node: Node) -> Keywords:
        if node not in self._keywords:
            k = read_keywords(self.document, node, assert_formats=self._assert_formats)
            for values, origin in k.values:
                if sum(not isinstance(value, str) for value in values) > self.budget.limits.shapes_per_value:
                    raise too_complex("too many values that are no strings", origin)
            self._keywords[node] = k
        return self._keywords[node]

    def _assertions(self, node: Node, k: Keywords, scope: tuple[Resource, ...]) -> Assertions:
        return Assertions(self.document, node, k, scope, self.single)

    def _plain(self, union: Iterable[Shape]) -> Alternatives:
        return tuple(map(Alternative, union))

    def _tidied(self, alternatives: Iterable[Alternative]) -> Alternatives:
        found = []
        for shape, seen in alternatives:
            self.budget.spend("shapes")
            if (kept := tidy(shape, self.languages)) is not None:
                found.append(Alternative(kept, seen))
        return tuple(found)

    def _product(self, left: Alternatives, right: Alternatives) -> Alternatives:
        by_type: dict[type, list[Alternative]] = {}
        for alternative in right:
            by_type.setdefault(type(alternative.shape), []).append(alternative)
        found: dict[Alternative, None] = {}
        for shape, seen in left:
            for other, also in by_type.get(type(shape), ()):
                self.budget.spend("shapes")
                merged = merge(shape, other, self.languages)
                if merged is not None:
                    both = seen.also(also) if seen is not None and also is not None else seen if also is None else also
                    found[
                        Alternative(
                            merged, both if isinstance(merged, (Array, Object)) or both is None else NOTHING_SEEN
                        )
                    ] = None
        self._check(len(found))
        return tuple(found)

    def _check(self, count: int) -> None:
        if count > self.budget.limits.shapes_per_value:
            raise too_complex(f"one place splits into more than {self.budget.limits.shapes_per_value} cases")
