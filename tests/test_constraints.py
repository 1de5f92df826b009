from __future__ import annotations

from typing import Any

import msgspec
import pytest

from radixserve.constraints import (
    MAX_CHOICES,
    MAX_CONSTRAINT_CHARACTERS,
    Choice,
    Constraint,
    Grammar,
    JsonObject,
    JsonSchema,
    Regex,
    StructuralTag,
    Tag,
    check_constraint,
)
from radixserve.errors import InvalidRequest
from radixserve.messages import SamplingParams

GOOD: list[Constraint] = [
    JsonSchema("{}", "flexible"),
    JsonObject(),
    Regex("a"),
    Grammar("x", "gbnf"),
    Choice(("a", "")),
    StructuralTag((Tag("<a>", JsonObject(), "</a>"), Tag("<b>", Choice(("x",)), "")), ("<a>", "<b>"), required=True),
]


@pytest.mark.parametrize("constraint", GOOD, ids=lambda item: type(item).__name__)
def test_constraints_travel_and_are_taken(constraint: Constraint) -> None:
    check_constraint(constraint)
    params = SamplingParams(constraint=constraint)
    params.validate(100)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params
    assert msgspec.json.decode(msgspec.json.encode(params), type=SamplingParams) == params
    assert hash(constraint) == hash(msgspec.msgpack.decode(msgspec.msgpack.encode(constraint), type=Constraint))


def test_lists_become_tuples_that_nobody_can_change() -> None:
    texts: Any = ["a", "b"]
    choice = Choice(texts)
    texts.append("c")
    assert choice.choices == ("a", "b")


WRONG: list[tuple[Any, str]] = [
    ("{}", "constraint"),
    (Regex(3), "constraint.pattern"),  # type: ignore[arg-type]
    (Regex("\ud800"), "constraint.pattern"),
    (JsonSchema({"type": "object"}), "constraint.schema"),  # type: ignore[arg-type]
    (JsonObject("wide"), "constraint.whitespace"),  # type: ignore[arg-type]
    (Grammar("x", "bnf"), "constraint.syntax"),  # type: ignore[arg-type]
    (Choice(()), "constraint.choices"),
    (Choice(("a", "a")), "constraint.choices"),
    (Choice(("a", 1)), "constraint.choices"),  # type: ignore[arg-type]
    (Choice(tuple(map(str, range(MAX_CHOICES + 1)))), "constraint.choices"),
    (JsonSchema(" " * (MAX_CONSTRAINT_CHARACTERS + 1)), "constraint.schema"),
    (StructuralTag((), ("a",)), "constraint.tags"),
    (StructuralTag((Tag("a", JsonObject(), "b"),), (1,)), "constraint.triggers"),  # type: ignore[arg-type]
    (StructuralTag((Tag("a", "x", "b"),), ("a",)), "constraint.tags[0].content"),  # type: ignore[arg-type]
    (StructuralTag((Tag("a", Regex("x" * 70_000), "b"),), ("a",)), "constraint.tags[0].content.pattern"),
    (StructuralTag((Tag("a", JsonObject(), "b"),), ("a",), required=1), "constraint.required"),  # type: ignore[arg-type]
    (
        StructuralTag(tuple(Tag("a", JsonSchema(" " * 2000), "b") for _ in range(300)), ("a",)),
        "constraint",
    ),
]


@pytest.mark.parametrize(("constraint", "param"), WRONG, ids=[param for _, param in WRONG])
def test_what_is_wrong_is_named(constraint: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        SamplingParams(constraint=constraint).validate(100)
    assert refused.value.param == param


def test_what_is_no_sequence_is_refused_when_it_is_made() -> None:
    with pytest.raises(InvalidRequest, match="must be a sequence, not str"):
        Choice("abc")  # type: ignore[arg-type]


def test_finish_json_needs_a_constraint() -> None:
    with pytest.raises(InvalidRequest, match="finish_json: needs a constraint"):
        SamplingParams(finish_json=True).validate(100)
