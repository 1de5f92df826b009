"""Tools and the choice among them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from radixserve.chat.tools import MAX_TOOLS, Toolbox, parse_tools
from radixserve.errors import InvalidRequest, UnsupportedFeature

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {"name": "get_weather", "description": "Weather.", "parameters": SCHEMA, "strict": True},
}
TIME: dict[str, Any] = {"type": "function", "name": "get_time", "description": None, "parameters": None}


def names(box: Toolbox) -> list[str]:
    return [tool.name for tool in box.allowed]


def test_both_shapes() -> None:
    box = parse_tools([WEATHER, TIME])
    assert box.definitions == [
        {"type": "function", "function": {"name": "get_weather", "description": "Weather.", "parameters": SCHEMA}},
        {"type": "function", "function": {"name": "get_time"}},
    ], "templates see what was given, without nulls and without what models were not trained on"
    assert [tool.strict for tool in box.tools] == [True, None]


def test_schemas_are_of_objects() -> None:
    def schema(**function: Any) -> Any:
        return json.loads(parse_tools([{"type": "function", "name": "f", **function}]).tools[0].schema_text)

    assert schema(parameters=SCHEMA) == {**SCHEMA, "additionalProperties": False}
    assert schema() == {"type": "object", "properties": {}, "additionalProperties": False}, "no parameters: takes none"
    assert schema(parameters={}) == {"type": "object"}
    assert schema(parameters={"$ref": "#/$defs/a", "$defs": {"a": SCHEMA}})["type"] == "object"


def test_choices() -> None:
    tools = [WEATHER, TIME]
    assert parse_tools(tools) == parse_tools(tools, "auto", True)
    auto = parse_tools(tools)
    assert (auto.mode, names(auto), auto.parallel, auto.active, auto.forced) == (
        "auto",
        ["get_weather", "get_time"],
        True,
        True,
        False,
    )
    none = parse_tools(tools, "none")
    assert (none.mode, none.active, len(none.tools)) == ("none", False, 2)
    required = parse_tools(tools, "required", False)
    assert (required.mode, names(required), required.parallel) == ("required", ["get_weather", "get_time"], False)
    for choice in ({"type": "function", "function": {"name": "get_time"}}, {"type": "function", "name": "get_time"}):
        named = parse_tools(tools, choice)
        assert (named.mode, names(named), named.parallel, named.named) == ("required", ["get_time"], False, True)
        assert len(named.tools) == 2, "the prompt shows all of them"


def test_allowed_tools() -> None:
    inner = {"mode": "required", "tools": [{"type": "function", "function": {"name": "get_time"}}]}
    nested = parse_tools([WEATHER, TIME], {"type": "allowed_tools", "allowed_tools": inner})
    flat = parse_tools(
        [WEATHER, TIME],
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get_time"}]},
    )
    assert nested == flat
    assert (nested.mode, names(nested), nested.parallel, len(nested.tools)) == ("required", ["get_time"], True, 2)


def test_no_tools() -> None:
    nothing: list[Any] = [None, []]
    for tools in nothing:
        for choice in (None, "none", "auto"):
            box = parse_tools(tools, choice, None)
            assert not box.active and box.tools == ()
    with pytest.raises(InvalidRequest) as caught:
        parse_tools([], "required")
    assert caught.value.param == "tool_choice"


@pytest.mark.parametrize(
    ("tools", "choice", "param"),
    [
        ("f", None, "tools"),
        ([3], None, "tools[0]"),
        ([{}], None, "tools[0].type"),
        ([{"type": "function"}], None, "tools[0].name"),
        ([{"type": "function", "function": 3}], None, "tools[0].function"),
        ([{"type": "function", "function": {}}], None, "tools[0].function.name"),
        ([{"type": "function", "name": "a b"}], None, "tools[0].name"),
        ([{"type": "function", "name": "a" * 65}], None, "tools[0].name"),
        ([{"type": "function", "name": "é"}], None, "tools[0].name"),
        ([{"type": "function", "name": "f\n"}], None, "tools[0].name"),
        ([TIME, TIME], None, "tools[1].name"),
        ([TIME, {"type": "function", "function": {"name": "get_time"}}], None, "tools[1].function.name"),
        ([{**WEATHER, "x": 1}], None, "tools[0].x"),
        ([{**TIME, "x": 1}], None, "tools[0].x"),
        ([{**TIME, "description": 1}], None, "tools[0].description"),
        ([{**TIME, "strict": "yes"}], None, "tools[0].strict"),
        ([{**TIME, "parameters": []}], None, "tools[0].parameters"),
        ([{**TIME, "parameters": {"type": "array"}}], None, "tools[0].parameters.type"),
        ([{**TIME, "parameters": {"default": float("nan")}}], None, "tools[0].parameters"),
        ([{**TIME, "parameters": {"default": "\ud800"}}], None, "tools[0].parameters"),
        ([TIME], "always", "tool_choice"),
        ([TIME], 3, "tool_choice"),
        ([TIME], {"type": "function"}, "tool_choice.name"),
        ([TIME], {"type": "function", "name": "other"}, "tool_choice.name"),
        ([TIME], {"type": "function", "function": {"name": "other"}}, "tool_choice.function.name"),
        ([TIME], {"type": "allowed_tools", "allowed_tools": 3}, "tool_choice.allowed_tools"),
        ([TIME], {"type": "allowed_tools", "mode": "no", "tools": [TIME]}, "tool_choice.mode"),
        ([TIME], {"type": "allowed_tools", "mode": "auto", "tools": []}, "tool_choice.tools"),
        ([TIME], {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "x"}]}, "tool_choice.tools[0]"),
    ],
)
def test_what_is_wrong_is_named(tools: Any, choice: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_tools(tools, choice)
    assert caught.value.param == param


def test_what_is_not_done_is_named() -> None:
    for options, param in (
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [TIME], "tool_choice": {"type": "custom", "name": "x"}}, "tool_choice.type"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"function_call": "auto"}, "function_call"),
    ):
        with pytest.raises(UnsupportedFeature) as caught:
            parse_tools(**options)
        assert caught.value.param == param
    with pytest.raises(InvalidRequest, match="parallel_tool_calls"):
        parse_tools([TIME], None, "yes")
    many = [{"type": "function", "name": f"f{index}"} for index in range(MAX_TOOLS + 1)]
    with pytest.raises(InvalidRequest, match="at most"):
        parse_tools(many)


def test_deep_schemas_are_refused() -> None:
    deep: Any = {}
    for _ in range(2000):
        deep = {"properties": {"a": deep}}
    with pytest.raises(InvalidRequest, match="levels deep"):
        parse_tools([{"type": "function", "name": "f", "parameters": deep}])
