"""Variables of a program: values that come later, and why some never do."""

from __future__ import annotations

import asyncio
from typing import Any

from radixlang.errors import Position, ProgramError, Stopped
from radixlang.streaming import TextStream


class Failure:
    """A step that failed, and with it all that its state does later.

    ``seen``: the program was told. Whoever asks is told by an exception of his own (`raised`), so tracebacks do not pile up.
    """

    __slots__ = ("error", "position", "seen", "variable")

    def __init__(self, error: BaseException, position: Position | None, variable: str | None = None) -> None:
        self.error = error
        self.position = position
        self.variable = variable
        self.seen = False

    def raised(self) -> BaseException:
        """The exception to raise; counts as telling."""
        self.seen = True
        if isinstance(self.error, Stopped):
            return type(self.error)(*self.error.args)
        if self.position is None or isinstance(self.error, ProgramError):
            return self.error
        what = f"{type(self.error).__name__}: {self.error}"
        error = ProgramError(what, self.position, self.variable)
        error.__cause__ = self.error
        return error


class Variable:
    """A value that a step will set. Set and waited for on the program's loop; once ``done``, read from anywhere.

    ``stream``: its text while it is made; of several samples the first.
    """

    __slots__ = ("_event", "_failure", "_value", "done", "meta", "name", "stream")

    def __init__(self, name: str) -> None:
        self.name = name
        self.done = False
        self.meta: Any = None
        self.stream = TextStream()
        self._value: Any = None
        self._failure: Failure | None = None
        self._event = asyncio.Event()

    @classmethod
    def of(cls, name: str, value: Any) -> Variable:
        """One that has its value already."""
        variable = cls(name)
        variable.resolve(value, {})
        return variable

    @property
    def failure(self) -> Failure | None:
        """Why it has no value, if it never will."""
        return self._failure

    def resolve(self, value: Any, meta: Any) -> None:
        """Set it. Only the first end counts."""
        if not self.done:
            self._value, self.meta = value, meta
            self._end()

    def fail(self, failure: Failure) -> None:
        """It will have no value."""
        if not self.done:
            self._failure = failure
            self._end()

    def _end(self) -> None:
        self.done = True
        self.stream.close()
        self._event.set()

    async def wait(self) -> None:
        """Until it is done, well or not."""
        await self._event.wait()

    def read(self) -> Any:
        """Its value; it is done. Raises what its failure says."""
        if self._failure is not None:
            raise self._failure.raised()
        return self._value

    def read_meta(self) -> Any:
        """Facts about how the value came to be; it is done."""
        if self._failure is not None:
            raise self._failure.raised()
        return self.meta
