"""Template drift: a template that writes a past turn in other words than those that were generated.

Then the conversation so far is no prefix of the next turn's prompt, and from the first difference on nothing of it can be
had from the cache. Templates do this by intent (leaving out old reasoning) and by accident (trimming white space, writing
the time of day); an operator should know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from radixserve.chat import reasoning
from radixserve.chat.conversation import Conversation, Message, PastCall
from radixserve.chat.format import NO_TOOLS, ChatFormat
from radixserve.chat.tools import Toolbox, parse_tools
from radixserve.errors import InvalidRequest

_AROUND = 24  # characters shown on each side of a difference
_ASKED: Conversation = (Message("user", "What is the capital of France?"),)
_AGAIN = Message("user", "And of Spain?")
_ANSWER = "The capital of France is Paris."
_THOUGHT = "The user asks for a capital."
_TOOLS = parse_tools(
    [
        {
            "type": "function",
            "function": {
                "name": "get_capital",
                "description": "The capital of a country.",
                "parameters": {"type": "object", "properties": {"country": {"type": "string"}}},
            },
        }
    ]
)
_CALL = PastCall("a1b2c3d4e", "get_capital", '{"country": "France"}')


@dataclass(frozen=True, slots=True)
class Drift:
    """The first difference between two turns and the next one's prompt.

    ``case``: what the model had answered. ``position``: the first token that is not the same; ``generated`` and
    ``rendered``: the text around it in the conversation as it was, and as the template writes it afterwards.
    """

    case: str
    position: int
    generated: str
    rendered: str

    def __str__(self) -> str:
        """A line for an operator."""
        return (
            f"the chat template does not write {self.case} as it was: from token {self.position} on the next turn has "
            f"{self.rendered!r} where there was {self.generated!r}, so that the cache ends there"
        )


def find_drift(chat: ChatFormat) -> list[Drift]:
    """The first difference for each kind of answer whose two turns do not fit; empty for a template that keeps history.

    What a template refuses to render is left out: there is no second turn of it.
    """
    found = []
    for case, turn in _cases(chat):
        try:
            drift = turn()
        except InvalidRequest:
            continue
        if drift is not None:
            found.append(Drift(case, *drift))
    return found


_Difference = tuple[int, str, str] | None


def _cases(chat: ChatFormat) -> Iterator[tuple[str, Callable[[], _Difference]]]:
    if chat.traits.reasoning:
        yield "an answer with reasoning", lambda: _compare_reasoning(chat)
    # Where the template opens reasoning itself, there are no answers without.
    if not reasoning.opens_reasoning(_asked(chat)):
        yield "a plain answer", lambda: _compare(chat, _ANSWER, Message("assistant", _ANSWER))
        spaced = f"\n {_ANSWER}\n"
        yield "white space around an answer", lambda: _compare(chat, spaced, Message("assistant", spaced))
        call = chat.traits.syntax.example(_TOOLS.tools[0], _CALL.arguments)
        message = Message("assistant", None, tool_calls=(_CALL,))
        yield "a tool call", lambda: _compare(chat, call, message, _TOOLS)
    yield "the time of day", lambda: _compare_clock(chat)


def _asked(chat: ChatFormat) -> str:
    """The first prompt; empty where the template refuses it."""
    try:
        return chat.render(_ASKED).text
    except InvalidRequest:
        return ""


def _compare(chat: ChatFormat, output: str, answer: Message, toolbox: Toolbox = NO_TOOLS) -> _Difference:
    """A turn whose answer was ``output`` and comes back as ``answer``."""
    follow = Message("tool", "Paris", tool_call_id=_CALL.id, name=_CALL.name) if answer.tool_calls else _AGAIN
    before = chat.render(_ASKED, toolbox).text + output
    return _difference(chat, before, chat.render((*_ASKED, answer, follow), toolbox).text)


def _compare_reasoning(chat: ChatFormat) -> _Difference:
    opening = "" if reasoning.opens_reasoning(_asked(chat)) else f"{reasoning.OPEN}\n"
    output = f"{opening}{_THOUGHT}\n{reasoning.CLOSE}\n\n{_ANSWER}"
    return _compare(chat, output, Message("assistant", _ANSWER, reasoning=_THOUGHT))


def _compare_clock(chat: ChatFormat) -> _Difference:
    early, late = (
        chat.render(_ASKED, template_options={"strftime_now": _clock(moment)}).text for moment in ("early", "late")
    )
    return _difference(chat, early, late)


def _clock(moment: str) -> Callable[[str], str]:
    def tell(layout: Any) -> str:
        return f"{layout} {moment}"

    return tell


def _difference(chat: ChatFormat, before: str, after: str) -> _Difference:
    """Where ``before`` stops being a prefix of ``after``, in tokens, and what both say there."""
    old, new = chat.tokenizer.encode(before), chat.tokenizer.encode(after)
    at = next((index for index, token in enumerate(old) if index >= len(new) or new[index] != token), None)
    if at is None:
        return None
    start = len(chat.tokenizer.decode(old[:at]))
    window = slice(max(0, start - _AROUND), start + _AROUND)
    return at, before[window], after[window]
