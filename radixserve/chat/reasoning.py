"""Reasoning and answer apart: what stands between ``<think>`` and ``</think>`` at the beginning of an output."""

from __future__ import annotations

from radixserve.chat.events import ContentDelta, Event, ReasoningDelta

OPEN = "<think>"
CLOSE = "</think>"


def opens_reasoning(prompt: str) -> bool:
    """Whether ``prompt`` ends inside reasoning that it has just opened, so that the output goes on with it."""
    return prompt.rstrip().endswith(OPEN)


class ReasoningSplitter:
    """Takes one output's text and gives reasoning and content.

    ``opened``: the prompt has opened the reasoning already. Reasoning is at the beginning or nowhere: a tag later on is
    text. Line breaks next to the tags belong to the syntax. Output that ends before the closing tag is all reasoning.
    However the text is cut into pieces, the joined events are the same.
    """

    def __init__(self, *, opened: bool = False) -> None:
        self._held = ""
        self._reasoning = opened
        self._content = False
        self._begun = False  # something of the present part was handed out

    def push(self, text: str) -> list[Event]:
        """Take the next piece of text; return what it makes certain."""
        return self._run(text, final=False)

    def finish(self) -> list[Event]:
        """Return the rest: no more text comes."""
        return self._run("", final=True)

    def _run(self, text: str, *, final: bool) -> list[Event]:
        self._held += text
        events: list[Event] = []
        if not self._content and not self._reasoning:
            self._open(final)
        if self._reasoning:
            self._reason(events, final)
        if self._content:
            self._answer(events)
        return events

    def _open(self, final: bool) -> None:
        """At the very beginning: does the output open with reasoning?"""
        start = self._held.lstrip()
        if start.startswith(OPEN):
            self._held = start[len(OPEN) :]
            self._reasoning = True
        elif final or not OPEN.startswith(start):
            self._content = self._begun = True

    def _reason(self, events: list[Event], final: bool) -> None:
        if not self._begun:
            self._held = self._held.lstrip("\n")
        before, close, after = self._held.partition(CLOSE)
        if close:
            self._emit_reasoning(events, before.rstrip("\n"))
            self._held, self._reasoning, self._content, self._begun = after, False, True, False
            return
        certain = self._held if final else self._held[: len(self._held) - _held_length(self._held)].rstrip("\n")
        self._emit_reasoning(events, certain)
        self._held = self._held[len(certain) :]

    def _answer(self, events: list[Event]) -> None:
        if not self._begun:
            self._held = self._held.lstrip("\n")
        if self._held:
            self._begun = True
            events.append(ContentDelta(self._held))
            self._held = ""

    def _emit_reasoning(self, events: list[Event], text: str) -> None:
        if text:
            self._begun = True
            events.append(ReasoningDelta(text))


def _held_length(text: str) -> int:
    """Length of the longest proper prefix of the closing tag that ``text`` ends in."""
    return next((size for size in range(len(CLOSE) - 1, 0, -1) if text.endswith(CLOSE[:size])), 0)
