"""Programs: functions over a state, and the ways to run them."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, overload

from radixlang.batch import Batch, BatchItem
from radixlang.errors import InvalidProgram
from radixlang.execution import Execution
from radixlang.hints import Hints, hints_for
from radixlang.loop import background_loop, body_threads, running_loop, wait_from_thread
from radixlang.options import Options, split
from radixlang.run import Run
from radixlang.state import ProgramState

# Programs of a batch that run at the same time if nobody says.
CONCURRENCY = 128


class Program:
    """A function whose first parameter is the state; made by `function`.

    Every way to run it takes the function's own arguments, and as keywords: the fields of `Sampling` as defaults of its
    `gen`s; ``backend`` (or the default one); ``hints`` (False: the engine is told nothing in advance; the results are the same);
    ``heal`` (token healing where a `gen` says nothing); ``timeout``, seconds after which the program ends with `TimedOut`. Where a
    parameter of the function has the name of an option, it is the function's.

    Called with a state as the first argument it is a sub-program: its body goes on with that state, under the options of that state's
    run (its own ``heal`` is for runs of its own), and its result is returned.
    """

    def __init__(self, body: Callable[..., Any], *, heal: bool = True, bound: Mapping[str, Any] | None = None) -> None:
        if inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body):
            raise InvalidProgram("function", "a body is a def or async def without yield")
        self.body = body
        self.is_async = inspect.iscoroutinefunction(body)
        self._heal = heal
        self._bound = dict(bound or {})
        self._signature = inspect.signature(body)
        if not self._signature.parameters:
            raise InvalidProgram("function", "a body takes the state as its first parameter")
        functools.update_wrapper(self, body)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """With a state first: the body's result. Without: the same as `run`."""
        if args and isinstance(args[0], ProgramState):
            return self.body(*args, **{**self._bound, **kwargs})
        return self.run(*args, **kwargs)

    def bind(self, **arguments: Any) -> Program:
        """The program with some arguments given already."""
        unknown = [name for name in arguments if name not in self._signature.parameters]
        if unknown:
            raise InvalidProgram(unknown[0], f"is no parameter of {self.body.__name__}")
        return Program(self.body, heal=self._heal, bound={**self._bound, **arguments})

    def run(self, *args: Any, **kwargs: Any) -> ProgramState:
        """Run it and return its final state. Raises what the body raises, and `ProgramError` for a failure that it was not told of.

        Works in a notebook and under any running loop. ``stream=True`` returns at once, with a state to watch: read its
        variables, or iterate over `ProgramState.stream`, while the body runs.
        """
        loop = background_loop()
        if running_loop() is loop:
            raise InvalidProgram("run", "would block the loop that it waits for: in an async program use await arun")
        own, options = self._prepare(args, kwargs)
        execution = self._execution(own, options, loop)
        if options.stream:
            # A thread of its own: whoever watches may be a body on one of the shared threads, and wait for this one to get one.
            thread = ThreadPoolExecutor(1, thread_name_prefix="radixlang-streamed")
            running = asyncio.run_coroutine_threadsafe(execution.on_loop(thread), loop)
            running.add_done_callback(lambda _: thread.shutdown(wait=False))
            execution.run.holder = running
            return execution.state.watcher()
        if self.is_async:
            return wait_from_thread(execution.on_loop(body_threads()), loop)
        return execution.here()

    async def arun(self, *args: Any, **kwargs: Any) -> ProgramState:
        """The same, awaited, on the caller's loop. A ``def`` body runs on a thread of a bounded pool. Cancelling it aborts its calls."""
        own, options = self._prepare(args, kwargs)
        execution = self._execution(own, options, asyncio.get_running_loop())
        if options.stream:
            task = asyncio.create_task(execution.on_loop(body_threads()))
            # Whoever watches the state sees the error there.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            execution.run.holder = task
            return execution.state.watcher()
        return await execution.on_loop(body_threads())

    @overload
    def run_batch(
        self, items: Sequence[BatchItem], *, generator_style: Literal[True], **kwargs: Any
    ) -> Generator[ProgramState, None, None]: ...
    @overload
    def run_batch(
        self, items: Sequence[BatchItem], *, generator_style: Literal[False] = False, **kwargs: Any
    ) -> list[ProgramState]: ...
    def run_batch(
        self, items: Sequence[BatchItem], *, generator_style: bool = False, **kwargs: Any
    ) -> list[ProgramState] | Generator[ProgramState, None, None]:
        """Run it once for each of ``items`` (arguments as a mapping by name, or a sequence) and return the final states in that order.

        ``concurrency`` (SGLang: ``num_threads``): so many run at a time. ``errors``: ``raise`` the first one, which ends the others, or
        ``keep`` it as its state's `error`. ``progress_bar``: on standard error. ``generator_style``: an iterator, whose
        states come as soon as all before them are there.
        """
        loop = background_loop()
        if running_loop() is loop:
            raise InvalidProgram(
                "run_batch", "would block the loop that it waits for: in an async program use await arun_batch"
            )
        batch = self._batch(items, kwargs, loop)
        return batch.iterate() if generator_style else wait_from_thread(batch.all(), loop)

    async def arun_batch(self, items: Sequence[BatchItem], **kwargs: Any) -> list[ProgramState]:
        """The same as `run_batch`, awaited, on the caller's loop."""
        return await self._batch(items, kwargs, asyncio.get_running_loop()).all()

    def _batch(self, items: Sequence[BatchItem], kwargs: Mapping[str, Any], loop: asyncio.AbstractEventLoop) -> Batch:
        keywords = dict(kwargs)
        concurrency = _concurrency(keywords.pop("concurrency", None), keywords.pop("num_threads", None))
        errors = keywords.pop("errors", "raise")
        if errors not in ("raise", "keep"):
            raise InvalidProgram("errors", f"is raise or keep, not {errors!r}")
        progress = bool(keywords.pop("progress_bar", False))
        common, given = split(keywords, self._signature)
        options = Options.of(given)
        if options.stream:
            raise InvalidProgram("stream", "is for single programs")
        bodies = [self._call(*_arguments(number, item, common), number=number) for number, item in enumerate(items)]
        hints = hints_for(options.backend, on=options.hints)

        def execution(number: int) -> Execution:
            return self._execution(bodies[number], options, loop, hints=hints)

        return Batch(
            loop=loop,
            size=len(bodies),
            execution=execution,
            hints=hints,
            concurrency=concurrency,
            keep_errors=errors == "keep",
            progress=progress,
            threads=not self.is_async,
        )

    def _prepare(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Callable[[ProgramState], Any], Options]:
        own, given = split(kwargs, self._signature)
        return self._call(args, own), Options.of(given)

    def _call(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], number: int | None = None
    ) -> Callable[[ProgramState], Any]:
        keywords = {**self._bound, **kwargs}
        try:
            self._signature.bind(None, *args, **keywords)
        except TypeError as error:
            where = "" if number is None else f"item {number} of the batch: "
            raise TypeError(f"{where}{self.body.__name__}: {error}") from None
        return lambda state: self.body(state, *args, **keywords)

    def _execution(
        self,
        body: Callable[[ProgramState], Any],
        options: Options,
        loop: asyncio.AbstractEventLoop,
        *,
        hints: Hints | None = None,
    ) -> Execution:
        run = Run(
            options.backend,
            loop,
            hints or hints_for(options.backend, on=options.hints),
            sampling=options.sampling,
            heal=self._heal if options.heal is None else options.heal,
            streams=hints is None,
        )
        state = ProgramState(run, run.interpreter())
        return Execution(run, state, body, self.is_async, options.timeout, owns_hints=hints is None)


