from __future__ import annotations

import json
import threading
import time
from typing import Any

import pytest

from radixserve.constraints import (
    MAX_CHOICES,
    Choice,
    Constraint,
    Grammar,
    JsonObject,
    JsonSchema,
    Regex,
    Tag,
)
from radixserve.errors import InvalidRequest
from radixserve.grammar.compiler import ConstraintCompiler
from radixserve.messages import SamplingParams
from tests.grammar.vocabularies import byte_compiler, structural, takes
from tests.tiny_model import byte_tokenizer

TOKENIZER = byte_tokenizer()
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}


@pytest.fixture(scope="module")
def compiler() -> ConstraintCompiler:
    return byte_compiler()


@pytest.mark.parametrize(
    ("constraint", "taken", "refused"),
    [
        (JsonSchema(json.dumps(SCHEMA)), ['{"a":1}', '{"a":-20}'], ['{"a": 1}', "{}", '{"a":1}x', '{"a":"1"}', ""]),
        (JsonSchema(json.dumps(SCHEMA), "flexible"), ['{"a":1}', '{ "a" :\n 1}'], ['{"a":' + " " * 33 + "1}"]),
        (JsonObject(), ["{}", '{"x":[1,null,"y"]}'], ["[]", "1", '{"x": 1}']),
        (Regex("a+b?"), ["a", "aab"], ["", "b", "abb"]),
        (Regex("^[0-9]{2}$"), ["12"], ["1", "123"]),
        (Regex(r"price\$"), ["price$"], ["price"]),
        (Choice(("a", "ab", "(x|y)*", "two\nlines", "")), ["a", "ab", "(x|y)*", "two\nlines", ""], ["xy", "b", "abc"]),
        (Grammar('start: "a" start "b" | "x"'), ["x", "aaxbb"], ["axbb", "ab", ""]),
        (Grammar('root ::= "a" root "b" | "x"'), ["x", "aaxbb"], ["axbb", "ab", ""]),
    ],
)
def test_the_language_is_what_was_asked_for(
    compiler: ConstraintCompiler, constraint: Constraint, taken: list[str], refused: list[str]
) -> None:
    matcher = compiler.compile(constraint).matcher()
    assert [text for text in taken if not takes(matcher, TOKENIZER, text)] == []
    assert [text for text in refused if takes(matcher, TOKENIZER, text)] == []


@pytest.mark.parametrize(
    ("constraint", "param", "message"),
    [
        (JsonSchema("{"), "constraint.schema", "is not valid JSON"),
        (JsonSchema("[]"), "constraint.schema", "a schema is an object"),
        (JsonSchema('{"const": NaN}'), "constraint.schema", "NaN is no JSON number"),
        (JsonSchema("[" * 100_000), "constraint.schema", "nested deeper than"),
        (JsonSchema('{"$ref": "#"}'), "constraint.schema", r"\$ref at #"),
        (
            JsonSchema('{"type": "array", "contains": {"type": "integer"}}'),
            "constraint.schema",
            "contains at #/contains",
        ),
        (Regex("(?=a)b"), "constraint", "look-around"),
        (Regex("("), "constraint", "cannot be enforced"),
        (Grammar("hello"), "constraint.text", "holds no rule"),
        (Grammar('start: "a'), "constraint", "lexer error"),
        (Grammar('root ::= "a" b'), "constraint.text", "rule 'root' names 'b'"),
        (Grammar("root ::= root"), "constraint", "nothing can satisfy it"),
        (structural([Tag("<a>", Regex("("), "</a>")], ["<a>"]), "constraint", "cannot be enforced"),
    ],
)
def test_what_cannot_be_enforced_is_refused_by_name(
    compiler: ConstraintCompiler, constraint: Constraint, param: str, message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message) as refused:
        compiler.compile(constraint)
    assert refused.value.param == param
    assert len(refused.value.message) < 500


def hostile() -> dict[str, Constraint]:
    def nested(levels: int) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "integer"}
        for _ in range(levels):
            schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
        return schema

    return {
        "a million values": JsonSchema(json.dumps({"enum": [f"v{number}" for number in range(10**6)]})),
        "twenty thousand values": JsonSchema(json.dumps({"enum": list(range(20_000))})),
        "a megabyte": JsonSchema(json.dumps({"description": "x" * 10**6})),
        "deep": JsonSchema(json.dumps(nested(60))),
        "doubling": Grammar(
            "root ::= a0\n" + "\n".join(f"a{i} ::= a{i + 1} a{i + 1}" for i in range(40)) + '\na40 ::= "z"'
        ),
        "long choice": Choice(tuple(map(str, range(MAX_CHOICES + 1)))),
        "long pattern": Regex("a" * 70_000),
        "long grammar": Grammar("start: " + " | ".join(f'"v{number}"' for number in range(20_000))),
        "crossing": JsonSchema(
            json.dumps(
                {
                    "allOf": [{"anyOf": [{"required": [f"a{i}"]}, {"required": [f"b{i}"]}]} for i in range(14)],
                    "type": "object",
                }
            )
        ),
    }


