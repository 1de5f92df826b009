"""Threads in which bodies of programs run, one at a time: which of several goes first must not be the operating system's choice."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Body:
    """``arrived``: it has a thread. ``future``: what it waits for, None before it has begun. ``over``: nobody waits for it any more.
    ``posts``: what it has asked of the loop since it last waited.
    """

    executor: Executor
    arrived: bool = False
    over: bool = False
    future: Future[Any] | None = None
    posts: list[Callable[[], Any]] = field(default_factory=list)
    turn: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    @property
    def ready(self) -> bool:
        """Whether it could go on."""
        return self.future is None or self.future.done()


class Bodies:
    """``notify`` calls a function on the event loop, from any thread. `wait` and `post` are called on the threads, all else on the
    loop's.
    """

    def __init__(self, notify: Callable[[Callable[[], Any]], Any]) -> None:
        self._notify = notify
        self._lock = threading.Lock()
        self._bodies: list[Body] = []
        self._running: Body | None = None
        self._strangers: list[Future[Any]] = []
        self._closed = False
        self._own = threading.local()

    def add(self, executor: Executor, function: Callable[..., T]) -> tuple[Body, Callable[..., T]]:
        """``function`` as the next body, to be called on a thread of ``executor``; the loop says when it has `ended`."""
        body = Body(executor)
        with self._lock:
            self._bodies.append(body)

        def run(*args: Any) -> T:
            self._own.body = body
            self._yield(body)
            try:
                return function(*args)
            finally:
                self._own.body = None
                self._deliver(body)

        return body, run

    def ended(self, body: Body) -> None:
        """The loop knows what came of a body, or does not care any more: then it goes on as it likes."""
        with self._lock:
            body.over = True
            self._bodies.remove(body)
            if self._running is body:
                self._running = None
        body.turn.release()

    def wait(self, future: Future[Any]) -> None:
        """The calling thread has nothing to do until ``future`` is done; returns when it is this body's turn after that."""
        body: Body | None = getattr(self._own, "body", None)
        if body is None or body.over:
            # A thread that a body or somebody else made: it comes and goes as it likes, and is waited for a moment only.
            with self._lock:
                self._strangers = [*(other for other in self._strangers if not other.done()), future]
            self._wake()
            return
        body.future = future
        self._deliver(body)
        self._yield(body)

    def post(self, call: Callable[[], Any]) -> bool:
        """Keep what the calling body asks of the loop until it waits or returns: all of it comes at once then, so that it does not
        matter how far the loop would have got meanwhile. False where the caller is no body.
        """
        body: Body | None = getattr(self._own, "body", None)
        if body is None:
            return False
        with self._lock:
            if body.over or self._closed:
                return False
            body.posts.append(call)
        return True

    def deliver(self) -> None:
        """Do not wait for the body that runs: whoever it waits for may be waiting for what it has asked."""
        with self._lock:
            running = self._running
        if running is not None:
            self._deliver(running)

    def _deliver(self, body: Body) -> None:
        with self._lock:
            posts, body.posts = body.posts, []
        if posts:
            self._notify(lambda: [call() for call in posts])

    def go_on(self) -> bool:
        """Let the next body that can go on do so; whether one runs, or is about to."""
        with self._lock:
            if self._running is not None:
                return True
            if any(self._is_coming(body) for body in self._bodies):
                return True
            self._running = next((body for body in self._bodies if body.arrived and body.ready), None)
            if self._running is None:
                return False
            self._running.turn.release()
            return True

    def strangers_wait(self) -> bool:
        """Whether threads that are no bodies wait for the loop."""
        with self._lock:
            return any(not future.done() for future in self._strangers)

    def close(self) -> None:
        """The loop ends: nothing that bodies still wait for will come."""
        with self._lock:
            self._closed = True
            for body in self._bodies:
                if body.future is not None:
                    body.future.cancel()
                body.turn.release()

    def _is_coming(self, body: Body) -> bool:
        """Whether it has no thread yet, but its executor has one for it."""
        if body.arrived:
            return False
        threads = getattr(body.executor, "_max_workers", len(self._bodies))
        return sum(other.arrived for other in self._bodies if other.executor is body.executor) < threads

    def _yield(self, body: Body) -> None:
        with self._lock:
            body.arrived = True
            if self._running is body:
                self._running = None
            if self._closed or body.over:
                return
        self._wake()
        body.turn.acquire()

    def _wake(self) -> None:
        with self._lock:
            if self._closed:
                return
        self._notify(_nothing)


def _nothing() -> None:
    pass
