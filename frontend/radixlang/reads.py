"""Reading a state: waiting for its variables, its text and its end, from threads, from loops, and while it is made."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Generator
from typing import Any

from radixlang.errors import Stopped, UnknownVariable
from radixlang.interpreter import Interpreter
from radixlang.run import Run
from radixlang.streaming import TextStream
from radixlang.variable import Failure, Variable


class Reads:
    """The reading side of one state. ``variables``: those that the body has written steps for; ``submitted``: how many steps it has.

    A body reads what it has written. Who is ``watching`` a program that still runs waits for what is to come.
    """

    def __init__(
        self, run: Run, interpreter: Interpreter, variables: dict[str, Variable], *, watching: bool = False
    ) -> None:
        self.run = run
        self.interpreter = interpreter
        self.variables = variables
        self.submitted = 0
        self.watching = watching

    # Variables.

    def variable(self, name: str) -> Variable:
        """The variable, done. Blocks."""
        variable = self.variables.get(name)
        if variable is None or not variable.done:
            variable = self.run.block(lambda: self._found(name), f"await s.get({name!r})")
        return variable

    async def awaited(self, name: str) -> Variable:
        """The same, awaited."""
        variable = self.variables.get(name)
        if variable is None or not variable.done:
            variable = await self.run.bridge(self._found(name))
        return variable

    async def _found(self, name: str) -> Variable:
        variable = await self._declared(name)
        await variable.wait()
        return variable

    async def _declared(self, name: str) -> Variable:
        while name not in self.variables:
            if self.run.stopped is not None:
                raise self.run.stopped
            if not self.watching or self.run.ended.is_set():
                raise UnknownVariable(name)
            await self.run.pulse.wait()
        return self.variables[name]

    # The whole.

    def sync(self) -> None:
        """Until all steps so far are done; for a watcher, until the program is. Blocks."""
        if self._busy():
            self.run.block(self._reached, "await s.wait()")

    async def wait(self) -> None:
        """The same, awaited."""
        if self._busy():
            await self.run.bridge(self._reached())

    def failure(self) -> Failure | None:
        """Why the state goes no further, if it does not."""
        return self.interpreter.failure

    def _busy(self) -> bool:
        if self.watching:
            return not self.run.ended.is_set()
        return self.interpreter.completed < self.submitted

    async def _reached(self) -> None:
        if self.watching:
            await self.run.ended.wait()
        else:
            await self.interpreter.idle()

    # Text while it is made.

    def stream(self, name: str | None) -> Generator[str, None, None]:
        """The text of a variable, or of all steps so far, as it comes; for a watcher, of all that the program does.

        A watcher who leaves before the end stops the program.
        """
        if (whole := self._whole(name)) is not None:
            yield from whole
            self._raise(name)
            return
        ended, at = False, 0
        instead = f"async for text in s.astream({'' if name is None else repr(name)})"
        try:
            source, until = self.run.block(lambda: self._source(name), instead)
            while (news := self.run.block(functools.partial(source.read, at, until), instead)) is not None:
                text, at = news
                yield text
            ended = True
        finally:
            if self.watching and not ended:
                self._leave()
        self._raise(name)

    async def astream(self, name: str | None) -> AsyncGenerator[str, None]:
        """The same, for ``async for``."""
        if (whole := self._whole(name)) is not None:
            for text in whole:
                yield text
            self._raise(name)
            return
        ended, at = False, 0
        try:
            source, until = await self.run.bridge(self._source(name))
            while (news := await self.run.bridge(source.read(at, until))) is not None:
                text, at = news
                yield text
            ended = True
        finally:
            if self.watching and not ended:
                self._leave()
        self._raise(name)

    def _whole(self, name: str | None) -> list[str] | None:
        """The text as it was made, if it is there in full: the loop that it was made on may be gone."""
        variable = self.variables.get(name) if name is not None else None
        stream = self.interpreter.content.stream if name is None else variable.stream if variable is not None else None
        return stream.pieces() if stream is not None and stream.closed else None

    async def _source(self, name: str | None) -> tuple[TextStream, asyncio.Future[None] | None]:
        """The stream to read, and what ends the reading before the stream's own end."""
        if name is not None:
            return (await self._declared(name)).stream, None
        return self.interpreter.content.stream, None if self.watching else self.interpreter.reach()

    def _leave(self) -> None:
        self.run.loop.call_soon_threadsafe(self.run.expire, Stopped("the program was left before its end"))

    def _raise(self, name: str | None) -> None:
        failure = self.interpreter.failure if name is None else self.variables[name].failure
        if failure is not None:
            raise failure.raised()


def facts(value: Any) -> Any:
    """Facts about a variable, as a copy of the reader's own."""
    return dict(value) if isinstance(value, dict) else list(value)