@pytest.mark.parametrize("name", list(hostile()))
def test_hostile_constraints_are_refused(compiler: ConstraintCompiler, name: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        compiler.compile(hostile()[name])
    assert refused.value.param is not None and refused.value.param.startswith("constraint")


@pytest.mark.parametrize(
    "constraint",
    [
        Regex("((a{1,1000}){1,1000}){1,1000}"),
        Grammar('root ::= ((("a" | r){1,1000}){1,1000}){1,1000}\nr ::= "b" r "c" | "b"'),
        # Rules in a long chain: on a usual stack this would end the process.
        Grammar("start: r0\n" + "\n".join(f'r{i}: "x" r{i + 1}?' for i in range(5000)) + '\nr5000: "z"'),
    ],
)
def test_large_repetitions_and_long_chains_are_no_trouble(compiler: ConstraintCompiler, constraint: Constraint) -> None:
    matcher = compiler.compile(constraint).matcher()
    assert matcher.try_consume(list(b"xxx")) == 3 or matcher.try_consume(list(b"aaa")) == 3


def test_results_and_refusals_are_kept_by_content(compiler: ConstraintCompiler) -> None:
    first = compiler.compile(Regex("kept by content"))
    hits = compiler.stats.hits
    assert compiler.compile(Regex("kept by content")) is first
    assert compiler.stats.hits == hits + 1
    messages = []
    for _ in range(2):
        with pytest.raises(InvalidRequest) as refused:
            compiler.compile(Regex("(not kept"))
        messages.append(refused.value.message)
    assert messages[0] == messages[1] and compiler.stats.hits == hits + 2
    # One kind of constraint is not another one with the same text.
    assert compiler.compile(Choice(("kept by content",))) is not first


def test_many_threads_share_one_compilation(compiler: ConstraintCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_, calls, gate = ConstraintCompiler._compile, [], threading.Event()

    def slow(self: ConstraintCompiler, constraint: Constraint) -> Any:
        calls.append(constraint)
        assert gate.wait(60)
        return compile_(self, constraint)

    monkeypatch.setattr(ConstraintCompiler, "_compile", slow)
    results: list[Any] = []
    threads = [threading.Thread(target=lambda: results.append(compiler.compile(Regex("shared")))) for _ in range(5)]
    for thread in threads:
        thread.start()
    while not calls:
        time.sleep(0.001)
    gate.set()
    for thread in threads:
        thread.join()
    assert len(calls) == 1 and len(results) == 5 and len(set(map(id, results))) == 1


def test_what_takes_too_long_is_refused_and_goes_on_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = byte_compiler(seconds=0.05)
    compile_, gate = ConstraintCompiler._compile, threading.Event()

    def slow(self: ConstraintCompiler, constraint: Constraint) -> Any:
        assert gate.wait(60)
        return compile_(self, constraint)

    monkeypatch.setattr(ConstraintCompiler, "_compile", slow)
    for _ in range(2):
        with pytest.raises(InvalidRequest, match=r"not compiled within 0.05 s") as refused:
            compiler.compile(Regex("slow"))
        assert refused.value.code == "constraint_too_complex"
    gate.set()
    deadline = time.monotonic() + 60
    while compiler.stats.compiled == 0 and time.monotonic() < deadline:
        time.sleep(0.001)
    assert takes(compiler.compile(Regex("slow")).matcher(), TOKENIZER, "slow")


def test_prepare_says_where_an_end_cannot_be_promised(compiler: ConstraintCompiler) -> None:
    assert compiler.prepare(SamplingParams()) is None
    compiled = compiler.prepare(SamplingParams(constraint=Regex("[0-9]{20}"), finish_json=True))
    assert compiled is not None and len(compiled.first_way(20)) == 20
    with pytest.raises(InvalidRequest, match="no valid end was found in fewer than 20 tokens") as refused:
        compiled.first_way(19)
    assert refused.value.param == "finish_json"
    with pytest.raises(InvalidRequest, match="no valid end was found within limits"):
        compiler.prepare(SamplingParams(constraint=Regex("[0-9]{2000}"), finish_json=True))


def test_a_model_without_an_end_token_is_named() -> None:
    with pytest.raises(InvalidRequest, match="this model has no end token"):
        ConstraintCompiler(TOKENIZER, ()).compile(Regex("a"))
