"""The state of a program: what its body writes to and reads from."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping
from typing import Any, Self, overload

from radixlang.accounting import Ledger
from radixlang.blocks import Block
from radixlang.errors import InvalidProgram, Position
from radixlang.expressions import Expr, Gen, RoleBegin, RoleEnd, ScopeBegin, ScopeEnd, Select, atoms
from radixlang.fork import Copy, ForkGroup
from radixlang.interpreter import Interpreter
from radixlang.loop import running_loop
from radixlang.positions import caller
from radixlang.reads import Reads, facts
from radixlang.report import Report, program_report
from radixlang.roles import message
from radixlang.run import Run
from radixlang.steps import Close, Fork, Step, Write
from radixlang.variable import Failure, Variable


class ProgramState:
    """What a program has written and been answered so far; ``s`` in a body.

    Writing returns at once; the steps run in order behind it. Reading waits for what it reads. In an ``async def`` body read
    with ``await s.get(name)``, and with ``await s.wait()`` before `text` and `messages`; everything else is the same. A state is
    for one thread or task at a time; branches of a fork are states of their own.

    A program that was started with ``stream=True`` gives a state to watch: only for reading, and reading waits for what the body
    has not written yet.
    """

    def __init__(self, run: Run, interpreter: Interpreter, variables: Mapping[str, Variable] | None = None) -> None:
        self.interpreter = interpreter
        self._run = run
        self._reads = Reads(run, interpreter, dict(variables or {}))
        self._closed = False

    # Writing.

    def __iadd__(self, other: str | Expr) -> Self:
        position = caller()
        steps = [self._step(expr, position) for expr in atoms(other)]
        self._check_open()
        for step in steps:
            if step.variable is not None:
                # Before the steps: they may be done, and looked for, before this thread goes on.
                self.declare(step.variable.name, step.variable)
        self.submit(*steps)
        return self

    def _step(self, expr: Expr, position: Position) -> Write:
        variable, tokens = None, 0
        match expr:
            case Gen(name, sampling):
                tokens = sampling.over(self._run.sampling).max_tokens or 0
                variable = Variable(name) if name is not None else None
            case Select(name):
                variable = Variable(name) if name is not None else None
            case ScopeBegin(name):
                variable = Variable(name)
        return Write(expr, position, variable, tokens)

    @overload
    def system(self, content: None = None) -> Block: ...
    @overload
    def system(self, content: str | Expr) -> None: ...
    def system(self, content: str | Expr | None = None) -> Block | None:
        """A message that instructs the model. Without ``content`` a block: ``with s.system(): s += ...``."""
        return self._message("system", content)

    @overload
    def user(self, content: None = None) -> Block: ...
    @overload
    def user(self, content: str | Expr) -> None: ...
    def user(self, content: str | Expr | None = None) -> Block | None:
        """A message of the user, or a block."""
        return self._message("user", content)

    @overload
    def assistant(self, content: None = None) -> Block: ...
    @overload
    def assistant(self, content: str | Expr) -> None: ...
    def assistant(self, content: str | Expr | None = None) -> Block | None:
        """A message of the model, or a block."""
        return self._message("assistant", content)

    def _message(self, role: str, content: str | Expr | None) -> Block | None:
        if content is None:
            return Block(self, RoleBegin(role), RoleEnd(role))
        self += message(role, content)
        return None

    def var_scope(self, name: str) -> Block:
        """``with s.var_scope(name): ...``: all text of the block, the program's and the model's, is variable ``name``."""
        return Block(self, ScopeBegin(name), ScopeEnd(name))

    def set_var(self, name: str, value: Any) -> None:
        """Set a variable without the model."""
        self._check_open()
        self.declare(name, Variable.of(name, value))

    def __setitem__(self, name: str, value: Any) -> None:
        self.set_var(name, value)

    # Branches.

    def fork(self, size: int = 1, position_ids_offset: list[int] | None = None) -> ForkGroup:
        """``size`` branches that go on from here, concurrently. This state may go on as well.

        ``position_ids_offset`` is refused: a cached token has its fixed position.
        """
        if position_ids_offset is not None:
            raise InvalidProgram("position_ids_offset", "is not supported: a cached token has its fixed position")
        if type(size) is not int or size < 1:
            raise InvalidProgram("size", f"is a whole number of at least 1, not {size!r}")
        self._check_open()
        branches = tuple(self._run.interpreter(self.interpreter) for _ in range(size))
        self.submit(Fork(branches, caller()))
        return ForkGroup(self, [ProgramState(self._run, branch, self.variables) for branch in branches])

    def copy(self) -> Copy:
        """``with s.copy() as branch``: one branch, joined at the end of the block."""
        return Copy(self.fork(1))

    # Reading.

    @property
    def ret_value(self) -> Any:
        """What the program's body returned; None before."""
        return self._run.result

    def __getitem__(self, name: str) -> Any:
        """A variable's value, once it has one. Raises `ProgramError` where its step failed, `UnknownVariable` where there is none."""
        return self._reads.variable(name).read()

    def get_var(self, name: str) -> Any:
        """The same as ``s[name]``."""
        return self[name]

    async def get(self, name: str) -> Any:
        """The same, awaited."""
        return (await self._reads.awaited(name)).read()

    def meta(self, name: str) -> Any:
        """Facts about how a variable came to be, once it has: tokens, cached tokens, logprobs, finish reason, scores.

        The keys are those of SGLang's servers where they have one. Of several samples, what belongs to one is a list.
        """
        return facts(self._reads.variable(name).read_meta())

    def get_meta_info(self, name: str) -> Any:
        """The same as `meta`."""
        return self.meta(name)

    async def get_meta(self, name: str) -> Any:
        """The same, awaited."""
        return facts((await self._reads.awaited(name)).read_meta())

    def __contains__(self, name: str) -> bool:
        """The program has written a step that sets ``name``."""
        return name in self.variables

    def text(self) -> str:
        """All text so far, once all steps so far are done, with what the model's template wrote around messages."""
        self.sync()
        return self.interpreter.content.text()

    def messages(self) -> list[dict[str, str]]:
        """The finished messages so far, as OpenAI's API has them."""
        self.sync()
        return [{"role": message.role, "content": message.content} for message in self.interpreter.content.messages]

    def sync(self) -> None:
        """Wait for all steps so far. Raises `ProgramError` if one failed."""
        self._reads.sync()
        self._raise()

    async def wait(self) -> None:
        """The same, awaited."""
        await self._reads.wait()
        self._raise()

    def error(self) -> BaseException | None:
        """What failed, once all steps so far are done; for the state that a program ended with, also what its body raised."""
        self._reads.sync()
        failure = self.failure()
        return failure.raised() if failure is not None else None

    def stream(self, name: str | None = None) -> Generator[str, None, None]:
        """The text of variable ``name``, of several samples the first, while it is made; without a name that of all steps so far.

        A program that was started with ``stream=True`` is stopped when this is left before its end from outside of its body.
        """
        return self._reads.stream(name)

    def text_iter(self, var_name: str | None = None) -> Generator[str, None, None]:
        """The same as `stream`."""
        return self._reads.stream(var_name)

    def astream(self, name: str | None = None) -> AsyncGenerator[str, None]:
        """The same as `stream`, for ``async for``."""
        return self._reads.astream(name)

    def text_async_iter(self, var_name: str | None = None) -> AsyncGenerator[str, None]:
        """The same as `astream`."""
        return self._reads.astream(var_name)

    # The account.

    @property
    def ledger(self) -> Ledger:
        """The program's calls to the model, those of all its branches."""
        return self._run.ledger

    def report(self) -> Report:
        """Where the program's tokens and seconds went, as far as its calls have ended."""
        return program_report(self._run.ledger)

    # For fork and join.

    @property
    def variables(self) -> Mapping[str, Variable]:
        """Those that it has written steps for, by name."""
        return self._reads.variables

    def declare(self, name: str, variable: Variable) -> None:
        """``name`` stands for ``variable`` from now on."""
        self._reads.variables[name] = variable

    def submit(self, *steps: Step) -> None:
        """Queue steps, all at once. Raises what ended the program if it is over."""
        self._check_open()
        self._reads.submitted += len(steps)
        self._run.post(self.interpreter, steps)

    def watcher(self) -> ProgramState:
        """The same state for somebody who watches the program from outside."""
        other = ProgramState(self._run, self.interpreter)
        other._reads = Reads(self._run, self.interpreter, self._reads.variables, watching=True)
        return other

    def _check_open(self) -> None:
        if self._reads.watching:
            raise InvalidProgram("s +=", "a program that is watched is written by its body")
        self._run.check_open()
        if self._closed:
            raise InvalidProgram("s +=", "this branch was joined")

    def close(self) -> None:
        """It makes no more steps after those so far."""
        self.submit(Close())
        self._closed = True

    async def settled(self) -> None:
        """Until all its steps so far are done, well or not."""
        await self._run.bridge(self.interpreter.idle())

    def block_if_possible(self, waiting: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Wait on this thread, unless the program's loop runs on it."""
        if running_loop() is not self._run.loop:
            self._run.block(waiting, "await")

    def failure(self) -> Failure | None:
        """Why it goes no further, if it does not."""
        return self._reads.failure()

    def _raise(self) -> None:
        if (failure := self.failure()) is not None:
            raise failure.raised()
