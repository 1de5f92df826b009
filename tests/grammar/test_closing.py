from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import numpy as np
import pytest

from radixserve.constraints import Choice, Constraint, JsonObject, JsonSchema, Regex
from radixserve.grammar.compiler import ConstraintCompiler
from tests.grammar.vocabularies import byte_compiler, takes
from tests.tiny_model import byte_tokenizer

TOKENIZER = byte_tokenizer()
TREE: dict[str, Any] = {
    "type": "object",
    "properties": {"value": {"type": "number"}, "children": {"type": "array", "items": {"$ref": "#"}}},
    "required": ["value", "children"],
    "additionalProperties": False,
}
LISTS: dict[str, Any] = {"type": "array", "items": {"type": "string", "minLength": 2}, "minItems": 3}


@pytest.fixture(scope="module")
def compiler() -> ConstraintCompiler:
    return byte_compiler()


@pytest.mark.parametrize(
    "constraint",
    [
        JsonSchema(json.dumps(TREE)),
        JsonSchema(json.dumps(LISTS)),
        JsonObject(),
        Regex("[a-z]+(xy)*z"),
        Choice(("one", "two")),
    ],
)
def test_a_way_leads_to_the_end_from_wherever_one_is(compiler: ConstraintCompiler, constraint: Constraint) -> None:
    compiled = compiler.compile(constraint)
    mask = np.zeros(-(-TOKENIZER.vocab_size // 32), np.uint32)
    for seed in range(5):
        dice = random.Random(seed)
        walk, tokens = compiled.matcher(), list[int]()
        for _ in range(40):
            way = compiled.closing.way(walk, 200)
            assert way is not None and (way == []) == walk.accepting
            text = TOKENIZER.decode([*tokens, *way])
            assert takes(compiled.matcher(), TOKENIZER, text), text
            if isinstance(constraint, JsonSchema):
                jsonschema.validate(json.loads(text), json.loads(constraint.schema))
            assert compiled.closing.way(walk, len(way)) == way
            if way:
                assert compiled.closing.way(walk, len(way) - 1) is None
            walk.fill_mask(mask)
            allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()
            allowed = [token for token in allowed if token < 256]
            if not allowed:
                break
            token = dice.choice(allowed)
            walk.consume(token)
            tokens.append(token)


def test_a_way_is_short(compiler: ConstraintCompiler) -> None:
    def shortest(constraint: Constraint) -> str:
        compiled = compiler.compile(constraint)
        return TOKENIZER.decode(compiled.closing.way(compiled.matcher(), 200) or [])

    assert shortest(JsonObject()) == "{}"
    assert shortest(JsonSchema(json.dumps(TREE))) == '{"value":0,"children":[]}'
    assert len(shortest(JsonSchema(json.dumps(LISTS)))) == len('["aa","aa","aa"]')


@pytest.mark.parametrize(
    "text",
    [
        {"type": "string", "format": "email"},
        {"type": "string", "format": "uri"},
        {"type": "string", "pattern": "^[^/]+/[^/]+$"},
        {"type": "string", "pattern": "^[^=]+=.+;$"},
    ],
)
def test_brackets_inside_a_text_close_nothing(compiler: ConstraintCompiler, text: dict[str, Any]) -> None:
    schema = {"type": "array", "items": {"type": "object", "properties": {"a": text}, "required": ["a"]}, "minItems": 2}
    compiled = compiler.compile(JsonSchema(json.dumps(schema)))
    way = compiled.closing.way(compiled.matcher(), 300)
    assert way is not None
    jsonschema.validate(json.loads(TOKENIZER.decode(way)), schema)


def test_where_none_is_found_it_says_so(compiler: ConstraintCompiler) -> None:
    compiled = compiler.compile(Regex("[0-9]{600}"))
    assert compiled.closing.way(compiled.matcher(), 10_000) is None
