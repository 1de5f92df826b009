"""The engine's side of a client: jobs and questions in, what the steps bring out, once a step.

Both the client in this process and the engine process stand on it; only the way from here to the client differs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from radixserve.engine import wire
from radixserve.engine.client import Job
from radixserve.engine.core import EngineCore
from radixserve.engine.loop import EngineLoop, Sink
from radixserve.errors import CacheInconsistent, EngineClosed
from radixserve.grammar.compiler import Compiled, ConstraintCompiler
from radixserve.messages import GenerationChunk

# They only wait: a compilation has threads of its own, and a second at most.
_PREPARERS = 8


class Receiver(Protocol):
    """Where what happens is told; called on any thread, must not block."""

    def pieces(self, pieces: list[tuple[int, GenerationChunk]]) -> None:
        """All chunks of a step, each with its job's number."""

    def answered(self, number: int, value: Any) -> None:
        """The answer to a question."""

    def refused(self, number: int, error: BaseException) -> None:
        """A submission was not queued, or a question raised."""


class Dispatcher:
    """Carries a client's requests to ``loop`` and tells ``receiver`` what comes of them.

    Jobs with constraints wait on a thread of their own until these are compiled; nothing else waits for them.
    """

    def __init__(self, loop: EngineLoop, receiver: Receiver) -> None:
        self._loop = loop
        self._receiver = receiver
        self._fresh: list[tuple[int, GenerationChunk]] = []
        self._preparers = ThreadPoolExecutor(_PREPARERS, "radixserve-constraints")
        self._lock = threading.Lock()
        # Rids whose constraints are being compiled, and whether they were aborted meanwhile; under the lock.
        self._preparing: dict[str, bool] = {}
        loop.after_step(self._after_step)
        loop.at_end(lambda _: self._preparers.shutdown(wait=False, cancel_futures=True))

    def submit(self, number: int, jobs: Sequence[Job]) -> None:
        """Queue all jobs or none; job i is called ``number + i`` in what is told of it."""
        compiler = self._loop.compiler
        if compiler is None or all(job.sampling.constraint is None for job in jobs):
            self._queue(number, jobs, [None] * len(jobs))
            return
        with self._lock:
            self._preparing |= {job.rid: False for job in jobs}
        try:
            self._preparers.submit(self._prepare, compiler, number, jobs)
        except RuntimeError:  # the loop has ended
            self._prepared(jobs)
            self._receiver.refused(number, EngineClosed("the engine is closed"))

    def abort(self, rids: Sequence[str]) -> None:
        """End generations; unknown and finished ones are left alone."""
        with self._lock:
            self._preparing |= {rid: True for rid in rids if rid in self._preparing}
            self._call(lambda core: core.abort(*rids), lambda _: None, lambda _: None)

    def ask(self, number: int, question: wire.Question) -> None:
        """Answer a question between two steps."""
        self._call(
            lambda core: answer(core, question),
            lambda value: self._receiver.answered(number, value),
            lambda error: self._receiver.refused(number, error),
        )

    def _prepare(self, compiler: ConstraintCompiler, number: int, jobs: Sequence[Job]) -> None:
        """Compile what the jobs want and queue them."""
        try:
            compiled = [compiler.prepare(job.sampling) for job in jobs]
        except Exception as error:
            self._prepared(jobs)
            self._receiver.refused(number, error)
            return
        # An abort comes either before this, and is made up for, or after it, and finds the jobs queued.
        with self._lock:
            aborted = [job.rid for job in jobs if self._preparing.pop(job.rid)]
            self._queue(number, jobs, compiled)
            if aborted:
                self._call(lambda core: core.abort(*aborted), lambda _: None, lambda _: None)

    def _prepared(self, jobs: Sequence[Job]) -> None:
        with self._lock:
            for job in jobs:
                self._preparing.pop(job.rid, None)

    def _queue(self, number: int, jobs: Sequence[Job], compiled: Sequence[Compiled | None]) -> None:
        additions = [
            (job.rid, _adder(job, constraint), self._sink(number + index))
            for index, (job, constraint) in enumerate(zip(jobs, compiled, strict=True))
        ]

        def queued(error: BaseException | None) -> None:
            if error is not None:
                self._receiver.refused(number, error)

        try:
            self._loop.submit(additions).add_done_callback(lambda future: queued(future.exception()))
        except EngineClosed as error:
            queued(error)

    def _call(
        self,
        function: Callable[[EngineCore], Any],
        done: Callable[[Any], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        try:
            future = self._loop.call(function)
        except EngineClosed as error:
            failed(error)
            return
        future.add_done_callback(
            lambda future: done(future.result()) if (error := future.exception()) is None else failed(error)
        )

    def _sink(self, number: int) -> Sink:
        def put(item: GenerationChunk | Exception) -> None:
            # That all has ended is told once, by the loop.
            if isinstance(item, GenerationChunk):
                self._fresh.append((number, item))

        return put

    def _after_step(self) -> None:
        if self._fresh:
            pieces, self._fresh = self._fresh, []
            self._receiver.pieces(pieces)


def _adder(job: Job, compiled: Compiled | None) -> Callable[[EngineCore], None]:
    return lambda core: core.add(
        job.rid,
        job.token_ids,
        job.sampling,
        priority=job.priority,
        salt=job.salt,
        explain=job.explain,
        pooling=job.pooling,
        compiled=compiled,
        heal=job.heal,
        hold_s=job.hold_s,
    )


def answer(core: EngineCore, question: wire.Question) -> Any:
    """What ``core`` says to ``question``."""
    match question:
        case wire.Explain():
            return core.explain(question.token_ids, salt=question.salt, see_all=question.see_all)
        case wire.Flush():
            return core.flush(question.salt)
        case wire.Release():
            return core.release(question.ids)
        case wire.Stats():
            return core.stats()
        case wire.View():
            return core.cache_view(question.salt, max_nodes=question.max_nodes, max_tokens=question.max_tokens)
        case wire.Check():
            try:
                core.cache.check()
            except CacheInconsistent as error:
                return error.facts
            return []
