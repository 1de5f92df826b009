"""The calls of the Hermes and Qwen families.

::

    <tool_call>
    {"name": "get_weather", "arguments": {"city": "Paris"}}
    </tool_call>
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from radixserve.chat.call_parser import CallPatterns
from radixserve.chat.call_pattern import Hole
from radixserve.chat.tool_syntax import TaggedSyntax, flexible, json_call
from radixserve.chat.tools import Tool
from radixserve.constraints import Tag

OPEN = "<tool_call>"
CLOSE = "</tool_call>"


@dataclass(frozen=True, slots=True)
class HermesSyntax(TaggedSyntax):
    """A JSON object between two tags, each call on its own lines."""

    name: ClassVar[str] = "hermes"
    markers: ClassVar[tuple[str, ...]] = (OPEN, CLOSE)
    patterns: ClassVar[CallPatterns] = CallPatterns(
        openings=((OPEN, Hole.SPACE, *json_call("arguments")),),
        closings=((Hole.SPACE, "}", Hole.SPACE, CLOSE),),
    )
    triggers: ClassVar[tuple[str, ...]] = (OPEN,)
    separator: ClassVar[str] = "\n"

    def tags(self, tool: Tool) -> Sequence[Tag]:
        """The one spelling that the family was trained on."""
        return (Tag(f'{OPEN}\n{{"name": "{tool.name}", "arguments": ', flexible(tool), f"}}\n{CLOSE}"),)
