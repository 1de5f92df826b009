"""Typed variables: the constraint that makes an output one of the type, and the value that is read."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import msgspec
import pydantic
import pytest

import radixlang as rl
from radixlang import FakeBackend, ProgramState
from radixlang.constraints import Choice, Grammar, JsonSchema, Regex
from radixlang.typed import closed, typed


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Point(msgspec.Struct):
    x: int
    y: int = 0


@dataclass
class Line:
    start: Point
    end: Point
    label: str | None


class Person(TypedDict):
    name: str
    age: int


class Pair(NamedTuple):
    left: int
    right: str


class Pydantic:
    """What radixlang uses of a pydantic model; there is no need of the package."""

    def __init__(self, content: Any) -> None:
        self.content = content

    @classmethod
    def model_json_schema(cls) -> dict[str, Any]:
        return {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}

    @classmethod
    def model_validate_json(cls, text: str) -> Pydantic:
        return cls(json.loads(text))


def value(answer: str, expr: rl.Expr) -> tuple[Any, FakeBackend]:
    backend = FakeBackend(answer)

    @rl.function
    def program(s: ProgramState) -> None:
        s += "Q" + expr

    return program.run(backend=backend)["x"], backend


@pytest.mark.parametrize(
    ("dtype", "answer", "expected"),
    [
        (int, "about -42 or so", -42),
        (float, "it is 2.5e3 m", 2500.0),
        (bool, "surely True", True),
        (bool, "no: False", False),
        (str, 'say "so\\n" now', "so\n"),
        (Literal["yes", "no"], "I say no", "no"),
        (Literal[1, 22], "the 22nd", 22),
        (Color, "blue it is", Color.BLUE),
        (Level, "2", Level.HIGH),
        (list[int], "take [1, 2, 3]", [1, 2, 3]),
        (list[Color], '["red"]', [Color.RED]),
        (dict[str, int], '{"a": 1}', {"a": 1}),
        (int | None, "null", None),
        (Point, '{"x": 1, "y": 2}', Point(1, 2)),
        (Point, '{"x": 1}', Point(1, 0)),
        (Line, '{"start": {"x": 1}, "end": {"x": 2}, "label": null}', Line(Point(1), Point(2), None)),
        (Person, '{"name": "A", "age": 3}', {"name": "A", "age": 3}),
        (Annotated[int, msgspec.Meta(ge=0)], "7", 7),
    ],
)
def test_values(dtype: Any, answer: str, expected: Any) -> None:
    got, _ = value(answer, rl.gen("x", dtype=dtype))
    assert got == expected
    assert type(got) is type(expected)


def test_a_named_tuple_and_a_pydantic_model() -> None:
    assert value('[1, "a"]', rl.gen("x", dtype=Pair))[0] == Pair(1, "a")
    assert value('so {"a": 5}', rl.gen("x", dtype=Pydantic))[0].content == {"a": 5}


class Leaf(pydantic.BaseModel):
    size: int


class Plant(pydantic.BaseModel):
    name: str
    leaf: Leaf
    leaves: list[Leaf] = []


class Open(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")


@pytest.mark.parametrize(
    ("dtype", "answer", "expected"),
    [
        (Plant, '{"name": "A", "leaf": {"size": 1}}', Plant(name="A", leaf=Leaf(size=1))),
        (list[Leaf], '[{"size": 1}]', [Leaf(size=1)]),
        (dict[str, Leaf | None], '{"a": {"size": 1}}', {"a": Leaf(size=1)}),
    ],
)
def test_models_of_pydantic_and_types_that_are_made_of_them(dtype: Any, answer: str, expected: Any) -> None:
    assert value(answer, rl.gen("x", dtype=dtype))[0] == expected
    constraint, read = typed(dtype)
    assert isinstance(constraint, JsonSchema) and isinstance(constraint.schema, dict)
    # A small model that may write properties that nobody reads goes on with them for ever.
    leaf = constraint.schema["$defs"]["Leaf"]
    assert leaf["additionalProperties"] is False
    with pytest.raises(ValueError):
        read("[5]")


def test_an_open_model_of_pydantic_stays_open() -> None:
    constraint, _ = typed(Open)
    assert isinstance(constraint, JsonSchema) and isinstance(constraint.schema, dict)
    assert constraint.schema["additionalProperties"] is True


def test_what_pydantic_has_no_form_for_either() -> None:
    class Inner:
        pass

    for dtype in (list[Inner], Inner, dict[Leaf, Inner]):
        with pytest.raises(rl.InvalidProgram, match="has no form in JSON"):
            rl.gen("x", dtype=dtype)


def test_several_typed_samples() -> None:
    assert value("12", rl.gen("x", dtype=int, n=2))[0] == [12, 12]


def test_the_shorter_names() -> None:
    assert value("n = 5", rl.gen_int("x", 4))[0] == 5
    assert value('"a b"', rl.gen_string("x", 4))[0] == "a b"
    assert value('{"a": [1]}', rl.gen_json("x"))[0] == {"a": [1]}
    assert value('{"a": 1}', rl.gen_json("x", {"type": "object"}, 9))[0] == {"a": 1}
    assert value('{"a": 1}', rl.gen_json("x", '{"type": "object"}'))[0] == {"a": 1}
    # With gen_json everything is JSON, plain types as well.
    got, backend = value('"red"', rl.gen_json("x", Color))
    assert got is Color.RED
    call = backend.calls[0].call
    assert call is not None and isinstance(call.constraint, JsonSchema)


@pytest.mark.parametrize(
    ("expr", "constraint"),
    [
        (rl.gen("x", regex="[a-z]+"), Regex("[a-z]+")),
        (rl.gen("x", json_schema={"type": "null"}), JsonSchema({"type": "null"})),
        (rl.gen("x", json_schema='{"type": "null"}'), JsonSchema({"type": "null"})),
        (rl.gen("x", json_schema=True), JsonSchema(True)),
        (rl.gen("x", grammar='root ::= "a"'), Grammar('root ::= "a"')),
        (rl.gen("x", dtype=Color), Choice(("red", "blue"))),
        (rl.gen("x", dtype=Literal["a", 1]), Choice(("a", "1"))),
    ],
)
def test_constraints(expr: Any, constraint: object) -> None:
    assert expr.constraint == constraint


def test_the_text_of_an_untyped_constraint_is_the_variable() -> None:
    assert value("the date: 2024-01-05.", rl.gen("x", regex=r"\d{4}-\d\d-\d\d"))[0] == "2024-01-05"
    assert value('{"a":1}', rl.gen("x", json_schema={"type": "object"}))[0] == '{"a": 1}'


def test_objects_of_types_are_closed() -> None:
    constraint, _ = typed(Line)
    assert isinstance(constraint, JsonSchema) and isinstance(constraint.schema, dict)
    definitions = constraint.schema["$defs"]
    assert {name: schema["additionalProperties"] for name, schema in definitions.items()} == {
        "Line": False,
        "Point": False,
    }
    # A property may have the name of a keyword.
    schema = {"type": "object", "properties": {"default": {"type": "object", "properties": {}}}}
    assert closed(schema)["properties"]["default"]["additionalProperties"] is False
    assert closed({"default": {"type": "object", "properties": {}}}) == {
        "default": {"type": "object", "properties": {}}
    }
    # A mapping stays open.
    mapping, _ = typed(dict[str, int])
    assert isinstance(mapping, JsonSchema)
    assert mapping.schema == {"type": "object", "additionalProperties": {"type": "integer"}}


@pytest.mark.parametrize("dtype", [object(), complex, [int], {"type": "object"}, Literal[None, "a"] | complex])
def test_what_is_no_type(dtype: Any) -> None:
    with pytest.raises(rl.InvalidProgram, match="dtype"):
        rl.gen("x", dtype=dtype)


def test_patterns_of_numbers() -> None:
    import re

    from radixlang.typed import FLOAT, INT

    for text, integer, number in [
        ("0", True, True),
        ("-12", True, True),
        ("007", False, False),
        ("+1", False, False),
        ("1.50", False, True),
        ("-0.5E-3", False, True),
        ("1.", False, False),
        (".5", False, False),
        ("", False, False),
    ]:
        assert (re.fullmatch(INT, text) is not None, re.fullmatch(FLOAT, text) is not None) == (integer, number), text
