"""The executor of one state: an asyncio task that does its steps in order and lives only while there are some."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, assert_never

from radixlang.backends.base import RoleMarks, Text, Usage
from radixlang.content import Content
from radixlang.errors import BackendError, InvalidProgram
from radixlang.expressions import Constant, Gen, RoleBegin, RoleEnd, Row, ScopeBegin, ScopeEnd, Select
from radixlang.generation import generate
from radixlang.scoring import score
from radixlang.steps import Close, Concatenate, Fork, Gather, Reach, Step, Write
from radixlang.texts import PLAIN_MARKS, merged
from radixlang.variable import Failure, Variable

if TYPE_CHECKING:
    from radixlang.run import Run


class Interpreter:
    """The executor of a state. All of it belongs to the program's loop, but for ``completed``, which any thread may read.

    ``content``: what its steps have made so far. ``failure``: why it goes no further. ``completed``: the program's steps done, well or not.
    """

    def __init__(self, run: Run, key: int, parent: Interpreter | None) -> None:
        self.run = run
        self.key = key
        self.parent = parent.key if parent is not None else None
        self.branch = "main" if parent is None else parent.name_branch()
        self.content = Content(token_exact=run.tokens is not None)
        self.scopes: list[tuple[Variable, int]] = []
        self.failure: Failure | None = None
        self.completed = 0
        self.task: asyncio.Task[None] | None = None
        self._born = parent is None
        self._closed = False
        self._stopped = False
        self._queue: deque[Step] = deque()
        self._tokens_ahead = 0
        self._branches = 0

    def name_branch(self) -> str:
        """What reports call the next branch."""
        self._branches += 1
        return f"{self.branch}.{self._branches - 1}"

    # What hints see (`radixlang.hints.StateView`).

    def prompt(self) -> Awaitable[list[int]]:
        """The tokens that a call would send, as things stand at this call."""
        return self._encoded(list(self.content.ids), merged(self.content.pending))

    async def _encoded(self, ids: list[int], pending: Sequence[Text]) -> list[int]:
        if not pending and ids:
            return ids
        assert self.run.tokens is not None, "hints and tokens are for token backends"
        return ids + await self.run.tokens.encode(pending, first=not ids)

    def remaining_tokens(self) -> int:
        """The most tokens that the queued steps may generate."""
        return self._tokens_ahead

    def held(self, usage: Usage, prompt: Sequence[int]) -> None:
        """Account for a hold made for this state."""
        self.run.ledger.record(None, "hold", usage, prompt, (), self.branch)

    # The queue.

    def push(self, *steps: Step) -> None:
        """Add steps to the end, and see to it that they are done."""
        self._queue.extend(steps)
        self._tokens_ahead += sum(step.tokens for step in steps if isinstance(step, Write))
        self.run.pulse.beat()
        self._wake()

    def stop(self) -> None:
        """The run was stopped: end the running step; those in the queue and all later ones fail. Later stops change nothing."""
        # Once only: a call that is being ended closes its connection, and a second cancellation would end that.
        if self.task is not None and not self._stopped:
            self.task.cancel()
        self._stopped = True
        self._born = True
        self._fail_for_good()
        self._wake()

    async def idle(self) -> None:
        """Until all steps queued so far are done."""
        await self.reach()

    def reach(self) -> asyncio.Future[None]:
        """What is done when all steps queued so far are."""
        reached = self.run.loop.create_future()
        self.push(Reach(reached))
        return reached

    def _wake(self) -> None:
        if self._born and self.task is None and self._queue:
            self.task = self.run.loop.create_task(self._drain())
            # Not in the task itself: one that is cancelled before it began never runs.
            self.task.add_done_callback(self._drained)

    def _drained(self, _: asyncio.Task[None]) -> None:
        self.task = None
        self._wake()

    async def _drain(self) -> None:
        while self._queue:
            step = self._queue.popleft()
            await self._do(step)
            # Not those who wait: a reader compares this with the steps that its program has written.
            self.completed += not isinstance(step, Reach)
            if isinstance(step, Write):
                self._tokens_ahead -= step.tokens

    async def _do(self, step: Step) -> None:
        """Do a step, or fail. Cancellation ends the step, not the task: the rest of the queue must learn of it."""
        try:
            await self._perform(step)
        except asyncio.CancelledError as error:
            self._fail_for_good()
            if self.failure is None:
                self._fail(
                    step, BackendError("the call was cancelled from elsewhere").with_traceback(error.__traceback__)
                )
            self._skip(step)
        except Exception as error:
            self._fail(step, error)
            self._skip(step)

    async def _perform(self, step: Step) -> None:
        match step:
            case Reach(reached):
                if not reached.done():
                    reached.set_result(None)
            case Close():
                self._close()
            case _ if self.failure is not None:
                self._skip(step)
            case Write(expr, _, variable):
                await self._write(expr, variable)
            case Fork(branches):
                self._fork(branches)
            case Gather(branches, targets):
                for branch in branches:
                    await branch.idle()
                for target, sources in targets:
                    _gather(target, sources)
            case Concatenate(branches):
                for branch in branches:
                    await branch.idle()
                for branch in branches:
                    if branch.failure is not None:
                        raise branch.failure.raised()
                for branch in branches:
                    self.content.append(branch.content)
            case _:
                assert_never(step)

    # Failure.

    def _fail(self, step: Step, error: Exception) -> None:
        if self.failure is None:
            position = None if isinstance(step, Reach | Close) else step.position
            variable = step.variable if isinstance(step, Write) else None
            self.failure = Failure(error, position, variable.name if variable else None)
            self._makes_no_more_calls()

    def _fail_for_good(self) -> None:
        if self.failure is None and self.run.stopped is not None:
            self.failure = Failure(self.run.stopped, None)
            self.failure.seen = True

    def _skip(self, step: Step) -> None:
        """``step`` is not done: who waits for it is told why."""
        assert self.failure is not None
        match step:
            case Write(_, _, variable):
                if variable is not None:
                    variable.fail(self.failure)
            case Fork(branches):
                for branch in branches:
                    branch.inherit(self.failure)
            case Gather(_, targets):
                for target, _ in targets:
                    target.fail(self.failure)
            case Reach(reached):
                if not reached.done():
                    reached.set_result(None)
        self._fail_scopes()

    def _fail_scopes(self) -> None:
        if self.failure is not None:
            for variable, _ in self.scopes:
                variable.fail(self.failure)
            self.scopes.clear()

    def inherit(self, failure: Failure) -> None:
        """The state that this one was to be forked from has failed."""
        self.failure = failure
        self._makes_no_more_calls()
        self._born = True
        self._wake()

    def _makes_no_more_calls(self) -> None:
        # The end of the first state is that of the program, whose branches may go on.
        if self.parent is not None:
            self.run.hints.finished(self)

    def _close(self) -> None:
        self._fail_scopes()
        if not self._closed:
            self._closed = True
            self.content.stream.close()
            self.run.hints.finished(self)

    # Steps.

    async def _write(self, expr: object, variable: Variable | None) -> None:
        match expr:
            case Constant(text):
                self.content.write(text)
            case Gen():
                await generate(self, expr, variable)
            case Select():
                await score(self, expr, variable)
            case RoleBegin(role):
                self.content.check_outside(role)
                self.content.begin(role, await self._marks(role))
            case RoleEnd(role):
                self.content.end(role)
            case ScopeBegin():
                assert variable is not None
                self.scopes.append((variable, len(self.content.history)))
            case ScopeEnd():
                opened, start = self.scopes.pop()
                opened.resolve(self.content.text(start), {})
            case Row():
                raise AssertionError("rows are taken apart before")
            case _:
                raise InvalidProgram("s +=", f"{type(expr).__name__} is no expression of this language")

    async def _marks(self, role: str) -> RoleMarks:
        if self.run.tokens is not None:
            return await self.run.tokens.role(role, tuple(self.content.messages))
        return RoleMarks(PLAIN_MARKS[0].format(role=role.upper()), PLAIN_MARKS[1])

    def _fork(self, branches: Sequence[Interpreter]) -> None:
        for branch in branches:
            branch.content.begin_from(self.content)
        self.run.hints.forked(self, branches)
        for branch in branches:
            branch._born = True
            branch._wake()


def _gather(target: Variable, sources: Sequence[Variable]) -> None:
    for source in sources:
        if source.failure is not None:
            target.fail(source.failure)
            return
    target.resolve([source.read() for source in sources], [source.read_meta() for source in sources])
