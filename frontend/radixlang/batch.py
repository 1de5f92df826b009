"""Many runs of one program: bounded, in order, with their errors."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from radixlang.execution import Execution
from radixlang.hints import Hints
from radixlang.loop import body_threads, wait_from_thread
from radixlang.state import ProgramState

# Seconds between two pictures of a progress bar.
REDRAW_S = 0.1

# The arguments of one program: by name, or in order.
BatchItem = Mapping[str, Any] | Sequence[Any]


@dataclass(slots=True)
class Batch:
    """``size`` programs, made by ``execution`` when their turn comes, at most ``concurrency`` at a time.

    ``keep_errors``: they stay with their states; otherwise the first one ends all. ``threads``: bodies need threads. For one use.
    """

    loop: asyncio.AbstractEventLoop
    size: int
    execution: Callable[[int], Execution]
    hints: Hints
    concurrency: int
    keep_errors: bool
    progress: bool
    threads: bool
    _results: list[asyncio.Future[ProgramState]] = field(default_factory=list)

    async def all(self) -> list[ProgramState]:
        """All final states, in order."""
        self._prepare()
        await self._work()
        return [result.result() for result in self._results]

    def iterate(self) -> Generator[ProgramState, None, None]:
        """The final states one by one, in order, from a thread. Leaving early ends the rest."""
        wait_from_thread(self._prepared(), self.loop)
        work = asyncio.run_coroutine_threadsafe(self._work(), self.loop)
        try:
            for result in self._results:
                yield wait_from_thread(_awaited(result), self.loop)
        finally:
            work.cancel()

    async def _prepared(self) -> None:
        self._prepare()

    def _prepare(self) -> None:
        self._results = [self.loop.create_future() for _ in range(self.size)]

    async def _work(self) -> None:
        """Run all programs. Raises the first error, unless errors are kept."""
        bar = ProgressBar(self.size) if self.progress else None
        numbers = iter(range(self.size))
        width = min(self.concurrency, self.size)
        threads = ThreadPoolExecutor(width, thread_name_prefix="radixlang-batch") if self.threads and width else None
        workers = [self.loop.create_task(self._worker(numbers, threads or body_threads(), bar)) for _ in range(width)]
        try:
            await asyncio.gather(*workers)
        except BaseException as error:
            for worker in workers:
                worker.cancel()
            if workers:
                await asyncio.wait(workers)
            self._give_up(error)
            raise
        finally:
            if threads is not None:
                threads.shutdown(wait=False)
            if bar is not None:
                bar.end()
            await self.hints.close()

    def _give_up(self, error: BaseException) -> None:
        for result in self._results:
            if not result.done():
                result.set_exception(error if isinstance(error, Exception) else asyncio.CancelledError())
                # It may be that nobody comes to read it.
                result.exception()

    async def _worker(self, numbers: Iterator[int], threads: Executor, bar: ProgressBar | None) -> None:
        for number in numbers:
            execution = self.execution(number)
            try:
                await execution.on_loop(threads)
            except Exception as error:
                if not self.keep_errors:
                    error.add_note(f"item {number} of the batch")
                    raise
            self._results[number].set_result(execution.state)
            if bar is not None:
                bar.step()


async def _awaited(result: asyncio.Future[ProgramState]) -> ProgramState:
    return await asyncio.shield(result)


class ProgressBar:
    """A line on standard error that tells how many of ``total`` are done."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._start = time.perf_counter()
        self._drawn = 0.0
        self._draw()

    def step(self) -> None:
        """One more is done."""
        self._done += 1
        if time.perf_counter() - self._drawn >= REDRAW_S:
            self._draw()

    def end(self) -> None:
        """Draw it for the last time."""
        self._draw()
        sys.stderr.write("\n")
        sys.stderr.flush()

    def _draw(self) -> None:
        self._drawn = time.perf_counter()
        width = 30
        filled = width * self._done // self._total if self._total else width
        rate = self._done / max(time.perf_counter() - self._start, 1e-9)
        sys.stderr.write(
            f"\r[{'#' * filled}{'.' * (width - filled)}] {self._done:,}/{self._total:,}  {rate:.1f} a second "
        )
        sys.stderr.flush()
