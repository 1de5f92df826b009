"""How a model family writes tool calls: the one place from which both what is enforced and what is parsed are taken."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import msgspec

from radixserve.chat.call_parser import CallPatterns
from radixserve.chat.call_pattern import Hole, Pattern
from radixserve.chat.tools import Tool, Toolbox
from radixserve.constraints import JsonSchema, StructuralTag, Tag, TagContent

# A small model that must call something may repeat itself; where it has to end is written into the constraint.
MAX_CALLS = 16


@dataclass(frozen=True, slots=True)
class ToolSyntax(ABC):
    """A family's way to write calls.

    ``several``: whether the family's template takes more than one call in a message; where it does not, one call is
    all that an answer may hold, or it could not be sent back. ``markers``: texts that open and close calls and that may be special
    tokens of a vocabulary; ``patterns``: what a `CallParser` looks for.
    """

    several: bool = True
    name: ClassVar[str]
    markers: ClassVar[tuple[str, ...]]
    patterns: ClassVar[CallPatterns]

    def constraint(self, toolbox: Toolbox, otherwise: TagContent | None = None) -> StructuralTag | None:
        """What the output must look like, None where anything may come.

        With ``auto`` text is free until a call's opening, then one of the allowed names and arguments of that
        tool's schema are enforced; with ``required`` the output is calls from its first token on, at most `MAX_CALLS`.
        ``otherwise``: with
        ``auto``, the output is calls from its first token on, or this.
        """
        if not toolbox.active:
            return None
        single = not (toolbox.parallel and self.several)
        if otherwise is None or toolbox.forced:
            return self._constraint(toolbox, single=single)
        calls = self._constraint(dataclasses.replace(toolbox, mode="required"), single=single)
        return msgspec.structs.replace(calls, otherwise=otherwise)

    @abstractmethod
    def tool_of_tag(self, toolbox: Toolbox, index: int) -> Tool | None:
        """The tool that tag ``index`` of `constraint` is for, None if it is for several."""

    @abstractmethod
    def example(self, tool: Tool, arguments: str) -> str:
        """A call of ``tool`` as the family writes it."""

    @abstractmethod
    def _constraint(self, toolbox: Toolbox, *, single: bool) -> StructuralTag:
        """The constraint of an active toolbox; ``single`` allows one call at most."""


@dataclass(frozen=True, slots=True)
class TaggedSyntax(ToolSyntax):
    """A syntax in which every call stands by itself, between fixed texts."""

    triggers: ClassVar[tuple[str, ...]]
    separator: ClassVar[str] = ""

    def _constraint(self, toolbox: Toolbox, *, single: bool) -> StructuralTag:
        tags = tuple(tag for tool in toolbox.allowed for tag in self._spellings(tool, toolbox))
        return StructuralTag(
            tags=tags,
            triggers=tuple(item for item in self.triggers if any(tag.begin.startswith(item) for tag in tags)),
            required=toolbox.forced,
            single=single,
            separator=self.separator if toolbox.forced and not single else "",
            most=MAX_CALLS if toolbox.forced and not single else 0,
        )

    def tool_of_tag(self, toolbox: Toolbox, index: int) -> Tool | None:
        """The tool whose spelling the tag is."""
        tools = [tool for tool in toolbox.allowed for _ in self._spellings(tool, toolbox)]
        return tools[index]

    def _spellings(self, tool: Tool, toolbox: Toolbox) -> Sequence[Tag]:
        # Where a call is forced, the family's usual spelling is; in free text whichever the model begins.
        return self.tags(tool)[:1] if toolbox.forced else self.tags(tool)

    def example(self, tool: Tool, arguments: str) -> str:
        """A call in the usual spelling."""
        tag = self.tags(tool)[0]
        return f"{tag.begin}{arguments}{tag.end}"

    @abstractmethod
    def tags(self, tool: Tool) -> Sequence[Tag]:
        """A call of ``tool`` in every spelling that is enforced, the usual one first."""


def json_call(key: str) -> Pattern:
    """The pattern of a call written as a JSON object, up to its arguments under ``key``."""
    space = Hole.SPACE
    before = ("{", space, '"name"', space, ":", space, '"', Hole.NAME, '"', space, ",", space)
    return (*before, f'"{key}"', space, ":")


def flexible(tool: Tool) -> JsonSchema:
    """The tool's arguments with the white space that the model wants, since templates write JSON with some."""
    return JsonSchema(tool.schema_text, whitespace="flexible")
