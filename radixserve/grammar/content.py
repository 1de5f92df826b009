"""The parts of grammars: schemas, regular expressions and texts of grammars, as llguidance takes them."""

from __future__ import annotations

import re
from typing import Any

from radixserve.constraints import Choice, Grammar, JsonObject, JsonSchema, Regex
from radixserve.errors import InvalidRequest
from radixserve.grammar.gbnf import gbnf_to_lark
from radixserve.grammar.limits import check_grammar_size, check_schema_size, parse_schema
from radixserve.grammar.schema.refusal import SchemaRefused
from radixserve.grammar.schema_helper import SchemaHelper

_META = re.compile(r"[\\.+*?()|\[\]{}^$#&~/-]")
_RULE_SIGN = re.compile(r"^\s*[A-Za-z][\w-]*\s*(::=|:(?!:))", re.MULTILINE)
_FLEXIBLE_SPACE = r"[\x20\x0A\x0D\x09]{1,32}"
"""Between two tokens of a document: as much as an indented one needs, and never without end."""


def json_schema(constraint: JsonSchema | JsonObject, param: str, helper: SchemaHelper) -> Any:
    """The schema that the library is to enforce, with its options written into it."""
    schema: Any = {"type": "object"}
    if isinstance(constraint, JsonSchema):
        param = f"{param}.schema"
        try:
            schema = helper.normalize(parse_schema(constraint.schema, param))
        except SchemaRefused as refused:
            raise refused.under(param) from None
        check_schema_size(schema, param)
    options: dict[str, Any] = {"lenient": False, "coerce_one_of": False}
    if constraint.whitespace == "compact":
        options["whitespace_flexible"] = False
    else:
        options["whitespace_pattern"] = _FLEXIBLE_SPACE
    return {**schema, "x-guidance": options}


def regex_text(constraint: Regex | Choice) -> str:
    """The regular expression of a pattern or of alternatives."""
    if isinstance(constraint, Regex):
        pattern = constraint.pattern
        if (len(pattern) - len(pattern.rstrip("\\"))) % 2:
            # The library would take it for the pattern without the backslash.
            raise InvalidRequest("constraint.pattern", "ends in a backslash that escapes nothing", "invalid_pattern")
        return _without_anchors(pattern)
    return "|".join(escape(choice) for choice in constraint.choices)


def _without_anchors(pattern: str) -> str:
    """``pattern`` without anchors at its ends, which say nothing where the whole text has to match."""
    start = 1 if pattern.startswith("^") else 0
    body = pattern[start:].removesuffix("$")
    escaped = (len(body) - len(body.rstrip("\\"))) % 2
    return body + "$" if escaped and pattern.endswith("$") else body


def lark_text(constraint: Grammar, param: str) -> str:
    """The grammar in lark's syntax."""
    check_grammar_size(constraint, f"{param}.text")
    syntax = constraint.syntax
    if syntax == "auto":
        sign = _RULE_SIGN.search(constraint.text)
        if sign is None:
            raise InvalidRequest(f"{param}.text", "holds no rule: neither ':' nor '::='", "invalid_grammar")
        syntax = "gbnf" if sign[1] == "::=" else "lark"
    return gbnf_to_lark(constraint.text, f"{param}.text") if syntax == "gbnf" else constraint.text


def escape(text: str) -> str:
    """A regular expression that matches exactly ``text``."""
    return _META.sub(r"\\\g<0>", text)
