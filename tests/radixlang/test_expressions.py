"""Expressions: how they add up, and what is refused where it is written."""

from __future__ import annotations

from typing import Any

import pytest

import radixlang as rl
from radixlang.expressions import Constant, Gen, Row, Select, atoms
from radixlang.sampling import Sampling


def test_expressions_add_up_in_order() -> None:
    a, b = rl.gen("a"), rl.gen("b")
    row = "one" + a + "two" + b + "" + ("three" + rl.user("four"))
    names = [part.text if isinstance(part, Constant) else type(part).__name__ for part in atoms(row)]
    assert names == ["one", "Gen", "two", "Gen", "three", "RoleBegin", "four", "RoleEnd"]
    assert isinstance(row, Row)


def test_expressions_are_values() -> None:
    row = "a" + rl.gen("x")
    longer = row + "b"
    assert len(list(atoms(row))) == 2
    assert len(list(atoms(longer))) == 3
    assert rl.gen("x", 3, stop="\n") == rl.gen("x", stop=["\n"], max_new_tokens=3)


@pytest.mark.parametrize("other", [5, None, ["a"], b"a"])
def test_what_cannot_be_added(other: Any) -> None:
    with pytest.raises(rl.InvalidProgram, match=r"s \+=: .*str\(\)"):
        rl.gen("x") + other


def test_sampling_fields_in_all_spellings() -> None:
    gen = rl.gen(
        "x",
        7,
        stop=["a", "b"],
        stop_regex="c+",
        stop_token_ids=[3],
        temperature=0.0,
        top_p=0.5,
        top_k=4,
        min_p=0.1,
        frequency_penalty=0.2,
        presence_penalty=0.3,
        repetition_penalty=1.1,
        logit_bias={5: -1.0},
        ignore_eos=True,
        skip_special_tokens=False,
        min_tokens=1,
        seed=9,
        n=2,
        return_logprob=True,
        top_logprobs_num=2,
        finish_json=True,
    )
    assert isinstance(gen, Gen)
    assert gen.sampling == Sampling(
        max_tokens=7,
        stop=("a", "b"),
        stop_regex=("c+",),
        stop_token_ids=(3,),
        temperature=0.0,
        top_p=0.5,
        top_k=4,
        min_p=0.1,
        frequency_penalty=0.2,
        presence_penalty=0.3,
        repetition_penalty=1.1,
        logit_bias={5: -1.0},
        ignore_eos=True,
        skip_special_tokens=False,
        min_tokens=1,
        seed=9,
        n=2,
        logprobs=2,
        finish_json=True,
    )
    plain = rl.gen("x", return_logprob=True)
    assert isinstance(plain, Gen) and plain.sampling.logprobs == 0
    nothing = rl.gen("x", temperature=None, return_logprob=False)
    assert isinstance(nothing, Gen) and nothing.sampling == Sampling()


@pytest.mark.parametrize(
    ("arguments", "param"),
    [
        ({"heat": 1}, "heat"),
        ({"logprob_start_len": 0}, "logprob_start_len"),
        ({"max_tokens": 1, "max_new_tokens": 2}, "max_new_tokens"),
        ({"top_logprobs_num": 1}, "top_logprobs_num"),
        ({"return_logprob": True, "logprobs": 1}, "return_logprob"),
        ({"n": 0}, "n"),
        ({"n": "3"}, "n"),
        ({"heal": "no"}, "heal"),
        ({"choices": ["a"], "heal": 0}, "heal"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_new_tokens": 2.5}, "max_new_tokens"),
        ({"name": 3}, "name"),
        ({"regex": "a", "dtype": int}, "regex"),
        ({"regex": "a", "grammar": "b"}, "grammar"),
        ({"choices": ["a"], "max_tokens": 3}, "max_tokens"),
        ({"choices": ["a"], "n": 3}, "n"),
        ({"choices": ["a"], "temperature": 0.5}, "temperature"),
        ({"choices": []}, "choices"),
        ({"choices": "abc"}, "choices"),
        ({"choices": ["a", ""]}, "choices"),
        ({"choices": ["a", 1]}, "choices"),
        ({"choices": ["a", "b", "a"]}, "choices"),
        ({"choices_method": rl.token_length_normalized}, "choices_method"),
        ({"choices": ["a"], "choices_method": "greedy_token_selection"}, "choices_method"),
        ({"json_schema": "{"}, "json_schema"),
        ({"json_schema": "[1]"}, "json_schema"),
    ],
)
def test_what_is_refused_by_name(arguments: dict[str, Any], param: str) -> None:
    with pytest.raises(rl.InvalidProgram) as caught:
        rl.gen(**arguments)
    assert caught.value.param == param


def test_an_expression_inside_of_a_formatted_text_is_refused() -> None:
    expr = rl.gen("x")
    for part in (expr, expr + "b", rl.user("c")):
        with pytest.raises(rl.InvalidProgram, match="formatted text"):
            f"a {part} d"
        assert repr(part) == f"{part!r}"


def test_select_by_position() -> None:
    assert rl.select("x", ["a", "b"], 0.0, rl.greedy_token_selection) == Select(
        "x", ("a", "b"), rl.greedy_token_selection
    )
    with pytest.raises(rl.InvalidProgram, match="choices"):
        rl.select("x")
