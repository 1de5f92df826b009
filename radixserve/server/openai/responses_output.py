"""An answer written down as items, with the events that tell a stream's reader of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from radixserve.chat.events import ContentDelta, Event, ReasoningDelta, ToolCallDelta
from radixserve.messages import TokenLogprob
from radixserve.server.openai.answers import TokenLogprobEntry
from radixserve.server.openai.responses_answers import (
    OutputCall,
    OutputItem,
    OutputMessage,
    OutputReasoning,
    OutputText,
    ReasoningText,
    ResponseEvent,
)
from radixserve.server.service import new_id

_PREFIXES = {"message": "msg_", "reasoning": "rs_", "function_call": "fc_"}


@dataclass(slots=True)
class _Open:
    """The item that is being written. ``call``: the first piece of a call, which names it."""

    kind: str
    id: str
    pieces: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprobEntry] = field(default_factory=list)
    call: ToolCallDelta | None = None


class OutputWriter:
    """Takes the pieces of one answer in order. ``items`` are those that are finished; what is handed out never changes.

    ``entries``: how log-probabilities are shown, None where they are not. Events are numbered in the order in which they
    are made.
    """

    def __init__(self, entries: Callable[[Sequence[TokenLogprob]], list[TokenLogprobEntry]] | None = None) -> None:
        self.items: list[OutputItem] = []
        self._entries = entries
        self._open: _Open | None = None
        self._number = 0

    def event(self, kind: str, **fields: Any) -> ResponseEvent:
        """The next event."""
        event = ResponseEvent(type=kind, sequence_number=self._number, **fields)
        self._number += 1
        return event

    def write(self, parts: Sequence[Event], logprobs: Sequence[TokenLogprob]) -> list[ResponseEvent]:
        """The next piece. ``logprobs`` of its tokens go to the first text in it; those of reasoning and calls nowhere."""
        events: list[ResponseEvent] = []
        for part in parts:
            if isinstance(part, ToolCallDelta):
                if part.id is not None:
                    events += self._switch("function_call", part)
                if part.arguments:
                    events.append(self._delta("response.function_call_arguments.delta", part.arguments))
            elif isinstance(part, ReasoningDelta):
                events += self._switch("reasoning")
                events.append(self._delta("response.reasoning_text.delta", part.text, content_index=0))
            else:
                events += self._text(part, logprobs)
                logprobs = ()
        return events

    def finish(self, *, complete: bool) -> list[ResponseEvent]:
        """End the answer; the last item of one that is not ``complete`` is not either.

        A complete answer without text and calls has an empty text: clients read what the model said.
        """
        events: list[ResponseEvent] = []
        if complete and not self._said_something():
            events += self._switch("message")
        return events + self._close("completed" if complete else "incomplete")

    def _said_something(self) -> bool:
        """Whether there is text or a call, be it the open item."""
        opened = self._open is not None and self._open.kind != "reasoning"
        return opened or any(not isinstance(item, OutputReasoning) for item in self.items)

    def _text(self, part: ContentDelta, logprobs: Sequence[TokenLogprob]) -> list[ResponseEvent]:
        text = part.text
        if self._open is not None and self._open.kind == "function_call":
            # White space between a call and the text behind it belongs to neither.
            text = text.lstrip()
            if not text:
                return []
        events = self._switch("message")
        entries = self._entries(logprobs) if self._entries is not None else []
        assert self._open is not None, "it was just opened"
        self._open.logprobs += entries
        events.append(self._delta("response.output_text.delta", text, content_index=0, logprobs=entries))
        return events

    def _delta(self, kind: str, text: str, **fields: Any) -> ResponseEvent:
        assert self._open is not None, "a delta belongs to an item"
        self._open.pieces.append(text)
        return self.event(kind, item_id=self._open.id, output_index=len(self.items), delta=text, **fields)

    # ---------------------------------------------------------------- items

    def _switch(self, kind: str, call: ToolCallDelta | None = None) -> list[ResponseEvent]:
        """Make sure that an item of that kind is open, for a call always a new one."""
        if call is None and self._open is not None and self._open.kind == kind:
            return []
        events = self._close("completed")
        opened = self._open = _Open(kind, new_id(_PREFIXES[kind]), call=call)
        index = len(self.items)
        item = _item(opened, "in_progress", [])
        events.append(self.event("response.output_item.added", output_index=index, item=item))
        if call is None:
            part = _part(opened)
            events.append(
                self.event(
                    "response.content_part.added", item_id=opened.id, output_index=index, content_index=0, part=part
                )
            )
        return events

    def _close(self, status: str) -> list[ResponseEvent]:
        """End the open item, if there is one."""
        opened, self._open = self._open, None
        if opened is None:
            return []
        place: dict[str, Any] = {"item_id": opened.id, "output_index": len(self.items)}
        text = "".join(opened.pieces)
        part = _part(opened)
        if opened.call is not None:
            kind = "response.function_call_arguments.done"
            events = [self.event(kind, **place, name=opened.call.name, arguments=text)]
        else:
            place["content_index"] = 0
            if isinstance(part, OutputText):
                done = self.event("response.output_text.done", **place, text=text, logprobs=part.logprobs)
            else:
                done = self.event("response.reasoning_text.done", **place, text=text)
            events = [done, self.event("response.content_part.done", **place, part=part)]
        item = _item(opened, status, [part])
        events.append(self.event("response.output_item.done", output_index=len(self.items), item=item))
        self.items.append(item)
        return events


def _part(opened: _Open) -> OutputText | ReasoningText:
    text = "".join(opened.pieces)
    if opened.kind == "reasoning":
        return ReasoningText(text=text)
    return OutputText(text=text, logprobs=list(opened.logprobs))


def _item(opened: _Open, status: str, content: list[Any]) -> OutputItem:
    if opened.call is not None:
        return OutputCall(
            id=opened.id,
            status=status,
            call_id=opened.call.id or "",
            name=opened.call.name or "",
            arguments="".join(opened.pieces),
        )
    kind = OutputReasoning if opened.kind == "reasoning" else OutputMessage
    return kind(id=opened.id, status=status, content=content)
