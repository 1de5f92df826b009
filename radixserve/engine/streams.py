"""Chunks on their way from the engine's thread to whoever asked, in both faces of the offline API."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import queue
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from radixserve.engine.core import EngineCore
from radixserve.engine.loop import EngineLoop, Sink
from radixserve.errors import EngineClosed
from radixserve.grammar.compiler import Compiled, ConstraintCompiler
from radixserve.messages import GenerationChunk, GenerationOutput, Pooling, SamplingParams

Item = GenerationChunk | Exception


@dataclass(frozen=True, slots=True)
class Submission:
    """Prompts that are queued together, with their names and parameters; what they share comes after."""

    rids: Sequence[str]
    prompts: Sequence[list[int]]
    sampling: Sequence[SamplingParams]
    priority: int = 0
    salt: bytes = b""
    explain: bool = False
    pooling: Pooling | None = None
    compiled: Sequence[Compiled | None] = ()
    heal: bool = False
    hold_s: float | None = None

    @property
    def constrained(self) -> bool:
        """Whether it must be `prepared` before it is queued."""
        return any(map(_is_constrained, self.sampling))

    def prepared(self, compiler: ConstraintCompiler | None) -> Submission:
        """This with its constraints compiled; waits for that. Raises `InvalidRequest` for one that cannot be enforced."""
        if compiler is None or not self.constrained:
            return self
        compiled = [compiler.prepare(params) if _is_constrained(params) else None for params in self.sampling]
        return dataclasses.replace(self, compiled=compiled)

    def additions(self, sink: Callable[[int], Sink]) -> list[tuple[str, Callable[[EngineCore], None], Sink]]:
        """What `EngineLoop.submit` takes; ``sink(i)`` gets the chunks of prompt i."""
        return [(rid, self._adder(index), sink(index)) for index, rid in enumerate(self.rids)]

    def _adder(self, index: int) -> Callable[[EngineCore], None]:
        return lambda core: core.add(
            self.rids[index],
            self.prompts[index],
            self.sampling[index],
            priority=self.priority,
            salt=self.salt,
            explain=self.explain,
            pooling=self.pooling,
            compiled=self.compiled[index] if self.compiled else None,
            heal=self.heal,
            hold_s=self.hold_s,
        )


def _is_constrained(sampling: object) -> bool:
    # What is no SamplingParams at all is refused later, by the engine.
    return isinstance(sampling, SamplingParams) and sampling.constraint is not None


class ChunkStream(Iterator[GenerationChunk]):
    """The chunks of a submission as they come. Closing or dropping it aborts what still runs."""

    def __init__(self, loop: EngineLoop, submission: Submission) -> None:
        """Queue the submission, so that what is refused is raised here."""
        self._loop = loop
        self._inbox: queue.SimpleQueue[tuple[int, Item]] = queue.SimpleQueue()
        self._running: dict[int, str] = {}
        inbox = self._inbox  # The sinks must not keep the stream alive: dropping it is how it is abandoned.
        submission = submission.prepared(loop.compiler)
        loop.submit(submission.additions(lambda index: lambda item: inbox.put((index, item)))).result()
        self._running = dict(enumerate(submission.rids))

    def __next__(self) -> GenerationChunk:
        if not self._running:
            raise StopIteration
        try:
            index, item = self._inbox.get()
        except BaseException:
            self.close()
            raise
        return _take(self._running, index, item)

    def close(self) -> None:
        """Abort what still runs; no more chunks come."""
        running, self._running = self._running, {}
        _abandon(self._loop, running.values())

    def __del__(self) -> None:
        self.close()


async def stream_chunks(loop: EngineLoop, submission: Submission) -> AsyncIterator[GenerationChunk]:
    """`ChunkStream` for an event loop; the submission is queued when iteration begins."""
    inbox: asyncio.Queue[tuple[int, Item]] = asyncio.Queue()
    event_loop = asyncio.get_running_loop()

    def sink(index: int) -> Sink:
        def put(item: Item) -> None:
            event_loop.call_soon_threadsafe(inbox.put_nowait, (index, item))

        return put

    if submission.constrained:
        submission = await asyncio.to_thread(submission.prepared, loop.compiler)
    running = dict(enumerate(submission.rids))
    try:
        await asyncio.wrap_future(loop.submit(submission.additions(sink)))
        while running:
            yield _take(running, *await inbox.get())
    finally:
        _abandon(loop, running.values())


def collect(chunks: Iterator[GenerationChunk], count: int) -> list[GenerationOutput]:
    """The outputs of ``count`` prompts, in their order."""
    outputs = {chunk.prompt_index: chunk.output for chunk in chunks if chunk.output is not None}
    return [outputs[index] for index in range(count)]


def _take(running: dict[int, str], index: int, item: Item) -> GenerationChunk:
    """The next chunk, numbered; strikes out what it ends. Raises the error that ended all."""
    if isinstance(item, Exception):
        running.clear()
        raise item
    if item.output is not None:
        del running[index]
    return msgspec.structs.replace(item, prompt_index=index)


def _abandon(loop: EngineLoop, rids: Iterable[str]) -> None:
    """Nobody listens to these any more."""
    left = list(rids)
    if left and not loop.closed:
        with contextlib.suppress(EngineClosed):
            loop.call(lambda core: core.abort(*left))
