"""What a parser makes of generated text, piece by piece, and the whole message at its end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """The next characters of the answer; never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """The next characters of the reasoning; never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """The next piece of call number ``index`` (from 0, in order).

    A call's first piece has its ``id`` and ``name`` and no arguments; the later ones have only ``arguments``, the
    characters that the model wrote.
    """

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


Event = ContentDelta | ReasoningDelta | ToolCallDelta


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A whole call; ``arguments`` is the JSON text that the model wrote, cut off where the output was."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ParsedMessage:
    """A whole answer. ``content`` is None where there are only calls, ``reasoning`` where there was none."""

    content: str | None
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()


def collect(events: Iterable[Event]) -> ParsedMessage:
    """The message that all events of one parser make together."""
    content: list[str] = []
    reasoning: list[str] = []
    heads: list[tuple[str, str]] = []
    arguments: list[list[str]] = []
    for event in events:
        if isinstance(event, ContentDelta):
            content.append(event.text)
        elif isinstance(event, ReasoningDelta):
            reasoning.append(event.text)
        else:
            if event.id is not None and event.name is not None:
                heads.append((event.id, event.name))
                arguments.append([])
            arguments[event.index].append(event.arguments)
    calls = tuple(ToolCall(*head, "".join(pieces)) for head, pieces in zip(heads, arguments, strict=True))
    text = "".join(content)
    return ParsedMessage(text if text or not calls else None, "".join(reasoning) or None, calls)
