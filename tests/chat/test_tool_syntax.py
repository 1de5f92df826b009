"""The constraint that each family's syntax gives, for every choice."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from radixserve.chat.generic_syntax import GenericSyntax
from radixserve.chat.hermes_syntax import HermesSyntax
from radixserve.chat.llama_syntax import LlamaSyntax
from radixserve.chat.mistral_syntax import MistralListSyntax, MistralSyntax
from radixserve.chat.tool_syntax import ToolSyntax
from radixserve.chat.tools import Toolbox, parse_tools
from radixserve.constraints import JsonSchema, StructuralTag, Tag, check_constraint

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CLOSED = {**SCHEMA, "additionalProperties": False}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "noon", "parameters": {}}},
]
SYNTAXES: list[ToolSyntax] = [HermesSyntax(), LlamaSyntax(), MistralListSyntax(), MistralSyntax(), GenericSyntax()]
BY_NAME = pytest.mark.parametrize("syntax", SYNTAXES, ids=lambda syntax: syntax.name)


def constraint(syntax: ToolSyntax, box: Toolbox) -> StructuralTag:
    made = syntax.constraint(box)
    check_constraint(made)
    assert isinstance(made, StructuralTag)
    return made


@BY_NAME
def test_choices_become_switches(syntax: ToolSyntax) -> None:
    one_tag = syntax.name == "mistral_list"  # one list holds all calls
    auto = constraint(syntax, parse_tools(TOOLS))
    assert (auto.required, auto.single) == (False, one_tag)
    assert constraint(syntax, parse_tools(TOOLS, "auto", False)).single
    required = constraint(syntax, parse_tools(TOOLS, "required"))
    assert (required.required, required.single) == (True, one_tag)
    named = constraint(syntax, parse_tools(TOOLS, {"type": "function", "function": {"name": "noon"}}))
    assert (named.required, named.single) == (True, True)
    text = repr(named)
    assert "noon" in text and "weather" not in text
    assert syntax.constraint(parse_tools(TOOLS, "none")) is None
    assert syntax.constraint(Toolbox()) is None


@BY_NAME
def test_every_tag_begins_with_a_trigger_and_is_read_as_a_call(syntax: ToolSyntax) -> None:
    for choice in ("auto", "required"):
        made = constraint(syntax, parse_tools(TOOLS, choice))
        assert all(any(tag.begin.startswith(trigger) for trigger in made.triggers) for tag in made.tags)


def test_the_family_spellings() -> None:
    box = parse_tools(TOOLS, "required")
    city, anything = (JsonSchema(json.dumps(schema), "flexible") for schema in (CLOSED, {"type": "object"}))
    assert constraint(HermesSyntax(), box).tags == (
        Tag('<tool_call>\n{"name": "weather", "arguments": ', city, "}\n</tool_call>"),
        Tag('<tool_call>\n{"name": "noon", "arguments": ', anything, "}\n</tool_call>"),
    )
    assert constraint(HermesSyntax(), box).separator == "\n"
    assert constraint(LlamaSyntax(), box).tags == (
        Tag('{"name": "weather", "parameters": ', city, "}"),
        Tag('{"name": "noon", "parameters": ', anything, "}"),
    ), "a forced call has the usual spelling only"
    auto = constraint(LlamaSyntax(), parse_tools(TOOLS))
    assert [tag.begin for tag in auto.tags if "noon" in tag.begin] == [
        '{"name": "noon", "parameters": ',
        '{"type": "function", "name": "noon", "parameters": ',
        '<|python_tag|>{"name": "noon", "parameters": ',
    ]
    assert constraint(MistralSyntax(), box).tags == (
        Tag("[TOOL_CALLS]weather[ARGS]", city, ""),
        Tag("[TOOL_CALLS]noon[ARGS]", anything, ""),
    )
    compact = JsonSchema(json.dumps(CLOSED), "compact")
    assert constraint(GenericSyntax(), box).tags[0] == Tag(
        '<tool_call>{"name": "weather", "arguments": ', compact, "}</tool_call>"
    )


def test_a_family_that_takes_one_call_gets_one() -> None:
    assert constraint(LlamaSyntax(several=False), parse_tools(TOOLS)).single


def test_the_list_of_calls() -> None:
    """Mistral's older way is one JSON document; its schema accepts lists of right calls and nothing else."""
    (tag,) = constraint(MistralListSyntax(), parse_tools(TOOLS)).tags
    assert isinstance(tag.content, JsonSchema) and (tag.begin, tag.end) == ("[TOOL_CALLS]", "")
    validator = jsonschema.Draft202012Validator(json.loads(tag.content.schema))
    weather = {"name": "weather", "arguments": {"city": "Paris"}}
    assert validator.is_valid([weather, {"name": "noon", "arguments": {"x": 1}}])
    for wrong in ([], [{"name": "weather", "arguments": {}}], [{"name": "noon"}], [{"name": "x", "arguments": {}}]):
        assert not validator.is_valid(wrong)
    (tag,) = constraint(MistralListSyntax(), parse_tools(TOOLS, "auto", False)).tags
    assert isinstance(tag.content, JsonSchema)
    assert not jsonschema.Draft202012Validator(json.loads(tag.content.schema)).is_valid([weather, weather])


def test_references_in_the_list_of_calls() -> None:
    node = {"properties": {"next": {"$ref": "#/$defs/node"}, "v": {"type": "integer"}}}
    schema = {"$defs": {"node": node}, "type": "object", "properties": {"root": {"$ref": "#/$defs/node"}}}
    tools = [{"type": "function", "name": "f", "parameters": schema}]
    (tag,) = constraint(MistralListSyntax(), parse_tools(tools)).tags
    assert isinstance(tag.content, JsonSchema)
    validator = jsonschema.Draft202012Validator(json.loads(tag.content.schema))
    assert validator.is_valid([{"name": "f", "arguments": {"root": {"next": {"v": 1}}}}])
    assert not validator.is_valid([{"name": "f", "arguments": {"root": {"next": {"v": "x"}}}}])


@BY_NAME
def test_tags_lead_back_to_their_tools(syntax: ToolSyntax) -> None:
    for choice in ("auto", "required"):
        box = parse_tools(TOOLS, choice)
        for index, tag in enumerate(constraint(syntax, box).tags):
            tool = syntax.tool_of_tag(box, index)
            assert tool is None if syntax.name == "mistral_list" else tool is not None and tool.name in tag.begin
    named = parse_tools(TOOLS, {"type": "function", "function": {"name": "noon"}})
    tool = syntax.tool_of_tag(named, 0)
    assert tool is not None and (tool.name, tool.place) == ("noon", "tools[1].function")


def test_only_what_is_used_is_said() -> None:
    box = parse_tools(TOOLS, "required", False)
    made = constraint(LlamaSyntax(), box)
    assert made.triggers == ('{"name": "',) and made.separator == ""
    assert constraint(LlamaSyntax(), parse_tools(TOOLS)).separator == "", "free text parts calls by itself"