def _concurrency(concurrency: int | None, num_threads: int | str | None) -> int:
    if concurrency is not None and num_threads is not None:
        raise InvalidProgram("num_threads", "is given twice, as concurrency too")
    name, value = ("concurrency", concurrency) if num_threads is None else ("num_threads", num_threads)
    if value is None or (name == "num_threads" and value == "auto"):
        return CONCURRENCY
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidProgram(name, f"is a whole number of at least 1, not {value!r}")
    return value


def _arguments(number: int, item: object, common: Mapping[str, Any]) -> tuple[Sequence[Any], dict[str, Any]]:
    if isinstance(item, Mapping):
        return (), {**common, **item}
    if isinstance(item, Sequence) and not isinstance(item, str):
        return item, dict(common)
    raise InvalidProgram("items", f"item {number} is neither a mapping of arguments nor a sequence of them")


@overload
def function(body: Callable[..., Any]) -> Program: ...
@overload
def function(*, heal: bool = True) -> Callable[[Callable[..., Any]], Program]: ...
def function(
    body: Callable[..., Any] | None = None, *, heal: bool = True
) -> Program | Callable[[Callable[..., Any]], Program]:
    """Make a program of a function whose first parameter is the state. ``heal``: token healing where a `gen` says nothing."""
    if body is None:
        return lambda body: Program(body, heal=heal)
    return Program(body, heal=heal)
