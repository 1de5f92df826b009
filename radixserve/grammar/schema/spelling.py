"""The keywords of one subschema, checked, in one spelling whatever draft they are written in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from fractions import Fraction

from radixserve.grammar.schema import dialect
from radixserve.grammar.schema.dialect import Draft
from radixserve.grammar.schema.document import Document, Node
from radixserve.grammar.schema.formats import MAX_LENGTH
from radixserve.grammar.schema.json_values import KINDS, exact
from radixserve.grammar.schema.patterns import Pattern, PatternSet, read_format, read_pattern
from radixserve.grammar.schema.refusal import INVALID, UNSUPPORTED, Origin, SchemaRefused


@dataclass(slots=True)
class Keywords:
    """What a subschema says. Absent keywords are None or empty. `Origin`s name the keyword that was written."""

    types: tuple[str, ...] | None = None
    values: list[tuple[list[object], Origin]] = field(default_factory=list)
    lows: list[tuple[Fraction, bool, Origin]] = field(default_factory=list)
    highs: list[tuple[Fraction, bool, Origin]] = field(default_factory=list)
    multiple_of: tuple[Fraction, Origin] | None = None
    lengths: tuple[int, int | None] = (0, None)
    pattern: PatternSet | None = None
    format: tuple[Pattern, int | None] | None = None
    item_counts: tuple[int, int | None] = (0, None)
    prefix: tuple[Node, ...] = ()
    rest: tuple[Node, Origin] | None = None
    contains: tuple[Node, int, int | None, Origin] | None = None
    unique: Origin | None = None
    property_counts: tuple[int, int | None] = (0, None)
    properties: list[tuple[str, Node]] = field(default_factory=list)
    pattern_properties: list[tuple[PatternSet, Node, Origin]] = field(default_factory=list)
    additional: tuple[Node, Origin] | None = None
    property_names: tuple[Node, Origin] | None = None
    required: tuple[str, ...] = ()
    dependent_required: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    dependent_schemas: list[tuple[str, Node]] = field(default_factory=list)
    all_of: list[Node] = field(default_factory=list)
    any_of: list[Node] = field(default_factory=list)
    one_of: list[Node] = field(default_factory=list)
    has_any_of: bool = False
    has_one_of: bool = False
    negated: Node | None = None
    condition: tuple[Node, Node | None, Node | None] | None = None
    references: list[tuple[str, object, Origin]] = field(default_factory=list)
    unevaluated_items: tuple[Node, Origin] | None = None
    unevaluated_properties: tuple[Node, Origin] | None = None

    def said(self) -> Iterator[str]:
        """The names of the fields that constrain anything."""
        blank = Keywords()
        return (item.name for item in fields(self) if getattr(self, item.name) != getattr(blank, item.name))


def read_keywords(document: Document, node: Node, *, assert_formats: bool) -> Keywords:
    """The keywords of ``node``, an object schema; refuses wrong values, and keywords that its draft does not have."""
    return _Reader(document, node, assert_formats).read()


class _Reader:
    def __init__(self, document: Document, node: Node, assert_formats: bool) -> None:
        assert isinstance(node.schema, dict)
        self.document = document
        self.node = node
        self.schema = node.schema
        self.draft = node.resource.draft
        self.assert_formats = assert_formats

    def read(self) -> Keywords:
        found = Keywords()
        if "$ref" in self.schema and dialect.ref_hides_siblings(self.draft):
            found.references.append(("$ref", self.schema["$ref"], self.node.origin("$ref")))
            return found
        for keyword in self.schema:
            if keyword in dialect.CONSTRAINING and dialect.foreign(keyword, self.draft):
                raise SchemaRefused(
                    self.node.origin(keyword), "the draft that $schema names does not have it", UNSUPPORTED
                )
            if keyword in dialect.REFERENCES:
                found.references.append((keyword, self.schema[keyword], self.node.origin(keyword)))
        self._general(found)
        self._numbers(found)
        self._strings(found)
        self._arrays(found)
        self._objects(found)
        self._applicators(found)
        return found

    def _general(self, found: Keywords) -> None:
        for keyword in ("contentEncoding", "contentMediaType"):
            if keyword in self.schema and self.draft is Draft.DRAFT_7:
                raise SchemaRefused(
                    self.node.origin(keyword), "it constrains in draft 7, and is not enforced", UNSUPPORTED
                )
        if "type" in self.schema:
            types = self.schema["type"]
            names = types if isinstance(types, list) else [types]
            for name in names:
                if name not in KINDS and name != "integer":
                    raise self._wrong("type", f"{name!r} is not a type")
            found.types = tuple(dict.fromkeys(map(str, names)))
        if "enum" in self.schema:
            values = self.schema["enum"]
            if not isinstance(values, list):
                raise self._wrong("enum", "it must be an array")
            found.values.append((values, self.node.origin("enum")))
        if "const" in self.schema:
            found.values.append(([self.schema["const"]], self.node.origin("const")))

    def _numbers(self, found: Keywords) -> None:
        for plain, exclusive, bounds in (
            ("minimum", "exclusiveMinimum", found.lows),
            ("maximum", "exclusiveMaximum", found.highs),
        ):
            flag = self.schema.get(exclusive)
            old = isinstance(flag, bool)
            if old and self.draft not in (Draft.DRAFT_4, Draft.MIXED):
                raise self._wrong(exclusive, "it must be a number")
            if plain in self.schema:
                bounds.append((self._number(plain), flag is True, self.node.origin(plain)))
            if exclusive in self.schema and not old:
                if self.draft is Draft.DRAFT_4:
                    raise self._wrong(exclusive, "it must be a boolean in draft 4")
                bounds.append((self._number(exclusive), True, self.node.origin(exclusive)))
        if "multipleOf" in self.schema:
            value = self._number("multipleOf")
            if value <= 0:
                raise self._wrong("multipleOf", "it must be greater than 0")
            found.multiple_of = (value, self.node.origin("multipleOf"))

    def _strings(self, found: Keywords) -> None:
        found.lengths = self._range("minLength", "maxLength")
        if "pattern" in self.schema:
            found.pattern = read_pattern(self._string("pattern"), self.node.origin("pattern"))
        if "format" in self.schema and self.assert_formats:
            name = self._string("format")
            found.format = (read_format(name, self.node.origin("format")), MAX_LENGTH.get(name))

    def _arrays(self, found: Keywords) -> None:
        found.item_counts = self._range("minItems", "maxItems")
        items = self.schema.get("items")
        if isinstance(items, list) and self.draft is not Draft.DRAFT_2020:
            found.prefix = self._many("items")
            found.rest = self._one("additionalItems")
        else:
            found.prefix = self._many("prefixItems")
            found.rest = self._one("items")
        contains = self._one("contains")
        if contains is not None:
            low, high = self._range("minContains", "maxContains", low=1)
            found.contains = (contains[0], low, high, contains[1])
        unique = self.schema.get("uniqueItems", False)
        if not isinstance(unique, bool):
            raise self._wrong("uniqueItems", "it must be a boolean")
        found.unique = self.node.origin("uniqueItems") if unique else None
        found.unevaluated_items = self._one("unevaluatedItems")

    def _objects(self, found: Keywords) -> None:
        found.property_counts = self._range("minProperties", "maxProperties")
        found.required = self._names("required", self.schema.get("required", []))
        found.properties = [(name, node) for name, node in self._named("properties") if node is not None]
        found.pattern_properties = [
            (
                read_pattern(pattern, Origin("patternProperties", node.path)),
                node,
                Origin("patternProperties", node.path),
            )
            for pattern, node in self._named("patternProperties")
            if node is not None
        ]
        found.additional = self._one("additionalProperties")
        found.property_names = self._one("propertyNames")
        found.unevaluated_properties = self._one("unevaluatedProperties")
        for keyword in ("dependentRequired", "dependencies"):
            for name, names in self._mapping(keyword).items():
                if keyword == "dependentRequired" or isinstance(names, list):
                    found.dependent_required.append((name, self._names(keyword, names)))
                elif keyword == "dependencies" and isinstance(names, str):
                    raise self._wrong(keyword, "a dependency is an array or a schema")
        found.dependent_schemas = [
            (name, node)
            for keyword in ("dependentSchemas", "dependencies")
            for name, node in self._named(keyword)
            if node is not None
        ]

    def _applicators(self, found: Keywords) -> None:
        for keyword, nodes in (("allOf", found.all_of), ("anyOf", found.any_of), ("oneOf", found.one_of)):
            nodes += self._many(keyword)
        found.has_any_of, found.has_one_of = "anyOf" in self.schema, "oneOf" in self.schema
        negated, condition = self._one("not"), self._one("if")
        found.negated = negated[0] if negated else None
        if condition is not None:
            then, otherwise = self._one("then"), self._one("else")
            found.condition = (condition[0], then[0] if then else None, otherwise[0] if otherwise else None)

    def _wrong(self, keyword: str, reason: str) -> SchemaRefused:
        return SchemaRefused(self.node.origin(keyword), reason, INVALID)

    def _number(self, keyword: str) -> Fraction:
        value = self.schema[keyword]
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self._wrong(keyword, "it must be a number")
        return exact(value)

    def _string(self, keyword: str) -> str:
        value = self.schema[keyword]
        if not isinstance(value, str):
            raise self._wrong(keyword, "it must be a string")
        return value

    def _range(self, least: str, most: str, low: int = 0) -> tuple[int, int | None]:
        bounds: list[int | None] = [low, None]
        for index, keyword in enumerate((least, most)):
            if keyword in self.schema:
                value = self._number(keyword)
                if value < 0 or value.denominator != 1:
                    raise self._wrong(keyword, "it must be a whole number of at least 0")
                bounds[index] = value.numerator
        return bounds[0] or 0, bounds[1]

    def _names(self, keyword: str, value: object) -> tuple[str, ...]:
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise self._wrong(keyword, "it must be an array of strings")
        return tuple(dict.fromkeys(value))

    def _one(self, keyword: str) -> tuple[Node, Origin] | None:
        if keyword not in self.schema:
            return None
        return self.document.child(self.node, keyword), self.node.origin(keyword)

    def _many(self, keyword: str) -> tuple[Node, ...]:
        if keyword not in self.schema:
            return ()
        value = self.schema[keyword]
        if not isinstance(value, list):
            raise self._wrong(keyword, "it must be an array of schemas")
        return tuple(self.document.child(self.node, keyword, index) for index in range(len(value)))

    def _mapping(self, keyword: str) -> dict[str, object]:
        value = self.schema.get(keyword, {})
        if not isinstance(value, dict):
            raise self._wrong(keyword, "it must be an object")
        return value

    def _named(self, keyword: str) -> Iterator[tuple[str, Node | None]]:
        for name, value in self._mapping(keyword).items():
            skip = keyword == "dependencies" and isinstance(value, list)
            yield name, None if skip else self.document.child(self.node, keyword, name)
