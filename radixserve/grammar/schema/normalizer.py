"""`normalize_schema`: the one entry point for whoever compiles grammars."""

from __future__ import annotations

from radixserve.grammar.schema.dialect import Draft
from radixserve.grammar.schema.document import Document
from radixserve.grammar.schema.emission import Emission
from radixserve.grammar.schema.expansion import Expansion
from radixserve.grammar.schema.json_values import check_size
from radixserve.grammar.schema.limits import Budget, Limits


def normalize_schema(
    schema: object, *, draft: Draft = Draft.MIXED, assert_formats: bool = True, limits: Limits | None = None
) -> object:
    """A JSON schema (an object, draft 2020-12) that the engine enforces exactly as ``schema`` means.

    ``schema`` is a parsed JSON document: a schema of draft 4, 6, 7, 2019-09 or 2020-12. One without ``$schema`` is read as
    ``draft``, by default as one in which the spellings of all drafts are understood. ``assert_formats``: ``format`` constrains,
    which the drafts leave to whoever reads a schema; without, it is a note. Raises `SchemaRefused` (an `InvalidRequest`)
    that names the keyword and its JSON path.
    """
    bounds = limits or Limits()
    check_size(schema, bounds)
    expansion = Expansion(Document(schema, draft), Budget(bounds), assert_formats=assert_formats)
    return Emission(expansion).write()
