"""What all states of one running program share: backend, defaults, loop, hints, account, and how it all ends."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar, cast

from radixlang.accounting import Ledger
from radixlang.backends.base import Backend, TextBackend, TokenBackend
from radixlang.errors import InvalidProgram, Stopped
from radixlang.hints import Hints
from radixlang.interpreter import Interpreter
from radixlang.loop import running_loop, wait_from_loop, wait_from_thread
from radixlang.sampling import DEFAULTS, Sampling
from radixlang.steps import Close, Step
from radixlang.streaming import Pulse

_T = TypeVar("_T")

_keys = itertools.count(1)


class Run:
    """One running program. Its interpreters live on ``loop``; the body may run elsewhere.

    ``sampling``: what a `gen` takes where it says nothing. ``heal``: token healing where a `gen` says nothing. ``streams``: calls
    are asked for their text piece by piece. ``result``: what the body returned. ``ended``: the body is done and so are all steps.
    """

    def __init__(
        self,
        backend: Backend,
        loop: asyncio.AbstractEventLoop,
        hints: Hints,
        *,
        sampling: Sampling,
        heal: bool,
        streams: bool,
    ) -> None:
        self.backend = backend
        self.tokens = cast("TokenBackend", backend) if backend.token_exact else None
        self.texts = None if backend.token_exact else cast("TextBackend", backend)
        self.loop = loop
        self.hints = hints
        self.ledger = Ledger()
        self.sampling = sampling.over(DEFAULTS)
        self.heal = heal
        self.streams = streams
        self.result: Any = None
        self.interpreters: list[Interpreter] = []
        self.stopped: Exception | None = None
        self.over = False
        self.ended = asyncio.Event()
        self.pulse = Pulse()
        # An ``async def`` body, which may wait for something else than the program's steps.
        self.body_task: asyncio.Task[Any] | None = None
        # Whatever runs the program for a watcher.
        self.holder: object = None

    # The body's side: any thread.

    def interpreter(self, parent: Interpreter | None = None) -> Interpreter:
        """A new state's interpreter; with a parent it waits for the parent's fork."""
        interpreter = Interpreter(self, next(_keys), parent)
        self.interpreters.append(interpreter)
        return interpreter

    def post(self, interpreter: Interpreter, steps: Sequence[Step]) -> None:
        """Queue steps, so that all are there before the first is done; from one thread in the order of these calls."""
        if running_loop() is self.loop:
            interpreter.push(*steps)
        else:
            self.loop.call_soon_threadsafe(interpreter.push, *steps)

    def block(self, waiting: Callable[[], Coroutine[Any, Any, _T]], instead: str) -> _T:
        """Wait on this thread. On the loop's own thread, which would wait for itself, `InvalidProgram` tells what to do ``instead``."""
        if running_loop() is self.loop:
            raise InvalidProgram("await", f"this would block the loop that it waits for: use {instead}")
        return wait_from_thread(waiting(), self.loop)

    async def bridge(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Await what belongs to the program's loop, from whatever loop this runs on."""
        return await wait_from_loop(coroutine, self.loop)

    # The loop's side.

    async def finish(self) -> None:
        """The body is done: wait for all steps. Raises the first failure that the program was not told of."""
        self.over = True
        first, *branches = self.interpreters
        for branch in branches:
            branch.push(Close())
        for interpreter in self.interpreters:
            await interpreter.idle()
        # Last, because hints take its end for the end of all.
        first.push(Close())
        await first.idle()
        failures = [interpreter.failure for interpreter in self.interpreters if interpreter.failure is not None]
        unseen = next((failure for failure in failures if not failure.seen), None)
        if first.failure is None:
            first.failure = unseen
        self._end()
        if self.stopped is not None:
            raise self.stopped
        if unseen is not None:
            raise unseen.raised()

    async def stop(self, reason: BaseException) -> None:
        """End all of it now: running calls are aborted, and reads tell ``reason``. Later reasons change nothing."""
        # A KeyboardInterrupt or SystemExit must not be raised on the loop, which would end.
        self.expire(reason if isinstance(reason, Exception) else Stopped("the program was cancelled"))
        self.over = True
        for interpreter in list(self.interpreters):
            interpreter.stop()
            interpreter.push(Close())
            await interpreter.idle()
        self._end()

    def expire(self, reason: Exception) -> None:
        """The same without waiting for the ends."""
        if self.stopped is None and not self.ended.is_set():
            self.stopped = reason
            if self.body_task is not None:
                self.body_task.cancel()
            for interpreter in list(self.interpreters):
                interpreter.stop()

    def _end(self) -> None:
        self.ended.set()
        self.pulse.beat()

    def check_open(self) -> None:
        """Raise what ended the program, if something did."""
        if self.stopped is not None:
            if isinstance(self.stopped, Stopped):
                raise type(self.stopped)(*self.stopped.args)
            raise self.stopped
        if self.over:
            raise InvalidProgram("s +=", "the program is over")
