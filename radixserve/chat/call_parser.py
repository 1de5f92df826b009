"""Finding calls in generated text that arrives in pieces.

Text in which no call begins is content and handed on at once, but for what is in part the opening of a call and white
space before it: white space next to a call belongs to the call's syntax, because templates write it there themselves.
An opening that does not go on as one becomes content, whole. However the text is cut into pieces, the joined events
are the same.
"""

from __future__ import annotations

import enum
import re
import secrets
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from radixserve.chat.call_pattern import Hole, Match, Pattern, match
from radixserve.chat.events import ContentDelta, Event, ToolCallDelta
from radixserve.chat.json_values import ObjectScanner

_OBJECT: Pattern = (Hole.SPACE, "{")


@dataclass(frozen=True, slots=True)
class CallPatterns:
    """How a family writes calls around their arguments, which are a JSON object.

    ``openings``: from free text up to the arguments. ``closings``: from the arguments back to free text.
    ``followings``: from the arguments straight to the next call's. Each but the closings holds a name. No two of the
    alternatives at one place match the same text, one whole and the other in part.
    """

    openings: tuple[Pattern, ...]
    closings: tuple[Pattern, ...]
    followings: tuple[Pattern, ...] = ()


class _State(enum.Enum):
    TEXT = enum.auto()
    ARGUMENTS = enum.auto()
    BEHIND = enum.auto()


def new_call_id() -> str:
    """A name for a call that no other has."""
    return f"call_{secrets.token_hex(12)}"


class CallParser:
    """Takes one answer's text and gives content and calls.

    ``names``: the tools that may be called; the name of another is no call. Text that is cut inside the arguments
    leaves a call with the arguments so far. What is cut inside a call's closing is dropped, for the call is whole.
    ``forced``: the output is nothing but calls, so that the opening of one that is cut off is no content either.
    """

    def __init__(
        self,
        patterns: CallPatterns,
        names: Collection[str],
        *,
        forced: bool = False,
        new_id: Callable[[], str] = new_call_id,
    ) -> None:
        self._patterns = patterns
        self._names = frozenset(names)
        self._forced = forced
        self._new_id = new_id
        self._openings = tuple((*pattern, *_OBJECT) for pattern in patterns.openings)
        self._followings = tuple((*pattern, *_OBJECT) for pattern in patterns.followings)
        starts = {pattern[0][0] for pattern in patterns.openings if isinstance(pattern[0], str)}
        assert len(starts) >= 1, "an opening begins with a literal"
        self._start = re.compile("[" + "".join(map(re.escape, sorted(starts))) + "]")
        self._state = _State.TEXT
        self._held = ""
        self._scanner = ObjectScanner()
        self._calls = 0
        self._gap = False  # only white space since the last call
        self._events: list[Event] = []

    @property
    def calls(self) -> int:
        """Calls that have begun."""
        return self._calls

    @property
    def cut(self) -> bool:
        """Whether the text so far ends inside the arguments of a call."""
        return self._state is _State.ARGUMENTS

    def push(self, text: str) -> list[Event]:
        """Take the next piece of text; return what it makes certain."""
        self._held += text
        return self._run(final=False)

    def finish(self) -> list[Event]:
        """Return the rest: no more text comes."""
        return self._run(final=True)

    def _run(self, *, final: bool) -> list[Event]:
        steps = {_State.TEXT: self._text, _State.ARGUMENTS: self._arguments, _State.BEHIND: self._behind}
        while steps[self._state](final):
            pass
        events, self._events = self._events, []
        return events

    def _text(self, final: bool) -> bool:
        """Content up to the next call. True when the state has changed."""
        text, position = self._held, 0
        while (start := self._start.search(text, position)) is not None:
            outcome = _first(self._openings, text, start.start(), self._names)
            if isinstance(outcome, Match):
                self._content(text[: start.start()].rstrip())
                self._open(outcome)
                return True
            if outcome and final and self._forced:
                self._held = text = text[: start.start()]
                break
            if outcome and not final:
                self._keep_from(len(text[: start.start()].rstrip()))
                return False
            position = start.end()
        if final and self._gap and not text.strip():
            self._held = ""
        self._keep_from(len(self._held) if final else len(self._held.rstrip()))
        return False

    def _arguments(self, _final: bool) -> bool:
        """The arguments as they come. True when they are whole."""
        if not self._held:
            return False
        end = self._scanner.feed(self._held)
        piece = self._held[:end]
        self._held = self._held[len(piece) :]
        self._events.append(ToolCallDelta(self._calls - 1, arguments=piece))
        if end is None:
            return False
        self._state = _State.BEHIND
        return True

    def _behind(self, final: bool) -> bool:
        """What stands behind the arguments. True when the state has changed."""
        following = _first(self._followings, self._held, 0, self._names)
        if isinstance(following, Match):
            self._open(following)
            return True
        closing = _first(self._patterns.closings, self._held, 0, self._names)
        if isinstance(closing, Match):
            self._held = self._held[closing.end :]
        elif closing or following:
            if not final:
                return False
            if closing or self._forced:
                self._held = ""
        # Without its closing the call stands all the same; what is there instead is content.
        self._state, self._gap = _State.TEXT, True
        return True

    def _open(self, opening: Match) -> None:
        # The last character of an opening is the first of the arguments.
        self._held = self._held[opening.end - 1 :]
        self._events.append(ToolCallDelta(self._calls, self._new_id(), opening.name))
        self._calls += 1
        self._scanner = ObjectScanner()
        self._state = _State.ARGUMENTS

    def _keep_from(self, position: int) -> None:
        self._content(self._held[:position])
        self._held = self._held[position:]

    def _content(self, text: str) -> None:
        if text:
            self._gap = False
            self._events.append(ContentDelta(text))


def _first(patterns: Sequence[Pattern], text: str, start: int, names: frozenset[str]) -> Match | bool:
    """The first pattern that matches whole, or whether any does in part."""
    part = False
    for pattern in patterns:
        outcome = match(pattern, text, start, names)
        if isinstance(outcome, Match):
            return outcome
        part = part or outcome
    return part
