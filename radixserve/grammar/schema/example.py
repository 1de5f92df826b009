"""An example document for a rewritten schema: small, but with its optional properties where they fit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

from radixserve.grammar.schema.json_values import exact, plain
from radixserve.grammar.schema.limits import Budget
from radixserve.grammar.schema.patterns import exactly, length_pattern, read_pattern
from radixserve.grammar.schema.refusal import Origin
from radixserve.grammar.schema.regex.automaton import Dfa, determinize
from radixserve.grammar.schema.regex.tree import Ranges, Regex

_MAX_DEPTH = 60
_ROOMY = 4
_HERE = Origin("pattern", "#")
_NICE = (range(0x61, 0x7B), range(0x41, 0x5B), range(0x30, 0x3A), range(0x20, 0x7F))


class _TooDeep(Exception):
    """No document this shallow was found; a deeper one may exist."""


def example_of(schema: dict[str, Any], budget: Budget) -> object:
    """A document that ``schema``, which was rewritten here, accepts."""
    for depth in range(1, _MAX_DEPTH):
        try:
            return _Writer(schema.get("$defs", {}), budget).value(schema, depth)
        except _TooDeep:
            continue
    raise AssertionError("a rewritten schema has a document")


class _Writer:
    def __init__(self, definitions: dict[str, Any], budget: Budget) -> None:
        self._definitions = definitions
        self._budget = budget

    def value(self, schema: Any, depth: int) -> Any:
        self._budget.spend("steps")
        if schema is False or depth == 0:
            raise _TooDeep
        if "$ref" in schema:
            return self.value(self._definitions[schema["$ref"].rpartition("/")[2]], depth - 1)
        if "anyOf" in schema:
            return self._first(schema["anyOf"], depth)
        if "enum" in schema:
            return schema["enum"][0]
        kind = schema.get("type", "string")
        kind = "string" if isinstance(kind, list) and "string" in kind else kind[-1] if isinstance(kind, list) else kind
        writers: dict[str, Callable[[Any, int], Any]] = {
            "null": lambda _, __: None,
            "boolean": lambda _, __: True,
            "string": lambda part, _: self._text(part),
            "array": self._array,
            "object": self._object,
        }
        return writers[kind](schema, depth) if kind in writers else _number(schema)

    def _first(self, options: list[Any], depth: int) -> Any:
        for option in options:
            try:
                return self.value(option, depth)
            except _TooDeep:
                continue
        raise _TooDeep

    def _array(self, schema: Any, depth: int) -> list[Any]:
        prefix, rest = schema.get("prefixItems", []), schema.get("items", {})
        low, high = schema.get("minItems", 0), schema.get("maxItems")
        items = [self.value(prefix[i] if i < len(prefix) else rest, depth - 1) for i in range(low)]
        if not items and high != 0 and depth > _ROOMY // 2:
            try:
                items.append(self.value(prefix[0] if prefix else rest, depth - 1))
            except _TooDeep:
                return items
        return items

    def _object(self, schema: Any, depth: int) -> dict[str, Any]:
        found = {}
        required = frozenset(schema.get("required", ()))
        most = schema.get("maxProperties")
        for name, part in schema.get("properties", {}).items():
            if name in required:
                found[name] = self.value(part, depth - 1)
            elif most is None and depth > _ROOMY // 2:
                try:
                    found[name] = self.value(part, depth - 1)
                except _TooDeep:
                    continue
        while len(found) < schema.get("minProperties", 0):
            name, part = self._other(schema, found)
            found[name] = self.value(part, depth - 1)
        return found

    def _other(self, schema: Any, taken: dict[str, Any]) -> tuple[str, Any]:
        names = [*schema.get("properties", {}), *taken]
        for pattern, part in schema.get("patternProperties", {}).items():
            wanted = [tree.tree for tree in read_pattern(pattern, _HERE).positive]
            name = self._shortest(
                [*wanted, *(exactly(name, _HERE).tree for name in names)], frozenset(range(len(wanted)))
            )
            if name is not None and part is not False:
                return name, part
        index = next(i for i in range(len(names) + 1) if f"key{i}" not in names)
        return f"key{index}", schema.get("additionalProperties", {})

    def _text(self, schema: Any) -> str:
        patterns = [schema["pattern"]] if "pattern" in schema else []
        patterns += [part["pattern"] for part in schema.get("allOf", [])]
        low, high = schema.get("minLength", 0), schema.get("maxLength")
        if not patterns:
            return "a" * low if low else "text" if high is None or high >= len("text") else "a" * high
        trees = [pattern.tree for text in patterns for pattern in read_pattern(text, _HERE).positive]
        if low or high is not None:
            trees.append(length_pattern(low, high, _HERE).tree)
        found = self._shortest(trees, frozenset(range(len(trees))))
        if found is None:
            raise _TooDeep
        return found

    def _shortest(self, trees: list[Regex], wanted: frozenset[int]) -> str | None:
        return _shortest_text(determinize(trees, self._budget), wanted)


def _shortest_text(dfa: Dfa, wanted: frozenset[int]) -> str | None:
    """A shortest string with exactly the labels ``wanted``, readable where that is possible."""
    letters = [(kind, _letter(ranges)) for kind, ranges in enumerate(dfa.classes)]
    letters.sort(key=lambda pair: _rank(ord(pair[1])))
    texts = {0: ""}
    order = [0]
    for state in order:
        if dfa.labels[state] == wanted:
            return texts[state]
        for kind, letter in letters:
            target = dfa.delta[state][kind]
            if target not in texts:
                texts[target] = texts[state] + letter
                order.append(target)
    return None


def _rank(code: int) -> int:
    return next((rank for rank, nice in enumerate(_NICE) if code in nice), len(_NICE))


def _letter(ranges: Ranges) -> str:
    for nice in _NICE:
        for low, high in ranges:
            if low < nice.stop and high >= nice.start:
                return chr(max(low, nice.start))
    return chr(ranges[0][0])


def _number(schema: Any) -> int | float:
    step = (
        exact(schema["multipleOf"]) if "multipleOf" in schema else Fraction(1) if schema["type"] == "integer" else None
    )
    low, high = (exact(schema[key]) if key in schema else None for key in ("minimum", "maximum"))
    above, below = (exact(schema[key]) if key in schema else None for key in ("exclusiveMinimum", "exclusiveMaximum"))

    def fits(value: Fraction) -> bool:
        return (
            (low is None or value >= low)
            and (high is None or value <= high)
            and (above is None or value > above)
            and (below is None or value < below)
        )

    return plain(next(value for value in _candidates(step, low, high, above, below) if fits(value)))


def _candidates(step: Fraction | None, *bounds: Fraction | None) -> Iterator[Fraction]:
    yield Fraction(0)
    known = [bound for bound in bounds if bound is not None]
    for bound in known:
        if step is None:
            yield from (Fraction(math.floor(bound) + 1), Fraction(math.ceil(bound) - 1), bound)
        else:
            index = math.floor(bound / step)
            yield from (step * i for i in (index - 1, index, index + 1))
    yield sum(known, Fraction(0)) / max(len(known), 1)
