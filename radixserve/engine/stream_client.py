"""What all clients of an engine have in common: many streams and questions over one way to it and one way back."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from radixserve.engine import wire
from radixserve.engine.client import CacheView, EngineInfo, Job
from radixserve.errors import EngineClosed, InvalidRequest
from radixserve.messages import Explanation, GenerationChunk


class _Stream:
    """Jobs that were queued together and what has come of them; ``running`` are the numbers of those that go on."""

    __slots__ = ("items", "jobs", "number", "running", "waiter")

    def __init__(self, number: int, jobs: list[Job]) -> None:
        self.number = number
        self.jobs = jobs
        self.running = set(range(number, number + len(jobs)))
        self.items: deque[GenerationChunk | Exception] = deque()
        self.waiter: asyncio.Future[None] | None = None

    def push(self, item: GenerationChunk | Exception) -> None:
        self.items.append(item)
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    async def next(self) -> GenerationChunk:
        while not self.items:
            self.waiter = asyncio.get_running_loop().create_future()
            try:
                await self.waiter
            finally:
                self.waiter = None
        item = self.items.popleft()
        if isinstance(item, Exception):
            raise item
        return item


class StreamClient(ABC):
    """An `EngineClient` but for the ways there and back.

    A subclass sends requests (`_send`) and reports what comes: `_deliver`, `_answer`, `_refuse`, and `_end` once nothing more
    will. All of it happens on one event loop.
    """

    def __init__(self) -> None:
        self._info: EngineInfo | None = None
        self._numbers = itertools.count()
        self._streams: dict[int, _Stream] = {}
        self._rids: set[str] = set()
        self._questions: dict[int, tuple[asyncio.Future[Any], Any]] = {}
        self._ended: str | None = None
        self._closed = False
        self._failed = asyncio.Event()

    @abstractmethod
    def _send(self, request: wire.Call) -> None:
        """Put ``request`` on its way; raises `EngineClosed` where that cannot be."""

    @abstractmethod
    async def start(self) -> None:
        """See `EngineClient.start`."""

    @abstractmethod
    async def close(self) -> None:
        """See `EngineClient.close`."""

    # ---------------------------------------------------------------- facts

    @property
    def info(self) -> EngineInfo:
        """Facts about the engine; known once `start` has returned."""
        if self._info is None:
            raise EngineClosed("the engine has not started")
        return self._info

    @property
    def failure(self) -> str | None:
        """Why the engine is gone; None while it lives or after an orderly `close`."""
        return None if self._closed else self._ended

    async def wait_failed(self) -> str:
        """Return the reason once the engine is gone without having been closed; wait until then."""
        await self._failed.wait()
        assert self._ended is not None, "what failed has ended"
        return self._ended

    # ---------------------------------------------------------------- calls

    async def generate(self, jobs: Sequence[Job]) -> AsyncGenerator[GenerationChunk, None]:
        """Queue the jobs together, all or none, and yield their chunks as they come; see `EngineClient`."""
        stream = self._open(jobs)
        try:
            if jobs:
                self._send(wire.Submit(stream.number, stream.jobs))
            while stream.running or stream.items:
                yield await stream.next()
        finally:
            self._abandon(stream)

    async def abort(self, rids: Sequence[str]) -> None:
        """End generations; unknown and finished ones are left alone."""
        self._check_alive()
        self._send(wire.Abort(list(rids)))

    async def explain(self, token_ids: list[int], *, salt: bytes, see_all: bool = False) -> Explanation:
        """Why a prompt would not hit more of the cache than it would now."""
        explanation: Explanation = await self._ask(wire.Explain(token_ids, salt, see_all), Explanation)
        return explanation

    async def flush(self, salt: bytes | None = None) -> int:
        """Drop the KV of one namespace (None: of all) that no request uses; returns the number of blocks."""
        blocks: int = await self._ask(wire.Flush(salt), int)
        return blocks

    async def release(self, ids: Sequence[str]) -> int:
        """End holds, by the rids of the jobs that took them; unknown ones are left alone. Returns how many there were."""
        count: int = await self._ask(wire.Release(list(ids)), int)
        return count

    async def stats(self) -> dict[str, Any]:
        """Gauges and counters of cache, scheduler and steps."""
        stats: dict[str, Any] = await self._ask(wire.Stats(), dict[str, Any])
        return stats

    async def cache_view(self, *, salt: bytes | None, max_nodes: int = 1000, max_tokens: int = 64) -> CacheView:
        """The tree of one namespace and the public prefixes above it (None: everything)."""
        view: CacheView = await self._ask(wire.View(salt, max_nodes, max_tokens), CacheView)
        return view

    async def check(self) -> list[str]:
        """Recount the cache's books; every difference found, empty if they are right."""
        facts: list[str] = await self._ask(wire.Check(), list[str])
        return facts

    # ---------------------------------------------------------------- what comes

    def _stream_of(self, number: int) -> tuple[_Stream, Job, int] | None:
        """The stream of job ``number``, the job and its place; None once nobody listens to it."""
        stream = self._streams.get(number)
        if stream is None:
            return None
        return stream, stream.jobs[number - stream.number], number - stream.number

    def _deliver(self, stream: _Stream, number: int, chunk: GenerationChunk) -> None:
        """``chunk`` of job ``number`` came."""
        if chunk.output is not None:
            stream.running.discard(number)
            self._forget(stream, number)
        stream.push(chunk)

    def _answer(self, number: int, value: Any) -> None:
        """The answer to question ``number`` came, decoded."""
        future, _ = self._questions.pop(number, (None, None))
        if future is not None and not future.done():
            future.set_result(value)

    def _refuse(self, number: int, error: Exception) -> None:
        """Submission or question ``number`` was refused."""
        future, _ = self._questions.pop(number, (None, None))
        stream = self._streams.get(number)
        if future is not None and not future.done():
            future.set_exception(error)
        elif stream is not None:
            self._break(stream, error)

    def _end(self, reason: str | None) -> None:
        """Nothing more will come; ``reason`` None: because of `close`. The first reason stands."""
        if self._ended is not None:
            return
        self._ended = reason or "the engine was closed"
        for stream in set(self._streams.values()):
            self._break(stream, self._gone())
        questions, self._questions = self._questions, {}
        for future, _ in questions.values():
            if not future.done():
                future.set_exception(self._gone())
        if not self._closed:
            self._failed.set()

    # ---------------------------------------------------------------- inside

    def _note_close(self) -> None:
        """The client is being closed: what ends now ends in order. An engine that failed before has failed."""
        if self._ended is None:
            self._closed = True

    def _gone(self) -> EngineClosed:
        return EngineClosed(self._ended or "the engine was closed")

    def _check_alive(self) -> None:
        if self._closed or self._ended is not None:
            raise self._gone()
        if self._info is None:
            raise EngineClosed("the engine has not started")

    def _open(self, jobs: Sequence[Job]) -> _Stream:
        self._check_alive()
        rids = [job.rid for job in jobs]
        for index, rid in enumerate(rids):
            if rid in self._rids or rid in rids[:index]:
                raise InvalidRequest("rid", f"{rid!r} is in use")
        numbers = [next(self._numbers) for _ in jobs]
        stream = _Stream(numbers[0] if numbers else 0, list(jobs))
        self._streams |= dict.fromkeys(numbers, stream)
        self._rids.update(rids)
        return stream

    def _forget(self, stream: _Stream, number: int) -> None:
        if self._streams.pop(number, None) is not None:
            self._rids.discard(stream.jobs[number - stream.number].rid)

    def _break(self, stream: _Stream, error: Exception) -> None:
        """``error`` ends all that is left of ``stream``."""
        for number in stream.running:
            self._forget(stream, number)
        stream.running.clear()
        stream.push(error)

    def _abandon(self, stream: _Stream) -> None:
        """Nobody listens to ``stream`` any more."""
        if not stream.running:
            return
        rids = [stream.jobs[number - stream.number].rid for number in sorted(stream.running)]
        for number in stream.running:
            self._forget(stream, number)
        stream.running.clear()
        with contextlib.suppress(EngineClosed):
            self._send(wire.Abort(rids))

    async def _ask(self, question: wire.Question, kind: Any) -> Any:
        self._check_alive()
        number = next(self._numbers)
        future = asyncio.get_running_loop().create_future()
        self._questions[number] = (future, kind)
        try:
            self._send(wire.Ask(number, question))
            return await future
        finally:
            self._questions.pop(number, None)
