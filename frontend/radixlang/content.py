"""What a state contains: tokens, the text that has none yet, and messages."""

from __future__ import annotations

from dataclasses import dataclass

from radixlang.backends.base import Message, RoleMarks, Text, TextKind
from radixlang.errors import InvalidProgram
from radixlang.streaming import TextStream
from radixlang.texts import content_of


@dataclass(frozen=True, slots=True)
class Role:
    """An open message: its content begins at piece ``start`` of the history; ``end`` is written after it.

    ``written``: what belongs before the content, in place of what asks the model for one, if it turns out to be all the program's.
    """

    name: str
    start: int
    end: str
    written: str | None = None


class Content:
    """``ids``: the settled tokens, exact. ``pending``: what was written since, to be tokenized with whatever follows. Both stay empty
    without ``token_exact``. ``history``: all pieces in order, generated ones among them. ``messages``: the finished ones;
    ``role``: the open one. ``stream``: the whole text while it is made.
    """

    def __init__(self, *, token_exact: bool) -> None:
        self.ids: list[int] = []
        self.pending: list[Text] = []
        self.history: list[Text] = []
        self.messages: list[Message] = []
        self.role: Role | None = None
        self.stream = TextStream()
        self._token_exact = token_exact
        self._origin = (0, 0)

    def begin_from(self, other: Content) -> None:
        """Become the same as ``other``, to go another way from here. Only for one in which nothing was written."""
        self.ids, self.pending = list(other.ids), list(other.pending)
        self.history, self.messages, self.role = list(other.history), list(other.messages), other.role
        # In place: somebody may be reading already.
        for text in other.stream.pieces():
            self.stream.write(text)
        self._origin = (len(other.history), len(other.messages))

    @property
    def kind(self) -> TextKind:
        """Of text that the program or the model writes here."""
        return "content" if self.role is not None else "free"

    @property
    def ends_in_text(self) -> bool:
        """The last of it is text that the program wrote, so that a tokenizer may read it differently with more after it."""
        return bool(self.pending) and self.pending[-1].kind != "template"

    def text(self, start: int = 0) -> str:
        """All text from piece ``start`` of the history on."""
        return "".join(piece.text for piece in self.history[start:])

    def write(self, text: str, kind: TextKind | None = None) -> None:
        """Add text that has no tokens yet; by default of the `kind` that belongs here."""
        if text:
            piece = Text(text, kind or self.kind)
            self.history.append(piece)
            if self._token_exact:
                self.pending.append(piece)
            self.stream.write(text)

    def settle(self, ids: list[int], text: str, rest: str = "", *, streamed: str = "") -> None:
        """Everything so far, and ``text`` after it, has the tokens ``ids``, but for its end ``rest``, which is tokenized with what follows.

        ``streamed``: what of ``text`` is in the stream already.
        """
        self.ids = ids
        self.pending = [Text(rest, self.kind)] if rest else []
        if text:
            self.history.append(Text(text, self.kind))
        self.stream.write(text[len(streamed) :])

    def check_outside(self, role: str) -> None:
        """Raise `InvalidProgram` if a message of ``role`` cannot begin here."""
        if self.role is not None:
            raise InvalidProgram(role, f"begins inside a message of {self.role.name}")

    def begin(self, role: str, marks: RoleMarks) -> None:
        """A message begins."""
        self.write(marks.begin, "template")
        if marks.written is not None and not marks.begin:
            self.history.append(Text("", "template"))  # holds the place
            self.pending.append(self.history[-1])
        self.role = Role(role, len(self.history), marks.end, marks.written)

    def end(self, role: str) -> None:
        """The open message ends. Raises `InvalidProgram` if it is not of ``role``."""
        if self.role is None or self.role.name != role:
            raise InvalidProgram(f"{role}_end", "ends a message that has not begun")
        self.messages.append(Message(role, content_of(self.history[self.role.start :])))
        if self.role.written is not None:
            self._begin_as_written(self.role.start - 1, self.role.written)
        end, self.role = self.role.end, None
        self.write(end, "template")

    def _begin_as_written(self, place: int, begin: str) -> None:
        """Piece ``place`` of the history becomes ``begin``, unless it has tokens already: then the model went on from it."""
        opening = self.history[place]
        at = next((at for at, piece in enumerate(self.pending) if piece is opening), None)
        if at is not None:
            self.history[place] = self.pending[at] = Text(begin, "template")

    def append(self, branch: Content) -> None:
        """What ``branch`` wrote since it went its own way. Raises `InvalidProgram` where its messages do not fit here."""
        if branch.role is not self.role:
            raise InvalidProgram("join", "a branch ends inside another message than its parent")
        forked_at, messages_at_fork = branch._origin
        own = branch.history[forked_at:]
        if len(self.history) == forked_at:
            # Its tokens follow here what they followed in the branch, so they stay what they are.
            self.ids, self.pending = list(branch.ids), list(branch.pending)
            self.history += own
            self.stream.write("".join(piece.text for piece in own))
        else:
            for piece in own:
                self.write(piece.text, piece.kind)
        self.messages += branch.messages[messages_at_fork:]
