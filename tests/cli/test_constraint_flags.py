from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from radixserve.cli.constraint_flags import constraint_of
from radixserve.constraints import Choice, Grammar, JsonObject, JsonSchema, Regex
from radixserve.errors import InvalidRequest
from tests.cli.conftest import CommandLine


def test_each_flag_makes_its_constraint() -> None:
    assert constraint_of({}) is None
    assert constraint_of({"json_object": False}) is None
    assert constraint_of({"json_object": True}) == JsonObject()
    assert constraint_of({"json_schema": '{"type": "integer"}'}) == JsonSchema('{"type": "integer"}')
    assert constraint_of({"regex": "a+"}) == Regex("a+")
    assert constraint_of({"grammar": 'start: "a"'}) == Grammar('start: "a"')
    assert constraint_of({"choice": ("a", "b")}) == Choice(("a", "b"))


def test_a_schema_or_grammar_may_be_a_file(tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    path.write_text('{"const": "é"}', encoding="utf-8")
    assert constraint_of({"json_schema": str(path)}) == JsonSchema('{"const": "é"}')
    with pytest.raises(InvalidRequest, match="grammar: neither a text nor a readable file") as refused:
        constraint_of({"grammar": str(tmp_path / "none.lark")})
    assert refused.value.param == "grammar"


def test_only_one_may_be_given() -> None:
    with pytest.raises(InvalidRequest, match="--regex and --json-object cannot be given together"):
        constraint_of({"regex": "a", "json_object": True})


def test_the_flags_reach_the_request(command_line: Callable[..., CommandLine]) -> None:
    ran = command_line()("generate", "hi", "--choice", "yes", "--choice", "no", "--finish-json")
    assert ran.code == 0, ran.err
    assert ran.engine is not None
    ((_, sampling, _, _),) = ran.engine.generated
    assert sampling is not None
    assert sampling.constraint == Choice(("yes", "no"))
    assert sampling.finish_json
