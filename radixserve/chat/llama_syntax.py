"""The calls of the Llama 3 family.

::

    {"name": "get_weather", "parameters": {"city": "Paris"}}

sometimes with the special token ``<|python_tag|>`` before it, or with ``"type": "function"`` as the first entry. Nothing
closes a call but its brace. In free text, ``{"name": "`` is taken as the beginning of a call, as the family means it:
where tools are given, the model cannot write another object that begins so.
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

PYTHON_TAG = "<|python_tag|>"
_BARE = '{"name": "'
_TYPED = '{"type": "function", "name": "'
_MIDDLE = '", "parameters": '


@dataclass(frozen=True, slots=True)
class LlamaSyntax(TaggedSyntax):
    """A JSON object with ``parameters``, with nothing around it or behind a special token."""

    name: ClassVar[str] = "llama"
    markers: ClassVar[tuple[str, ...]] = (PYTHON_TAG,)
    # Without a token of its own before it, an object is a call only in the spelling that is enforced as one.
    patterns: ClassVar[CallPatterns] = CallPatterns(
        openings=(
            (_BARE, Hole.NAME, _MIDDLE),
            (_TYPED, Hole.NAME, _MIDDLE),
            (PYTHON_TAG, Hole.SPACE, *json_call("parameters")),
            # A further call, with the separator that stands between two.
            (";", Hole.SPACE, _BARE, Hole.NAME, _MIDDLE),
            (";", Hole.SPACE, _TYPED, Hole.NAME, _MIDDLE),
            (";", Hole.SPACE, PYTHON_TAG, Hole.SPACE, *json_call("parameters")),
        ),
        closings=((Hole.SPACE, "}"),),
    )
    triggers: ClassVar[tuple[str, ...]] = (_BARE, _TYPED, PYTHON_TAG)
    separator: ClassVar[str] = "; "

    def tags(self, tool: Tool) -> Sequence[Tag]:
        """The three spellings."""
        return tuple(
            Tag(f"{before}{tool.name}{_MIDDLE}", flexible(tool), "}") for before in (_BARE, _TYPED, PYTHON_TAG + _BARE)
        )
