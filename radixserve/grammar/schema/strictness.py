r"""What becomes of every keyword: enforced by the engine as it stands, rewritten into what the engine enforces, or only a note.

What the engine (llguidance 1.9) does not keep as JSON Schema means it, found by experiment, and how it is dealt with:

- Names under ``additionalProperties`` may be spelled with needless escapes, and so repeat a named property: such names are written as
  ``patternProperties``, where they may not.
- Names under ``patternProperties`` may occur twice, which is one property: a lower bound of two or more on them is refused.
- ``minProperties`` and ``maxProperties`` beside optional properties are not compiled: split by which are present.
- A named property must also satisfy every pattern that matches its name: patterns are written without such names.
- Overlapping patterns are not compiled: names are partitioned.
- ``.``, ``\s``, ``\w`` and ``$`` differ from ECMA-262: patterns are written anew, with every class spelled out.
- A class that holds all control characters and not the quote or the backslash (``[^"]``) lets both pass where they are escaped: one
  control character, U+001F, is left out of it.
- ``multipleOf`` with decimals wants all of them to be written (0.25 accepts 0.50 and not 0.5): coarser steps are added.
- A bound with several decimals rejects shorter numbers that begin like it (a maximum of 12.75 rejects 12.7): these are added.
- An exclusive bound that is whole is accepted when the other bound has the same whole part: refused.
- Numbers from 2**53 on are rounded, steps with many digits take seconds to compile: refused.
- A required recursion without end compiles and then accepts nothing: pruned, or refused as unsatisfiable.
- ``date-time`` and ``time`` accept second 60 at any time: formats are written as patterns.
- Properties come in a fixed order: that of the schema. This restricts what is generated, and stays.
"""

from __future__ import annotations

NATIVE = frozenset(
    {
        "type", "enum", "const", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength", "items",
        "prefixItems", "minItems", "maxItems", "properties", "required", "anyOf", "$ref",
    }
)  # fmt: skip

REWRITTEN = {
    "multipleOf": "joined with other steps, and with coarser ones that the engine writes shorter",
    "pattern": "written with every character class spelled out",
    "format": "written as a pattern",
    "additionalProperties": "written as a pattern for all names that are not listed",
    "patternProperties": "names partitioned into disjoint patterns",
    "propertyNames": "joined with the patterns of the other names",
    "minProperties": "split by which optional properties are present",
    "maxProperties": "split by which optional properties are present",
    "dependentRequired": "split by whether the property is present",
    "dependentSchemas": "split by whether the property is present",
    "dependencies": "split by whether the property is present",
    "allOf": "merged",
    "oneOf": "split into cases that exclude one another where they overlap",
    "not": "turned into what is allowed instead",
    "if": "split into two cases",
    "then": "joined with the case in which the condition holds",
    "else": "joined with the case in which the condition fails",
    "contains": "split by the positions that satisfy it",
    "minContains": "split by the positions that satisfy it",
    "maxContains": "split by the positions that satisfy it",
    "uniqueItems": "split by the orders of the few values that there are",
    "additionalItems": "written as items",
    "unevaluatedProperties": "written as additionalProperties of each case",
    "unevaluatedItems": "written as items of each case",
    "$dynamicRef": "resolved by the way on which it is reached",
    "$recursiveRef": "resolved by the way on which it is reached",
}

# Known, and without effect on what validates; every unknown keyword has none either.
NOTES = frozenset(
    {
        "$schema", "$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$vocabulary", "$comment", "$defs", "definitions",
        "title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly", "contentEncoding",
        "contentMediaType", "contentSchema",
    }
)  # fmt: skip


def how(keyword: str, value: object) -> str | None:
    """How ``keyword`` with ``value`` is rewritten; None if it is written as it stands."""
    if keyword in ("exclusiveMinimum", "exclusiveMaximum") and isinstance(value, bool):
        return "written as a number"
    if keyword == "items" and isinstance(value, list):
        return "written as prefixItems"
    if keyword == "uniqueItems" and value is False:
        return None
    return REWRITTEN.get(keyword)
