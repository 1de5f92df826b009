"""Running the body of a program from its begin to the end of all that it started."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

from radixlang.errors import Stopped, TimedOut
from radixlang.run import Run
from radixlang.state import ProgramState


@dataclass(frozen=True, slots=True)
class Execution:
    """One program about to run: its body with all arguments but the state, and how long it may take.

    ``owns_hints``: they end with this program, and not with a batch.
    """

    run: Run
    state: ProgramState
    body: Callable[[ProgramState], Any]
    is_async: bool
    timeout: float | None
    owns_hints: bool = True

    def here(self) -> ProgramState:
        """Run a ``def`` body on this thread. Returns the final state, or raises what went wrong."""
        run = self.run
        clock = run.block(self._start_clock, "await")
        try:
            run.result = self.body(self.state)
            run.block(run.finish, "await")
        except BaseException as error:
            reason = error
            run.block(lambda: run.stop(reason), "await")
            raise
        finally:
            run.block(lambda: self._close(clock), "await")
        return self.state

    async def on_loop(self, threads: Executor) -> ProgramState:
        """Run it from the program's loop: an ``async def`` body on the loop, another on one of ``threads``."""
        run = self.run
        clock = await self._start_clock()
        try:
            run.result = await self._body(threads)
            await run.finish()
        except BaseException as error:
            await run.stop(error)
            raise
        finally:
            await self._close(clock)
        return self.state

    async def _body(self, threads: Executor) -> Any:
        run = self.run
        if not self.is_async:
            # As `asyncio.to_thread` does: a body has the context of whoever started it.
            return await run.loop.run_in_executor(threads, contextvars.copy_context().run, self._guarded)
        run.body_task = run.loop.create_task(self._guarded_async())
        try:
            return await run.body_task
        except asyncio.CancelledError:
            if run.stopped is not None and run.body_task.cancelled():
                raise run.stopped from None
            raise

    # Either of these two, raised on a loop, ends the loop, which may not be the program's own.

    def _guarded(self) -> Any:
        try:
            return self.body(self.state)
        except (SystemExit, KeyboardInterrupt) as error:
            raise Stopped(f"the body raised {type(error).__name__}") from error

    async def _guarded_async(self) -> Any:
        try:
            return await self.body(self.state)
        except (SystemExit, KeyboardInterrupt) as error:
            raise Stopped(f"the body raised {type(error).__name__}") from error

    async def _start_clock(self) -> asyncio.TimerHandle | None:
        if self.timeout is None:
            return None
        reason = TimedOut(f"the program took longer than {self.timeout} s")
        return self.run.loop.call_later(self.timeout, self.run.expire, reason)

    async def _close(self, clock: asyncio.TimerHandle | None) -> None:
        if clock is not None:
            clock.cancel()
        if self.owns_hints:
            await self.run.hints.close()
