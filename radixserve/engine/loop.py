"""The thread that owns an `EngineCore`: it takes commands from any thread, steps while there is work, and hands
chunks out.

Everything that touches the core runs on this thread, so the core needs no locks and a question is answered between
two steps.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from radixserve.engine.core import EngineCore
from radixserve.errors import EngineClosed
from radixserve.grammar.compiler import ConstraintCompiler
from radixserve.messages import GenerationChunk

logger = logging.getLogger(__name__)

T = TypeVar("T")

_IDLE_SECONDS = 1.0

# Takes the chunks of one generation, or the error that ended it; called on the loop's thread, must not block.
Sink = Callable[[GenerationChunk | Exception], None]
# Called on the loop's thread, must not block: after a step, and at the end with the error that it ended with.
AfterStep = Callable[[], None]
AtEnd = Callable[[Exception | None], None]


# Engines that nobody closed: their threads must not be inside a kernel when the interpreter goes away.
_OPEN: weakref.WeakSet[EngineLoop] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for loop in list(_OPEN):
        loop.close()


class EngineLoop:
    """Runs ``core`` on a thread of its own from construction until `close`.

    ``on_idle`` is called on that thread once in every pause that lasts. Without a ``thread`` nothing runs by itself: whoever
    made the loop calls `turn`, always on one thread.
    """

    def __init__(self, core: EngineCore, *, on_idle: Callable[[], None] | None = None, thread: bool = True) -> None:
        self._core = core
        self._on_idle = on_idle
        self._commands: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._closed = False
        self._ended = False
        self._failure: Exception | None = None
        self._sinks: dict[str, Sink] = {}
        self._after_step: tuple[AfterStep, ...] = ()
        self._at_end: tuple[AtEnd, ...] = ()
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._run, name="radixserve-engine", daemon=True) if thread else None
        if self._thread is not None:
            self._thread.start()
        _OPEN.add(self)

    @property
    def closed(self) -> bool:
        """Whether no more calls are taken."""
        return self._closed

    @property
    def compiler(self) -> ConstraintCompiler | None:
        """What compiles constraints for the core, on any thread."""
        return self._core.compiler

    @property
    def failure(self) -> Exception | None:
        """The error that ended the loop; None while it runs and after `close`."""
        return self._failure

    def call(self, function: Callable[[EngineCore], T]) -> Future[T]:
        """Run ``function(core)`` between two steps; its result or exception is the future's."""
        if os.getpid() != self._process:
            raise EngineClosed("the engine's thread does not exist in a process forked from its own")
        future: Future[T] = Future()

        def command() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                if self._ended:
                    raise EngineClosed("the engine is closed") from self._failure
                result = function(self._core)
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        with self._wake:
            if self._closed:
                raise EngineClosed("the engine is closed") from self._failure
            self._commands.append(command)
            self._wake.notify()
        return future

    def submit(self, additions: list[tuple[str, Callable[[EngineCore], None], Sink]]) -> Future[None]:
        """Queue several generations in one go, before the next step: all of them or, if one is refused, none.

        Each is (rid, what adds it to the core, where its chunks go).
        """

        def add_all(core: EngineCore) -> None:
            added: list[str] = []
            try:
                for rid, add, sink in additions:
                    add(core)
                    added.append(rid)
                    self._sinks[rid] = sink
            except Exception:
                for rid in added:
                    del self._sinks[rid]
                    core.abort(rid)
                raise

        return self.call(add_all)

    def after_step(self, callback: AfterStep) -> None:
        """Call this too from now on, once all chunks of a step were handed to their sinks."""
        with self._wake:
            self._after_step += (callback,)

    def at_end(self, callback: AtEnd) -> None:
        """Call this too when the loop ends, with None if it was closed; at once if it has."""
        with self._wake:
            self._at_end += (callback,)
            ended = self._ended
        if ended:
            callback(self._failure)

    def close(self) -> None:
        """Stop after the current step and end what still runs with `EngineClosed`; safe to call twice."""
        _OPEN.discard(self)
        if os.getpid() != self._process:
            # A forked child has neither the thread nor a say in the lock's state.
            self._closed = True
            return
        with self._wake:
            self._closed = True
            self._wake.notify()
        if self._thread is None:
            if not self._ended:
                self._finish()
        elif threading.current_thread() is not self._thread:
            self._thread.join()

    def fail(self, error: Exception) -> None:
        """Stop because of ``error``, at the latest after the current step; any thread may say so. The first reason stands."""
        with self._wake:
            if not self._closed:
                self._failure = error
                self._closed = True
                self._wake.notify()

    def turn(self) -> bool:
        """Carry out the commands that wait, or else one step; False where there is neither. For a loop without a thread."""
        with self._wake:
            commands, self._commands = self._commands, deque()
        for command in commands:
            command()
        if commands:
            return True
        if not (self._core.has_work or self._core.has_news):
            return False
        self._step()
        return True

    def _step(self) -> None:
        for chunk in self._core.step():
            self._deliver(chunk)
        for after_step in self._after_step:
            after_step()

    def _run(self) -> None:
        try:
            while self._serve():
                self._step()
        except Exception as error:
            # A failed forward pass never gets here: this is a bug in the engine itself.
            logger.exception("the engine stopped")
            self._failure = error
        self._finish()

    def _finish(self) -> None:
        with self._wake:
            self._closed = self._ended = True
            commands, self._commands = self._commands, deque()
            at_end = self._at_end
        self._core.close()
        reason = EngineClosed(f"the engine stopped: {self._failure}" if self._failure else "the engine was closed")
        for rid, sink in self._sinks.items():
            try:
                sink(reason)
            except Exception:
                logger.debug("the end of %s has no receiver", rid, exc_info=True)
        self._sinks.clear()
        for callback in at_end:
            callback(self._failure)
        for command in commands:
            command()

    def _serve(self) -> bool:
        """Carry out commands; wait for more while there is no work. False when it is time to stop."""
        checked = False
        while True:
            pause = None if checked else _IDLE_SECONDS
            expiry = self._core.seconds_to_expiry()
            expires = expiry is not None and (pause is None or expiry < pause)
            commands = self._next_commands(expiry if expires else pause)
            if commands is None:
                return False
            for command in commands:
                command()
            if self._core.has_work or self._core.has_news:
                return True
            self._core.expire_holds()
            if expires and not commands:
                continue
            # Once in every pause, and only in one that lasts, there is time for what nobody should wait for.
            checked = not commands
            if checked:
                self._core.idle()
                if self._on_idle is not None:
                    self._on_idle()

    def _next_commands(self, timeout: float | None) -> deque[Callable[[], None]] | None:
        """What is to be done, at once if there is work; empty after ``timeout`` seconds of nothing, None once closed."""
        with self._wake:
            self._wake.wait_for(
                lambda: self._commands or self._closed or self._core.has_work or self._core.has_news, timeout
            )
            if self._closed:
                return None
            commands, self._commands = self._commands, deque()
            return commands

    def _deliver(self, chunk: GenerationChunk) -> None:
        sink = self._sinks.get(chunk.rid)
        if sink is None:
            return
        if chunk.output is not None:
            del self._sinks[chunk.rid]
        try:
            sink(chunk)
        except Exception:
            # The receiver is gone (its event loop was closed): nobody wants the rest.
            logger.debug("chunks of %s have no receiver", chunk.rid, exc_info=True)
            self._sinks.pop(chunk.rid, None)
            self._core.abort(chunk.rid)
