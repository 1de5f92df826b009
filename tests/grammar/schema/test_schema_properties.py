"""Random schemas: the rewritten one means the same, the engine keeps it, and what the engine lets through is valid."""

from __future__ import annotations

import json
import random
from typing import Any

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator, FormatChecker
from llguidance import LLMatcher

from radixserve.grammar.schema.normalizer import normalize_schema
from radixserve.grammar.schema.refusal import UNSATISFIABLE, SchemaRefused
from radixserve.grammar.schema.report import check_schema
from tests.grammar.schema.acceptance import EOS, accepts, compile_schema
from tests.grammar.schema.strategies import recursive_schemas, schemas, values

SCHEMAS = st.one_of(schemas(), schemas(), recursive_schemas())
RELAXED = settings(suppress_health_check=list(HealthCheck))


def _is_valid(schema: Any, value: Any) -> bool:
    try:
        return bool(Draft202012Validator(schema, format_checker=FormatChecker()).is_valid(value))
    except RecursionError:
        # A reference that leads to itself; the oracle cannot say.
        assume(False)
        raise


@settings(RELAXED, max_examples=400)
@given(SCHEMAS, st.lists(values(), min_size=6, max_size=6))
def test_the_rewritten_schema_means_the_same(schema: Any, documents: list[Any]) -> None:
    try:
        normalized = normalize_schema(schema)
    except SchemaRefused as error:
        if error.code == UNSATISFIABLE:
            assert not any(_is_valid(schema, document) for document in documents)
        return
    for document in documents:
        assert _is_valid(schema, document) == _is_valid(normalized, document), json.dumps(document)


@settings(RELAXED, max_examples=150)
@given(SCHEMAS, st.lists(values(), min_size=3, max_size=3))
def test_the_engine_keeps_the_rewritten_schema(schema: Any, documents: list[Any]) -> None:
    try:
        matcher = compile_schema(normalize_schema(schema))
    except SchemaRefused:
        return
    for document in documents:
        assert _is_valid(schema, document) == accepts(matcher, document), json.dumps(document)


@settings(RELAXED, max_examples=200)
@given(SCHEMAS, st.integers(0, 2**32))
def test_what_a_random_walk_writes_is_valid(schema: Any, seed: int) -> None:
    try:
        matcher = compile_schema(normalize_schema(schema))
    except SchemaRefused:
        return
    text = walk(matcher, random.Random(seed))
    if text is not None:
        assert _is_valid(schema, json.loads(text)), text


@settings(RELAXED, max_examples=200)
@given(SCHEMAS)
def test_the_example_of_the_report_is_valid(schema: Any) -> None:
    report = check_schema(schema)
    assert report.supported == (not report.refused)
    if report.supported:
        assert _is_valid(schema, report.example), report.example
        assert accepts(compile_schema(report.normalized), report.example), report.example


def walk(matcher: LLMatcher, rng: random.Random, soft_limit: int = 60, hard_limit: int = 400) -> str | None:
    """A document drawn byte by byte from what ``matcher`` allows; None if it does not end in time.

    What ends a value is preferred, always so after ``soft_limit`` bytes. Exponents are avoided: they leave what a float holds.
    """
    mine = matcher.deep_copy()
    text = bytearray()
    while len(text) < hard_limit:
        mask = mine.compute_bitmask()
        allowed = [token for token in range(EOS + 1) if mask[token // 8] >> (token % 8) & 1]
        assert allowed, f"a dead end after {bytes(text)!r}"
        if allowed == [EOS] or (EOS in allowed and rng.random() < 0.5):
            return text.decode()
        bytes_allowed = [token for token in allowed if token != EOS and token not in b"eE"] or allowed
        closing = [token for token in bytes_allowed if token in b'"}]']
        late = len(text) > soft_limit
        if EOS in allowed and late:
            return text.decode()
        token = rng.choice(closing if closing and (late or rng.random() < 0.4) else bytes_allowed)
        assert mine.consume_token(token)
        text.append(token)
    return None
