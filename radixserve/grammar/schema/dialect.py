"""Drafts of JSON Schema: which one a schema is written in, and what each calls things."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum


class Draft(IntEnum):
    """In order of age. `MIXED` is a schema that names none: all spellings that any draft has are understood."""

    DRAFT_4 = 4
    DRAFT_6 = 6
    DRAFT_7 = 7
    DRAFT_2019 = 2019
    DRAFT_2020 = 2020
    MIXED = 9999


_URIS = {
    "json-schema.org/draft-04/schema": Draft.DRAFT_4,
    "json-schema.org/draft-06/schema": Draft.DRAFT_6,
    "json-schema.org/draft-07/schema": Draft.DRAFT_7,
    "json-schema.org/draft/2019-09/schema": Draft.DRAFT_2019,
    "json-schema.org/draft/2020-12/schema": Draft.DRAFT_2020,
    "json-schema.org/schema": Draft.MIXED,
}

# Keyword -> first and last draft that has it. What is not here is in all drafts, or in none.
_LIFE: dict[str, tuple[Draft, Draft]] = {
    "const": (Draft.DRAFT_6, Draft.MIXED),
    "contains": (Draft.DRAFT_6, Draft.MIXED),
    "propertyNames": (Draft.DRAFT_6, Draft.MIXED),
    "if": (Draft.DRAFT_7, Draft.MIXED),
    "then": (Draft.DRAFT_7, Draft.MIXED),
    "else": (Draft.DRAFT_7, Draft.MIXED),
    "dependentRequired": (Draft.DRAFT_2019, Draft.MIXED),
    "dependentSchemas": (Draft.DRAFT_2019, Draft.MIXED),
    "unevaluatedItems": (Draft.DRAFT_2019, Draft.MIXED),
    "unevaluatedProperties": (Draft.DRAFT_2019, Draft.MIXED),
    "minContains": (Draft.DRAFT_2019, Draft.MIXED),
    "maxContains": (Draft.DRAFT_2019, Draft.MIXED),
    "$recursiveRef": (Draft.DRAFT_2019, Draft.DRAFT_2019),
    "prefixItems": (Draft.DRAFT_2020, Draft.MIXED),
    "$dynamicRef": (Draft.DRAFT_2020, Draft.MIXED),
    "additionalItems": (Draft.DRAFT_4, Draft.DRAFT_2019),
}
# `dependencies` is gone since 2019-09 but widely kept for compatibility: it is enforced wherever it occurs.

ASSERTIONS = frozenset(
    {
        "type", "enum", "const", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength",
        "maxLength", "pattern", "format", "minItems", "maxItems", "uniqueItems", "minContains", "maxContains",
        "minProperties", "maxProperties", "required", "dependentRequired", "dependencies",
    }
)  # fmt: skip

# Where subschemas are: the value itself, an array of them, or an object of them.
ONE = frozenset(
    {
        "items", "additionalItems", "contains", "additionalProperties", "propertyNames", "not", "if", "then", "else",
        "unevaluatedItems", "unevaluatedProperties",
    }
)  # fmt: skip
MANY = frozenset({"allOf", "anyOf", "oneOf", "prefixItems", "items"})
NAMED = frozenset({"properties", "patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions"})

REFERENCES = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})
CONSTRAINING = ASSERTIONS | ONE | MANY | (NAMED - {"$defs", "definitions"}) | REFERENCES


def draft_of(uri: str) -> Draft | None:
    """The draft that a ``$schema`` names; None for one that is not known here."""
    return _URIS.get(uri.removeprefix("https://").removeprefix("http://").removesuffix("#"))


def foreign(keyword: str, draft: Draft) -> bool:
    """Whether another draft constrains by ``keyword`` and this one does not know it."""
    first, last = _LIFE.get(keyword, (Draft.DRAFT_4, Draft.MIXED))
    return draft is not Draft.MIXED and not first <= draft <= last


def ref_hides_siblings(draft: Draft) -> bool:
    """Whether ``$ref`` makes everything beside it void."""
    return draft <= Draft.DRAFT_7


def identifier(schema: Mapping[str, object], draft: Draft) -> str | None:
    """The ``$id`` (draft 4: ``id``) that a subschema carries."""
    if ref_hides_siblings(draft) and "$ref" in schema:
        return None
    value = schema.get("id" if draft is Draft.DRAFT_4 else "$id")
    return value if isinstance(value, str) else None
