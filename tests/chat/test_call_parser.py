"""Calls in generated text, for every family and however the text is cut."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from radixserve.chat.call_parser import CallParser, new_call_id
from radixserve.chat.events import ContentDelta, Event, ToolCallDelta, collect
from radixserve.chat.generic_syntax import GenericSyntax
from radixserve.chat.hermes_syntax import HermesSyntax
from radixserve.chat.llama_syntax import LlamaSyntax
from radixserve.chat.mistral_syntax import MistralListSyntax, MistralSyntax
from radixserve.chat.tool_syntax import ToolSyntax
from radixserve.chat.tools import parse_tools
from tests.chat.pieces import CUTS, counted_ids, cut, joined, run

SYNTAXES: list[ToolSyntax] = [HermesSyntax(), LlamaSyntax(), MistralListSyntax(), MistralSyntax(), GenericSyntax()]
NAMES = ["f", "get_weather", "get_weather_2"]
TOOLS = {tool.name: tool for tool in parse_tools([{"type": "function", "name": name} for name in NAMES]).tools}
BY_NAME = pytest.mark.parametrize("syntax", SYNTAXES, ids=lambda syntax: syntax.name)


def parser(syntax: ToolSyntax) -> CallParser:
    return CallParser(syntax.patterns, NAMES, new_id=counted_ids())


def whole(syntax: ToolSyntax, text: str) -> list[Event]:
    return joined(run(parser(syntax), [text]))


def call(index: int, name: str, arguments: str) -> ToolCallDelta:
    return ToolCallDelta(index, f"call_{index}", name, arguments)


ARGUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='ab"\\{}[]<>/,:é \n', max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(alphabet='a"}', max_size=3), inner, max_size=3),
    max_leaves=6,
).map(lambda value: json.dumps({"v": value}, ensure_ascii=False))


@BY_NAME
@given(arguments=ARGUMENTS, name=st.sampled_from(NAMES), before=st.sampled_from(["", "Let me see.", "a <b> {c} [d]; "]))
def test_a_call_is_found_whole(syntax: ToolSyntax, arguments: str, name: str, before: str) -> None:
    """What the family writes as a call comes back as that call, with the arguments character for character."""
    for space in ("", "\n"):
        events = whole(syntax, f"{before}{space}{syntax.example(TOOLS[name], arguments)}{space}")
        content: list[Event] = [
            ContentDelta(before.rstrip().rstrip(";") if syntax.name == "llama" else before.rstrip())
        ]
        assert events == (content if before.strip() else []) + [call(0, name, arguments)]


PARTS = [
    *(marker for syntax in SYNTAXES for marker in syntax.markers),
    *(syntax.example(TOOLS[name], '{"a": {"b": "}\\"]"}}') for syntax in SYNTAXES for name in NAMES),
    '{"name": "',
    '{"name": "get_weather", "parameters": ',
    '{"name": "nobody", "arguments": {}}',
    '{"type": "function", "name": "f", "parameters": ',
    "get_weather",
    '"',
    "{",
    "}",
    "[",
    "]",
    ";",
    " ",
    "\n\n",
    "text",
    "<tool",
]


@BY_NAME
@given(parts=st.lists(st.sampled_from(PARTS), max_size=6), cuts=CUTS)
@example(parts=["<tool_call>", " " * 70, "{"], cuts=[11, 40, 81])
@example(parts=["[TOOL_CALLS]", "[", '{"name": "f", "arguments": {}}', ",", "{"], cuts=[1, 2, 3])
def test_pieces_do_not_matter(syntax: ToolSyntax, parts: list[str], cuts: list[int]) -> None:
    text = "".join(parts)
    expected = whole(syntax, text)
    assert joined(run(parser(syntax), cut(text, cuts))) == expected
    assert joined(run(parser(syntax), text)) == expected, "character by character"


@BY_NAME
@given(text=st.text(alphabet='<tol_ca>{"name: }[TOCALS]; \n', max_size=60), cuts=CUTS)
def test_text_without_a_call_is_content(syntax: ToolSyntax, text: str, cuts: list[int]) -> None:
    """Nothing is lost or changed of text that is no call, malformed openings included."""
    assert joined(run(parser(syntax), cut(text, cuts))) == ([ContentDelta(text)] if text else [])


@pytest.mark.parametrize(
    ("syntax", "text"),
    [
        (HermesSyntax(), '<tool_call>\n{"name": "nobody", "arguments": {}}\n</tool_call>'),
        (HermesSyntax(), '<tool_call>\n{"name": "f", "arguments": 3}\n</tool_call>'),
        (HermesSyntax(), '<tool_call>\n{"arguments": {}, "name": "f"}\n</tool_call>'),
        (HermesSyntax(), '<tool_call>\n{"name": "f", "argum'),
        (HermesSyntax(), "a <tool_call"),
        (HermesSyntax(), "a <tool_call>" + " " * 65 + '{"name": "f", "arguments": {}}'),
        (LlamaSyntax(), '{"name": "John", "age": 3}'),
        (LlamaSyntax(), '{"name": "f", "arguments": {}}'),
        (LlamaSyntax(), 'x <|python_tag|>print("hi")'),
        (MistralListSyntax(), "[TOOL_CALLS] none"),
        (MistralListSyntax(), "[TOOL_CALLS] []"),
        (MistralSyntax(), "[TOOL_CALLS]nobody[ARGS]{}"),
        (MistralSyntax(), "[TOOL_CALLS]get_weather_3[ARGS]{}"),
    ],
)
def test_malformed_syntax_becomes_content(syntax: ToolSyntax, text: str) -> None:
    assert whole(syntax, text) == [ContentDelta(text)]


def test_spellings() -> None:
    """Behind a marker of their own, calls are read with whatever white space the JSON has."""
    one = [call(0, "f", '{"a":1}')]
    assert whole(HermesSyntax(), '<tool_call>{"name":"f","arguments":{"a":1}}</tool_call>') == one
    assert (
        whole(HermesSyntax(), '\n\n<tool_call>\n { "name" : "f" ,\n"arguments" :  {"a":1} }\n\n</tool_call>\n') == one
    )
    assert whole(LlamaSyntax(), '<|python_tag|>{"name":"f","parameters":{"a":1}}') == one
    assert whole(LlamaSyntax(), '{"type": "function", "name": "f", "parameters": {"a":1}}') == one
    assert whole(MistralListSyntax(), '[TOOL_CALLS] [ {"name":"f","arguments":{"a":1}} ]') == one
    assert whole(MistralSyntax(), '[TOOL_CALLS] f[ARGS] {"a":1}') == one


def test_several_calls_and_text_between() -> None:
    two = [call(0, "f", "{}"), call(1, "get_weather", '{"x": 1}')]
    first, second = '{"name": "f", "arguments": {}}', '{"name": "get_weather", "arguments": {"x": 1}}'
    hermes = f"<tool_call>\n{first}\n</tool_call>\n<tool_call>\n{second}\n</tool_call>"
    assert whole(HermesSyntax(), hermes) == two
    assert whole(HermesSyntax(), f"{hermes}\nDone.") == [*two, ContentDelta("\nDone.")]
    between = f"<tool_call>\n{first}\n</tool_call>and <tool_call>\n{second}\n</tool_call>"
    assert whole(HermesSyntax(), between) == [two[0], ContentDelta("and"), two[1]]
    assert whole(MistralListSyntax(), f"[TOOL_CALLS] [{first}, {second}]") == two
    assert whole(MistralSyntax(), '[TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]get_weather[ARGS]{"x": 1}') == two
    llama = '{"name": "f", "parameters": {}}; {"name": "get_weather", "parameters": {"x": 1}}'
    assert whole(LlamaSyntax(), llama) == two
    assert collect(whole(HermesSyntax(), between)).content == "and"
    assert collect(whole(HermesSyntax(), hermes)).content is None


def test_cut_off_calls() -> None:
    hermes = HermesSyntax()
    opening = '<tool_call>\n{"name": "f", "arguments": {"a": '
    assert whole(hermes, opening + '"wor') == [call(0, "f", '{"a": "wor')], "the arguments so far"
    assert whole(hermes, opening + '"\\') == [call(0, "f", '{"a": "\\')]
    assert whole(hermes, opening + "1}}\n</tool_") == [call(0, "f", '{"a": 1}')], "the call is whole"
    assert whole(hermes, opening + "1}") == [call(0, "f", '{"a": 1}')]
    assert whole(hermes, opening + "1} oh") == [call(0, "f", '{"a": 1}'), ContentDelta(" oh")]
    following = '[TOOL_CALLS][{"name": "f", "arguments": {}}, {"na'
    assert whole(MistralListSyntax(), following) == [call(0, "f", "{}"), ContentDelta('}, {"na')]


def test_cut_off_openings_of_forced_calls() -> None:
    """Where the output is nothing but calls, what is left of the next one is no content."""
    one = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    for rest in ("\n", "\n<tool", '\n<tool_call>\n{"name": "f", "argu'):
        forced = CallParser(HermesSyntax().patterns, NAMES, forced=True, new_id=counted_ids())
        assert joined(run(forced, one + rest)) == [call(0, "f", "{}")]
    forced = CallParser(MistralListSyntax().patterns, NAMES, forced=True, new_id=counted_ids())
    assert joined(run(forced, '[TOOL_CALLS][{"name": "f", "arguments": {}}, {"na')) == [call(0, "f", "{}")]


def test_nothing_more_than_an_opening_is_held_back() -> None:
    stream = parser(HermesSyntax())

    def push(text: str) -> list[Any]:
        return [event.text if isinstance(event, ContentDelta) else event for event in stream.push(text)]

    assert push("Hello") == ["Hello"]
    assert push(" <") == [], "what could be a call, and the space before it"
    assert push("b> x") == [" <b> x"]
    assert push("\n") == []
    assert push("<tool_call>\n") == []
    assert push('{"name": "get_weather"') == []
    assert push(', "arguments": ') == []
    assert push('{"c') == [
        ToolCallDelta(0, "call_0", "get_weather"),
        ToolCallDelta(0, arguments='{"c'),
    ], "the name comes once, the arguments as they are written"
    assert push('": 1') == [ToolCallDelta(0, arguments='": 1')]
    assert push("}}\n</tool") == [ToolCallDelta(0, arguments="}")]
    assert push("_call>") == []
    assert push("\n") == []
    assert stream.finish() == []
    assert stream.calls == 1


def test_ids_differ() -> None:
    ids = {new_call_id() for _ in range(100)}
    assert len(ids) == 100 and all(name.startswith("call_") and len(name) == 29 for name in ids)
