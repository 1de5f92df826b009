"""Text cut into pieces, and what a parser makes of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Protocol

from hypothesis import strategies as st

from radixserve.chat.events import ContentDelta, Event, ReasoningDelta, ToolCallDelta


class Parser(Protocol):
    """What all parsers of output can do."""

    def push(self, text: str) -> list[Event]:
        """Take a piece."""

    def finish(self) -> list[Event]:
        """The rest."""


def cut(text: str, cuts: Iterable[int]) -> list[str]:
    """``text`` cut at some of its places; the pieces may be empty."""
    places = [0, *sorted(place % (len(text) + 1) for place in cuts), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(places)]


CUTS = st.lists(st.integers(0, 10_000), max_size=12)


def run(parser: Parser, pieces: Iterable[str]) -> list[Event]:
    """All events of an output that came in ``pieces``."""
    events = [event for piece in pieces for event in parser.push(piece)]
    return events + parser.finish()


def joined(events: Iterable[Event]) -> list[Event]:
    """The events with neighbours of one kind put together; checks what holds for every stream of events."""
    whole: list[Event] = []
    calls = 0
    for event in events:
        last = whole[-1] if whole else None
        if isinstance(event, ToolCallDelta):
            if event.name is not None:
                assert event.id is not None and event.index == calls and event.arguments == ""
                calls += 1
                whole.append(event)
                continue
            assert event.id is None and event.arguments and isinstance(last, ToolCallDelta)
            assert event.index == last.index == calls - 1
            whole[-1] = ToolCallDelta(last.index, last.id, last.name, last.arguments + event.arguments)
            continue
        assert event.text
        if isinstance(event, ContentDelta) and isinstance(last, ContentDelta):
            whole[-1] = ContentDelta(last.text + event.text)
        elif isinstance(event, ReasoningDelta) and isinstance(last, ReasoningDelta):
            whole[-1] = ReasoningDelta(last.text + event.text)
        else:
            whole.append(event)
    return whole


def counted_ids() -> Callable[[], str]:
    """Ids that are the same in every run."""
    numbers = itertools.count()
    return lambda: f"call_{next(numbers)}"
