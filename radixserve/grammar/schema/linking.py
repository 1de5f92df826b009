"""Written places put together into one schema, without what no document can ever complete."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

JsonSchema = dict[str, object]
Key = frozenset[object]

_MAX_NESTING = 12
_MAX_SMALL = 200


@dataclass(frozen=True, slots=True)
class Link:
    """Stands for the schema of a place until all are written."""

    key: Key


class Linker:
    """``bodies``: what was written for each place; ``uses``: how often each occurs."""

    def __init__(self, bodies: Mapping[Key, object], uses: Mapping[Key, int]) -> None:
        self._bodies = bodies
        self._uses = uses
        self._finite: set[Key] = set()
        self._completable()
        self._names: dict[Key, str] = {}
        self._waiting: list[Key] = []

    def document(self, top: object) -> JsonSchema | None:
        """The schema that starts at ``top``, with the definitions that it needs; None if nothing satisfies it."""
        if not self._alive(top):
            return None
        if isinstance(top, Link) and self._uses[top.key] > 1:
            root: object = {"$ref": self._named(top.key)}
        else:
            root = self._filled(self._bodies[top.key] if isinstance(top, Link) else top, 0)
        definitions: dict[str, object] = {}
        while self._waiting:
            key = self._waiting.pop()
            definitions[self._names[key]] = self._filled(self._bodies[key], 0)
        assert isinstance(root, dict)
        return {**root, **({"$defs": definitions} if definitions else {})}

    def _completable(self) -> None:
        """Find the places for which some finite document exists: the least fixed point. A place that lacks another waits for it."""
        blocked: dict[Key, list[Key]] = {}
        waiting = list(self._bodies)
        while waiting:
            key = waiting.pop()
            if key in self._finite:
                continue
            lacking = self._lacking(self._bodies[key])
            if not lacking:
                self._finite.add(key)
                waiting += blocked.pop(key, [])
            for other in lacking or ():
                if other is not None:
                    blocked.setdefault(other, []).append(key)

    def _alive(self, schema: object) -> bool:
        return not self._lacking(schema)

    def _lacking(self, schema: object) -> list[Key | None]:
        """Nothing if ``schema`` has a finite document; else places one of which must have one first (None: there is no hope)."""
        if isinstance(schema, Link):
            return [] if schema.key in self._finite else [schema.key]
        if not isinstance(schema, dict):
            return [None] if schema is False else []
        options = schema.get("anyOf")
        if isinstance(options, list):
            found: list[Key | None] = []
            for option in options:
                lacking = self._lacking(option)
                if not lacking:
                    return []
                found += lacking
            return found
        needs: Iterator[object] = iter(())
        if schema.get("type") == "array":
            needs = _needed_items(schema)
        elif schema.get("type") == "object":
            needs = _needed_properties(schema)
        return next((lacking for need in needs if (lacking := self._lacking(need))), [])

    def _named(self, key: Key) -> str:
        if key not in self._names:
            self._names[key] = f"d{len(self._names)}"
            self._waiting.append(key)
        return f"#/$defs/{self._names[key]}"

    def _filled(self, value: object, depth: int) -> object:
        if isinstance(value, Link):
            if value.key not in self._finite:
                return False
            body = self._bodies[value.key]
            if _small(body):
                return body
            if self._uses[value.key] > 1 or depth >= _MAX_NESTING:
                return {"$ref": self._named(value.key)}
            return self._filled(body, depth + 1)
        if isinstance(value, dict):
            options = value.get("anyOf")
            if isinstance(options, list):
                alive = [self._filled(option, depth) for option in options if self._alive(option)]
                return alive[0] if len(alive) == 1 else {"anyOf": alive}
            return {key: self._filled(part, depth) for key, part in value.items()}
        return [self._filled(part, depth) for part in value] if isinstance(value, list) else value


def _needed_items(schema: JsonSchema) -> Iterator[object]:
    """What an array cannot do without."""
    low, prefix = schema.get("minItems", 0), schema.get("prefixItems", [])
    assert isinstance(low, int) and isinstance(prefix, list)
    yield from prefix[:low]
    if low > len(prefix):
        yield schema.get("items", {})


def _needed_properties(schema: JsonSchema) -> Iterator[object]:
    """What an object cannot do without."""
    properties, required = schema.get("properties", {}), schema.get("required", [])
    others, low = schema.get("patternProperties", {}), schema.get("minProperties", 0)
    assert isinstance(properties, dict) and isinstance(required, list)
    assert isinstance(others, dict) and isinstance(low, int)
    yield from (properties[name] for name in required)
    if low > len(required):
        yield {"anyOf": [*others.values(), schema.get("additionalProperties", {})]}


def _small(body: object) -> bool:
    """Whether a schema is written out at every use: it is short and holds no others."""
    if not isinstance(body, dict):
        return True
    return not any(isinstance(part, (dict, Link)) for part in _parts(body)) and len(repr(body)) < _MAX_SMALL


def _parts(body: JsonSchema) -> Iterator[object]:
    for value in body.values():
        yield value
        if isinstance(value, list):
            yield from value
