"""`check_schema`: what becomes of a schema, for whoever writes it."""

from __future__ import annotations

import copy
from typing import Any

import msgspec

from radixserve.grammar.schema.dialect import CONSTRAINING, Draft
from radixserve.grammar.schema.document import Document, subschemas
from radixserve.grammar.schema.emission import Emission
from radixserve.grammar.schema.example import example_of
from radixserve.grammar.schema.expansion import Expansion
from radixserve.grammar.schema.json_values import check_size, escape_token
from radixserve.grammar.schema.limits import Budget, Limits
from radixserve.grammar.schema.refusal import INVALID, UNSUPPORTED, SchemaRefused
from radixserve.grammar.schema.strictness import NOTES, how

# Refusals are found one after the other, each without the keyword that the last one named.
_MAX_REFUSALS = 8
_MAX_REWRITES = 200


class Rewrite(msgspec.Struct, frozen=True):
    """A keyword that the engine gets in another form. ``path``: JSON pointer with ``#``, the keyword included."""

    path: str
    how: str


class Refusal(msgspec.Struct, frozen=True):
    """A keyword that is not enforced. ``code``: ``unsupported_schema``, ``invalid_schema``, ``unsatisfiable_schema`` or
    ``schema_too_complex``.
    """

    keyword: str
    path: str
    reason: str
    code: str


class SchemaReport(msgspec.Struct, frozen=True):
    """What becomes of a schema.

    ``keywords``: those that constrain, sorted. ``notes``: those that do not, which are left out; ``unknown``: those that no
    draft knows, which are, too. ``rewritten``: at most 200.
    ``refused``: empty if ``supported``; else the first few, each found without the ones before it. ``example``: a document
    that validates, and ``normalized`` the schema that the engine gets; both None unless ``supported``.
    """

    supported: bool
    keywords: list[str]
    notes: list[str]
    rewritten: list[Rewrite]
    refused: list[Refusal]
    example: Any = None
    normalized: Any = None
    unknown: list[str] = []


def check_schema(
    schema: object, *, draft: Draft = Draft.MIXED, assert_formats: bool = True, limits: Limits | None = None
) -> SchemaReport:
    """The report on ``schema``, a parsed JSON document; parameters as for `normalize_schema`. Never raises for a bad schema."""
    bounds = limits or Limits()
    try:
        check_size(schema, bounds)
    except SchemaRefused as error:
        return SchemaReport(False, [], [], [], [_refusal(error)])
    keywords, others, rewritten = _survey(schema)
    notes, unknown = [x for x in others if x in NOTES], [x for x in others if x not in NOTES]
    # One budget for all attempts: a hostile schema costs what one attempt may.
    budget = Budget(bounds)
    refused: list[Refusal] = []
    rest = schema
    while True:
        try:
            normalized = Emission(Expansion(Document(rest, draft), budget, assert_formats=assert_formats)).write()
        except SchemaRefused as error:
            refused.append(_refusal(error))
            shorter = _without(rest, error) if len(refused) < _MAX_REFUSALS else None
            if shorter is None:
                break
            rest = shorter
            continue
        if refused:
            break
        return SchemaReport(True, keywords, notes, rewritten, [], _example(normalized, bounds), normalized, unknown)
    paths = {item.path for item in refused}
    kept = [item for item in rewritten if item.path not in paths]
    return SchemaReport(False, keywords, notes, kept, refused, unknown=unknown)


def _example(normalized: dict[str, Any], limits: Limits) -> object:
    try:
        return example_of(normalized, Budget(limits))
    except SchemaRefused:
        # Only the search for one was too much work; the schema is fine.
        return None


def _refusal(error: SchemaRefused) -> Refusal:
    return Refusal(error.origin.keyword, error.origin.path, error.reason, error.code)


def _without(schema: object, error: SchemaRefused) -> object | None:
    """``schema`` without the keyword that was refused; None if that is not the way to find more."""
    tokens = [token.replace("~1", "/").replace("~0", "~") for token in error.origin.path.split("/")[1:]]
    if not tokens or error.code not in (UNSUPPORTED, INVALID):
        return None
    shorter = copy.deepcopy(schema)
    at: Any = shorter
    for token in tokens[:-1]:
        at = (
            at[int(token)]
            if isinstance(at, list) and token.isdigit()
            else at.get(token)
            if isinstance(at, dict)
            else None
        )
    if not isinstance(at, dict) or tokens[-1] not in at:
        return None
    del at[tokens[-1]]
    return shorter


def _survey(schema: object) -> tuple[list[str], list[str], list[Rewrite]]:
    """Keywords that constrain, those that do not, and rewrites, of all subschemas."""
    keywords: set[str] = set()
    notes: set[str] = set()
    rewritten: list[Rewrite] = []
    waiting: list[tuple[object, str]] = [(schema, "#")]
    while waiting:
        value, path = waiting.pop()
        if not isinstance(value, dict):
            continue
        for keyword, part in value.items():
            (keywords if keyword in CONSTRAINING else notes).add(keyword)
            method = how(keyword, part)
            if method is not None:
                rewritten.append(Rewrite(f"{path}/{escape_token(keyword)}", method))
        waiting += reversed(list(subschemas(value, path)))
    return sorted(keywords), sorted(notes), rewritten[:_MAX_REWRITES]
