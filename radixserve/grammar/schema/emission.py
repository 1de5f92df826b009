"""The rewritten schema: places written out in the keywords, and the combinations of them, that the engine enforces exactly.

A place that occurs once is written where it occurs; one that occurs again, or inside itself, becomes a definition.
"""

from __future__ import annotations

from radixserve.grammar.schema.arrays import Arrays
from radixserve.grammar.schema.domains import Domains
from radixserve.grammar.schema.expansion import Expansion
from radixserve.grammar.schema.linking import JsonSchema, Key, Link, Linker
from radixserve.grammar.schema.objects import Objects
from radixserve.grammar.schema.refusal import UNSATISFIABLE, Origin, SchemaRefused
from radixserve.grammar.schema.scalars import point, write_number, write_text
from radixserve.grammar.schema.shapes import (
    ANY_OF_KIND,
    ANYWHERE,
    NOWHERE,
    Array,
    Boolean,
    Null,
    Number,
    Object,
    Place,
    Shape,
    Text,
)

_KIND = {type(shape): kind for kind, shape in ANY_OF_KIND.items()}


class Emission:
    """Writes one document."""

    def __init__(self, expansion: Expansion) -> None:
        self._expansion = expansion
        domains = Domains(expansion, expansion.emptiness, expansion.document)
        self._arrays = Arrays(expansion.emptiness, domains, expansion.budget.limits, self._child)
        self._objects = Objects(expansion, self._child)
        self._waiting: list[Place] = []
        self._uses: dict[Key, int] = {}
        self._bodies: dict[Key, object] = {}

    def write(self) -> JsonSchema:
        """The rewritten schema; refuses one that no document satisfies."""
        root = self._expansion.resolved(self._expansion.root())
        if self._expansion.emptiness.empty(root):
            raise _unsatisfiable()
        top = self._child(root)
        while self._waiting:
            here = self._waiting.pop()
            self._bodies[self._key(here)] = self._union(here)
        written = Linker(self._bodies, self._uses).document(top)
        if written is None:
            raise _unsatisfiable()
        return written

    def _key(self, here: Place) -> Key:
        assert here.literals is not None
        return frozenset(here.literals)

    def _child(self, here: Place) -> object:
        here = self._expansion.resolved(here)
        if here == ANYWHERE:
            return {}
        if here == NOWHERE or self._expansion.emptiness.empty(here):
            return False
        key = self._key(here)
        if key not in self._uses:
            self._waiting.append(here)
        self._uses[key] = self._uses.get(key, 0) + 1
        return Link(key)

    def _union(self, here: Place) -> object:
        shapes = [shape for shape in self._expansion.shapes(here) if self._expansion.emptiness.fillable(shape)]
        whole = {_KIND[type(shape)] for shape in shapes if shape == ANY_OF_KIND[_KIND[type(shape)]]}
        if {shape.value for shape in shapes if isinstance(shape, Boolean)} >= {True, False}:
            whole.add("boolean")
        whole |= {"null"} & {_KIND[type(shape)] for shape in shapes}
        if len(whole) == len(ANY_OF_KIND):
            return {}
        options: list[JsonSchema] = []
        values: list[object] = []
        for shape in shapes:
            if _KIND[type(shape)] not in whole:
                self._write(shape, options, values)
        self._expansion.budget.spend("shapes", len(options))
        if values:
            options.insert(0, {"enum": values})
        types = [kind for kind in ANY_OF_KIND if kind in whole]
        if types:
            options.append({"type": types[0] if len(types) == 1 else types})
        options = list({repr(option): option for option in options}.values())
        if not options:
            return False
        return options[0] if len(options) == 1 else {"anyOf": options}

    def _write(self, shape: Shape, options: list[JsonSchema], values: list[object]) -> None:
        if isinstance(shape, Boolean):
            values.append(shape.value)
        elif isinstance(shape, Number):
            value = point(shape)
            if value is None:
                options += write_number(shape, self._expansion.budget)
            else:
                values.append(value)
        elif isinstance(shape, Text):
            if shape.values is None:
                options.append(write_text(shape, self._expansion.languages))
            else:
                values += shape.values
        elif isinstance(shape, Array):
            options += self._arrays.write(shape)
        elif isinstance(shape, Object):
            options += self._objects.write(shape)
        else:
            assert isinstance(shape, Null)


def _unsatisfiable() -> SchemaRefused:
    return SchemaRefused(Origin("schema", "#"), "no document satisfies it", UNSATISFIABLE)
