"""The two ways in which the Mistral family writes calls.

::

    [TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Paris"}}]       the older: one list of all calls
    [TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}                              the newer: call after call
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from radixserve.chat.argument_schema import embedded
from radixserve.chat.call_parser import CallPatterns
from radixserve.chat.call_pattern import Hole
from radixserve.chat.tool_syntax import MAX_CALLS, TaggedSyntax, ToolSyntax, flexible, json_call
from radixserve.chat.tools import Tool, Toolbox
from radixserve.constraints import JsonSchema, StructuralTag, Tag

CALLS = "[TOOL_CALLS]"
ARGUMENTS = "[ARGS]"


@dataclass(frozen=True, slots=True)
class MistralListSyntax(ToolSyntax):
    """One JSON list of all calls."""

    name: ClassVar[str] = "mistral_list"
    markers: ClassVar[tuple[str, ...]] = (CALLS,)
    patterns: ClassVar[CallPatterns] = CallPatterns(
        openings=((CALLS, Hole.SPACE, "[", Hole.SPACE, *json_call("arguments")),),
        closings=((Hole.SPACE, "}", Hole.SPACE, "]"),),
        followings=((Hole.SPACE, "}", Hole.SPACE, ",", Hole.SPACE, *json_call("arguments")),),
    )

    def tool_of_tag(self, toolbox: Toolbox, index: int) -> Tool | None:
        """The one tag is for all tools."""
        return toolbox.allowed[0] if len(toolbox.allowed) == 1 else None

    def example(self, tool: Tool, arguments: str) -> str:
        """A list of one call."""
        return f'{CALLS}[{{"name": "{tool.name}", "arguments": {arguments}}}]'

    def _constraint(self, toolbox: Toolbox, *, single: bool) -> StructuralTag:
        calls = [
            _call_schema(tool, f"#/items/anyOf/{index}/properties/arguments")
            for index, tool in enumerate(toolbox.allowed)
        ]
        most = 1 if single else MAX_CALLS
        schema: dict[str, Any] = {"type": "array", "items": {"anyOf": calls}, "minItems": 1, "maxItems": most}
        content = JsonSchema(json.dumps(schema, ensure_ascii=False), whitespace="flexible")
        # The list holds all calls, so there is never a second one.
        return StructuralTag((Tag(CALLS, content, ""),), (CALLS,), required=toolbox.forced, single=True)


@dataclass(frozen=True, slots=True)
class MistralSyntax(TaggedSyntax):
    """A name and its arguments, each behind a special token."""

    name: ClassVar[str] = "mistral"
    markers: ClassVar[tuple[str, ...]] = (CALLS, ARGUMENTS)
    patterns: ClassVar[CallPatterns] = CallPatterns(
        openings=((CALLS, Hole.SPACE, Hole.NAME, ARGUMENTS),),
        closings=((),),
    )
    triggers: ClassVar[tuple[str, ...]] = (CALLS,)

    def tags(self, tool: Tool) -> Sequence[Tag]:
        """The one spelling."""
        return (Tag(f"{CALLS}{tool.name}{ARGUMENTS}", flexible(tool), ""),)


def _call_schema(tool: Tool, pointer: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"name": {"const": tool.name}, "arguments": embedded(tool.schema, pointer)},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }
