"""From a constraint to the grammar that llguidance compiles."""

from __future__ import annotations

import json

import llguidance

from radixserve.constraints import Constraint, Grammar, JsonObject, JsonSchema, StructuralTag
from radixserve.grammar.content import json_schema, lark_text, regex_text
from radixserve.grammar.schema_helper import SchemaHelper
from radixserve.grammar.special_tokens import SpecialTokens
from radixserve.grammar.structural_tags import structural_tag_grammar


def translate(constraint: Constraint, special: SpecialTokens, helper: SchemaHelper) -> str:
    """The grammar in the library's own JSON form; raises `InvalidRequest` naming what cannot be enforced."""
    if isinstance(constraint, StructuralTag):
        return structural_tag_grammar(constraint, special, helper)
    if isinstance(constraint, (JsonSchema, JsonObject)):
        schema = json.dumps(json_schema(constraint, "constraint", helper))
        return str(llguidance.LLMatcher.grammar_from_json_schema(schema))
    if isinstance(constraint, Grammar):
        return str(llguidance.LLMatcher.grammar_from_lark(lark_text(constraint, "constraint")))
    return str(llguidance.LLMatcher.grammar_from_regex(regex_text(constraint)))
