"""What a chat template writes around messages, found by rendering conversations of placeholders with it.

A program's conversation only ever grows: what was written stays. So a template is asked for the *marks* between contents,
which depend on the order of roles alone, and contents go in between as they are. Nothing is lost on templates that trim
what they are given, drop the reasoning of earlier answers or put in a system message where there is none. A template that
moves contents (a system message into the last turn) or writes one of them twice cannot be spoken that way and is refused.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from radixlang.backends.base import Message, RoleMarks
from radixlang.backends.memo import Memo
from radixlang.errors import Refused, Unsupported

# Renders messages; the flag asks for what begins an answer. Raises `Refused` for what the template does not take.
Render = Callable[[Sequence[Message], bool], Awaitable[str]]

_KEPT_CHARACTERS = 1 << 20


class RoleMarker:
    """The marks of one template. ``name``: of the backend, for errors."""

    def __init__(self, render: Render, name: str) -> None:
        self._render = render
        self._name = name
        self._marks: Memo[tuple[str, ...], RoleMarks] = Memo(
            _KEPT_CHARACTERS, lambda roles, marks: sum(map(len, roles)) + len(marks.begin) + len(marks.end) + 64
        )

    async def marks(self, role: str, earlier: Sequence[Message]) -> RoleMarks:
        """The marks of the next message, of ``role``. Raises `Refused` for a role that the template does not take there,
        and `Unsupported` for a template that changes what it wrote before.
        """
        roles = (*(message.role for message in earlier), role)
        return await self._marks.get(roles, lambda: self._probe(roles))

    async def _probe(self, roles: tuple[str, ...]) -> RoleMarks:
        before = roles[:-1]
        # Where the message stands with another after it, if the template shows it only then.
        text = await self._shown(roles)
        end = await self._end(before)
        begin = self._without(end, self._between(text, len(before)))
        if roles[-1] != "assistant" or not before:
            return RoleMarks(begin, self._tail(text, roles))
        asking = self._without(end, self._after(await self._render(_placeholders(before), True), before))
        return RoleMarks(asking, self._tail(text, roles), None if begin == asking else begin)

    async def _end(self, roles: tuple[str, ...]) -> str:
        """What was already written after the last content of a conversation of ``roles``."""
        return self._tail(await self._shown(roles), roles) if roles else ""

    async def _shown(self, roles: tuple[str, ...]) -> str:
        """A rendering in which the last message of ``roles`` is seen."""
        try:
            text = await self._render(_placeholders(roles), False)
            if _placeholder(len(roles) - 1) in text:
                return text
            refusal = None
        except Refused as refused:
            refusal = refused
        following = "assistant" if roles[-1] == "user" else "user"
        try:
            text = await self._render(_placeholders((*roles, following)), False)
        except Refused as refused:
            raise _of_role(roles[-1], refusal or refused) from refused
        if _placeholder(len(roles) - 1) not in text:
            raise Refused("role", f"the chat template leaves out messages of role {roles[-1]!r}", "invalid_role")
        return text

    def _tail(self, text: str, roles: tuple[str, ...]) -> str:
        """What ends the last message of ``roles``: nothing where ``text`` goes on with another message."""
        after = self._after(text, roles)
        return "" if _placeholder(len(roles)) in after else after

    def _after(self, text: str, roles: tuple[str, ...]) -> str:
        return self._cut(text, len(roles) - 1)[1] if roles else text

    def _between(self, text: str, index: int) -> str:
        """What stands between the contents of messages ``index - 1`` and ``index``."""
        before, _ = self._cut(text, index)
        return before if index == 0 else self._cut(before, index - 1)[1]

    def _cut(self, text: str, index: int) -> tuple[str, str]:
        """``text`` before and after the content of message ``index``."""
        pieces = text.split(_placeholder(index))
        if len(pieces) != 2:
            raise self._changing()
        return pieces[0], pieces[1]

    def _without(self, end: str, between: str) -> str:
        if not between.startswith(end) or _PLACE in between:
            raise self._changing()
        return between[len(end) :]

    def _changing(self) -> Unsupported:
        return Unsupported(
            "roles", self._name, "its chat template moves or repeats earlier messages when others follow them"
        )


_PLACE = "xqmessage"


def _placeholder(index: int) -> str:
    # Letters and digits, so that no template escapes or trims it; none is the beginning of another.
    return f"{_PLACE}{index}qx"


def _placeholders(roles: Sequence[str]) -> list[Message]:
    return [Message(role, _placeholder(index)) for index, role in enumerate(roles)]


def _of_role(role: str, refused: Refused) -> Refused:
    return Refused("role", f"{role!r} is refused by the chat template here: {refused.message}", refused.code)
