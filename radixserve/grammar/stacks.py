"""Threads with a deep stack.

A grammar of thousands of rules that refer to one another makes the library recurse that deep; on a usual stack of 8 MiB
that ends the process. The memory is only reserved: what is never touched costs nothing.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")
_Work = queue.SimpleQueue[Callable[[], None] | None]

STACK_BYTES = 512 << 20
_starting = threading.Lock()


class DeepStackThreads:
    """Up to ``count`` threads, started as they are needed; they end when nobody holds this object any more."""

    def __init__(self, count: int, name: str) -> None:
        self._name = name
        self._count = count
        self._work: _Work = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._started = 0
        self._unfinished = 0
        weakref.finalize(self, _end, self._work, count)

    def submit(self, function: Callable[[], T]) -> Future[T]:
        """Run ``function`` on one of the threads; what it returns or raises is the future's."""
        future: Future[T] = Future()

        def task() -> None:
            try:
                result = function()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        future.add_done_callback(self._finished)
        with self._lock:
            self._unfinished += 1
            start = self._started < min(self._count, self._unfinished)
            self._started += start
        if start:
            _start(self._work, f"{self._name}-{self._started}")
        self._work.put(task)
        return future

    def _finished(self, future: Future[T]) -> None:
        with self._lock:
            self._unfinished -= 1


def _start(work: _Work, name: str) -> None:
    thread = threading.Thread(target=_run, args=(work,), name=name, daemon=True)
    with _starting:
        # The setting belongs to the process: a thread that somebody else starts just now is deep as well, no more.
        before = threading.stack_size(STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(before)


def _run(work: _Work) -> None:
    while (task := work.get()) is not None:
        task()
        del task


def _end(work: _Work, count: int) -> None:
    for _ in range(count):
        work.put(None)
