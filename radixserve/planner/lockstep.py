"""Programs and an engine in lockstep: the engine makes a step exactly when every program waits for it.

So the order in which calls arrive is a fact about the programs and not about how fast anything is: the same programs on the same answers
give the same steps, with a model or without one.
"""

from __future__ import annotations

import asyncio
import contextvars
import selectors
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

from radixserve.engine.core import EngineCore
from radixserve.engine.loop import EngineLoop
from radixserve.planner.bodies import Bodies
from radixserve.planner.traced_core import TracedCore

T = TypeVar("T")

# Real seconds that a body is waited for while threads of its own making wait for the engine.
_GRACE = 0.05


class LockstepLoop(EngineLoop):
    """The loop of a core that an event loop drives. What is known of a call when it is made (`Intent`) is known when it is queued."""

    def __init__(self, core: TracedCore) -> None:
        super().__init__(core, thread=False)
        self.core = core

    def call(self, function: Callable[[EngineCore], T]) -> Future[T]:
        """As `EngineLoop.call`; it is carried out by the next turn, in the caller's context."""
        context = contextvars.copy_context()
        return super().call(lambda core: context.run(function, core))


class LockstepEventLoop(asyncio.SelectorEventLoop):
    """An event loop whose pauses belong to ``engine``: when nothing on it is ready and no body of a program can go on, it takes a turn.

    Bodies in threads run one at a time, in the order in which they began (`Bodies`). The clock is the plan's: it goes on by what steps
    are taken to last, and where nothing runs it jumps to the next timer. Input and output are real. Functions for the default
    executor run at once on the loop's own thread, so that what they bring comes in order.
    """

    def __init__(self, engine: LockstepLoop) -> None:
        self._engine = engine
        self._bodies = Bodies(super().call_soon_threadsafe)
        super().__init__(_Selector(self._pause, self._overdue))

    def time(self) -> float:
        """Seconds of the plan."""
        return self._engine.core.now()

    def close(self) -> None:
        """Close the loop; bodies that still wait hear that what they wait for was cancelled."""
        self._bodies.close()
        super().close()

    def run_in_executor(self, executor: Executor | None, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """Threads of an executor are programs' bodies."""
        if executor is not None:
            body, run = self._bodies.add(executor, func)
            found: asyncio.Future[T] = super().run_in_executor(executor, run, *args)
            # Only then: a body that has returned may not have been heard of yet.
            found.add_done_callback(lambda _: self._bodies.ended(body))
            return found
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """As asyncio has it, but what a body asks for comes when it next waits (`Bodies.post`)."""
        context = context or contextvars.copy_context()
        handle = asyncio.Handle(callback, args, self, context)

        def call() -> None:
            if not handle.cancelled():
                self.call_soon(callback, *args, context=context)

        if self._bodies.post(call):
            return handle
        return super().call_soon_threadsafe(callback, *args, context=context)

    def wait_in_thread(self, future: Future[Any]) -> None:
        """Return when ``future`` is done and it is the calling thread's turn (`radixlang.loop.WatchfulLoop`)."""
        self._bodies.wait(future)

    def _pause(self, timeout: float | None) -> float | None:
        """Nothing is ready, and the next timer is ``timeout`` seconds away, if there is one.

        Returns how long to wait for what comes from outside; None: until something does.
        """
        if self._bodies.go_on():
            return _GRACE if self._bodies.strangers_wait() else None
        if self._engine.turn():
            return 0.0
        if timeout is None:
            return None
        self._engine.core.skipped += timeout
        return 0.0

    def _overdue(self) -> None:
        """The body that runs waits for threads of its own, and these for the engine."""
        self._bodies.deliver()
        self._engine.turn()


class _Selector(selectors.DefaultSelector):
    """Asks ``pause`` how long to wait where nothing is ready."""

    def __init__(self, pause: Callable[[float | None], float | None], overdue: Callable[[], None]) -> None:
        super().__init__()
        self._pause = pause
        self._overdue = overdue

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """What is ready."""
        events = super().select(0)
        if events or (timeout is not None and timeout <= 0):
            return events
        patience = self._pause(timeout)
        if patience == 0:
            return events
        events = super().select(patience)
        if not events:
            self._overdue()
        return events
