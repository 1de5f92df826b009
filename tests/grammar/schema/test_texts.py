"""Strings with every kind of escape, through the engine: random patterns and odd property names."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest

from radixserve.grammar.schema.normalizer import normalize_schema
from radixserve.grammar.schema.refusal import UNSUPPORTED, SchemaRefused
from tests.grammar.schema.acceptance import accepts_text, compile_schema

ALPHABET = ['"', "\\", "\n", "\t", "\x00", "\x1e", "a", "b", "é", "\x7f"]
WRITTEN = {char: f"\\x{ord(char):02x}" for char in ALPHABET if not char.isalpha()}


def as_json(text: str) -> str:
    """The spelling that the engine has for ``text``."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _random_class(rng: random.Random) -> str:
    members = "".join(WRITTEN.get(char, char) for char in rng.sample(ALPHABET, rng.randint(1, 3)))
    return rng.choice(["[", "[^", "[^"]) + members + "]"


def _random_pattern(rng: random.Random, depth: int = 3) -> str:
    kind = rng.random() if depth else 1.0
    if kind < 0.3:
        return _random_pattern(rng, depth - 1) + _random_pattern(rng, depth - 1)
    if kind < 0.55:
        return f"(?:{_random_pattern(rng, depth - 1)}|{_random_pattern(rng, depth - 1)})"
    if kind < 0.8:
        return f"(?:{_random_pattern(rng, depth - 1)}){rng.choice(['*', '+', '?', '{2}', '{1,2}'])}"
    return _random_class(rng)


def _refusal(constraint: dict[str, Any]) -> str | None:
    try:
        normalize_schema({"type": "string", **constraint})
    except SchemaRefused as error:
        return error.code
    return None


@pytest.mark.parametrize("seed", range(120))
def test_a_pattern_and_its_opposite(seed: int) -> None:
    rng = random.Random(seed)
    pattern = rng.choice(["^(?:{})$", "^(?:{})", "(?:{})$"]).format(_random_pattern(rng))
    oracle = re.compile(pattern.replace("$", r"\Z"))
    texts = ["".join(rng.choices(ALPHABET, k=rng.randint(0, 4))) for _ in range(60)]
    for negated in (False, True):
        constraint: dict[str, Any] = {"not": {"pattern": pattern}} if negated else {"pattern": pattern}
        expected = [bool(oracle.search(text)) is not negated for text in texts]
        refused = _refusal(constraint)
        if refused is not None:
            assert refused == UNSUPPORTED or not any(expected)
            continue
        matcher = compile_schema(normalize_schema({"type": "string", **constraint}))
        assert [accepts_text(matcher, as_json(text)) for text in texts] == expected


@pytest.mark.parametrize(
    "name", ['a"b', "a\\b", "é", "😀", "a/b", "\u2028", "\t", "\x7f", "\x01", "", "$", "\x80", "\ufeff", "ab"]
)
@pytest.mark.parametrize(
    "others", [{}, {"additionalProperties": {"type": "string"}}, {"patternProperties": {"^zz": {"type": "null"}}}]
)
def test_a_property_cannot_pass_for_another_one(name: str, others: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {name: {"type": "integer"}}, **others}
    matcher = compile_schema(normalize_schema(schema))
    units = name.encode("utf-16-be")
    escaped = "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
    spelled = {json.dumps(name), as_json(name), json.dumps(name, ensure_ascii=False), f'"{escaped}"'}
    assert any(accepts_text(matcher, f"{{{key}:1}}") for key in spelled)
    for key in spelled:
        assert not accepts_text(matcher, f'{{{key}:"x"}}')
        assert not accepts_text(matcher, f'{{{json.dumps(name, ensure_ascii=False)}:1,{key}:"x"}}')
