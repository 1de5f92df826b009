"""The model's text to what a client is given: reasoning, content and calls, as they come or as a whole message."""

from __future__ import annotations

from typing import Protocol

from radixserve.chat.call_parser import CallParser
from radixserve.chat.events import ContentDelta, Event, ParsedMessage, collect
from radixserve.chat.reasoning import ReasoningSplitter
from radixserve.chat.special_names import SpecialNames


class Stop(Protocol):
    """A stop string that was found: it ends before character ``end`` of the piece just fed."""

    @property
    def stop(self) -> str:
        """The string."""

    @property
    def end(self) -> int:
        """Where it ends."""


class ContentStops(Protocol):
    """What looks for stop strings in content (`radixserve.engine.stop_strings.StopMatcher` does)."""

    @property
    def held(self) -> int:
        """Characters at the end of the text that could still become a stop string."""

    def feed(self, text: str, /) -> Stop | None:
        """Take the next piece; return the first match, after which nothing is fed."""


class OutputParser:
    """Takes one output's text apart. Parts that are None are not looked for.

    ``special`` takes names of special tokens out; ``reasoning`` splits reasoning off; ``calls`` finds tool calls in the
    rest. ``stops``: stop strings that are looked for in content and calls only, never in reasoning; the output ends
    before the first (after it with ``include_stop``), and the generation can be aborted as soon as `stopped` says so.
    Anything pushed after that is ignored. However the text is cut into pieces, the joined events are the same.
    """

    def __init__(
        self,
        *,
        special: SpecialNames | None = None,
        reasoning: ReasoningSplitter | None = None,
        calls: CallParser | None = None,
        stops: ContentStops | None = None,
        include_stop: bool = False,
    ) -> None:
        self._special = special
        self._reasoning = reasoning
        self._calls = calls
        self._stops = stops
        self._include_stop = include_stop
        self._held = ""  # content that could still become a stop string
        self._stopped: str | None = None
        self._finished = False

    @property
    def stopped(self) -> str | None:
        """The stop string that ended the content, None as long as there is none."""
        return self._stopped

    @property
    def calls(self) -> int:
        """Tool calls that have begun."""
        return 0 if self._calls is None else self._calls.calls

    @property
    def asks_for_calls(self) -> bool:
        """Whether the text so far is an answer whose finish reason is ``tool_calls``: with calls, and all of them whole.

        One that a stop string cuts inside a call's arguments is not: nobody should make that call.
        """
        return self._calls is not None and self._calls.calls > 0 and not self._calls.cut

    def push(self, text: str) -> list[Event]:
        """Take the next piece of text; return what it makes certain."""
        assert not self._finished, "no text comes after the end"
        return self._parts(text if self._special is None else self._special.push(text), final=False)

    def finish(self) -> list[Event]:
        """Return the rest: no more text comes. A second call returns nothing."""
        if self._finished:
            return []
        self._finished = True
        return self._parts("" if self._special is None else self._special.finish(), final=True)

    def parse(self, text: str) -> ParsedMessage:
        """A whole output at once; the parser is used up."""
        return collect([*self.push(text), *self.finish()])

    def _parts(self, text: str, *, final: bool) -> list[Event]:
        if self._stopped is not None:
            return []
        if self._reasoning is None:
            return self._content(text, final=final)
        split = self._reasoning.push(text)
        if final:
            split += self._reasoning.finish()
        events: list[Event] = []
        for event in split:
            events += self._content(event.text, final=False) if isinstance(event, ContentDelta) else [event]
        return events + self._content("", final=True) if final else events

    def _content(self, text: str, *, final: bool) -> list[Event]:
        if self._stopped is not None:
            return []
        if self._stops is not None:
            text = self._before_stop(self._stops, text, final=final)
        final = final or self._stopped is not None
        if self._calls is None:
            return [ContentDelta(text)] if text else []
        return self._calls.push(text) + (self._calls.finish() if final else [])

    def _before_stop(self, stops: ContentStops, text: str, *, final: bool) -> str:
        """Text that no stop string can claim any more."""
        found = stops.feed(text) if text else None
        if found is not None:
            whole, self._held, self._stopped = self._held + text[: found.end], "", found.stop
            return whole if self._include_stop else whole[: len(whole) - len(found.stop)]
        whole = self._held + text
        certain = len(whole) if final else len(whole) - stops.held
        self._held = whole[certain:]
        return whole[:certain]
