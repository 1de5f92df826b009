"""The event loop behind the synchronous face, and the threads in which bodies of programs run."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol, TypeVar, runtime_checkable

_T = TypeVar("_T")

# Bodies that wait for the model at the same time, of programs that were started one by one; a batch has threads of its own.
BODIES = 256


@runtime_checkable
class WatchfulLoop(Protocol):
    """A loop that knows which threads wait for it, and says when they go on: a plan's, whose engine makes a step when all wait."""

    def wait_in_thread(self, future: Future[Any]) -> None:
        """Return when ``future`` is done, or leave it to the caller to wait for that."""


class _Background:
    """One loop on a daemon thread, shared by all synchronous runs of the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._bodies: ThreadPoolExecutor | None = None
        self._process = 0

    def loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            self._after_fork()
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="radixlang", daemon=True).start()
            return self._loop

    def bodies(self) -> ThreadPoolExecutor:
        with self._lock:
            self._after_fork()
            if self._bodies is None:
                self._bodies = ThreadPoolExecutor(BODIES, thread_name_prefix="radixlang-body")
            return self._bodies

    def _after_fork(self) -> None:
        """A forked process has this object but none of its threads."""
        if self._process != os.getpid():
            self._process, self._loop, self._bodies = os.getpid(), None, None


_background = _Background()


def background_loop() -> asyncio.AbstractEventLoop:
    """The shared loop, started at first use."""
    return _background.loop()


def body_threads() -> ThreadPoolExecutor:
    """Threads for the bodies of programs."""
    return _background.bodies()


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The loop that runs on this thread, if one does."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def wait_from_thread(coroutine: Coroutine[Any, Any, _T], loop: asyncio.AbstractEventLoop) -> _T:
    """Run ``coroutine`` on ``loop`` and wait for it on this thread, which is not the loop's."""
    future = asyncio.run_coroutine_threadsafe(coroutine, loop)
    if isinstance(loop, WatchfulLoop):
        loop.wait_in_thread(future)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


async def wait_from_loop(coroutine: Coroutine[Any, Any, _T], loop: asyncio.AbstractEventLoop) -> _T:
    """Await ``coroutine``, which belongs to ``loop``, wherever this runs."""
    if running_loop() is loop:
        return await coroutine
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, loop))
