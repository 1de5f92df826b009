"""Branches of a state that go on concurrently, and how they come together again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, overload

from radixlang.errors import InvalidProgram
from radixlang.expressions import Expr
from radixlang.positions import caller
from radixlang.steps import Concatenate, Gather
from radixlang.variable import Variable

if TYPE_CHECKING:
    from radixlang.state import ProgramState

# Mode -> the names that it goes by; the last one is SGLang's.
MODES = {"gather_variable": "gather_variable", "concatenate": "concatenate", "concate_and_append": "concatenate"}


class Joined(Awaitable[None]):
    """What `ForkGroup.join` returns: awaited it waits for the branches, and raises what one of them failed with."""

    def __init__(self, group: ForkGroup) -> None:
        self._group = group

    def __await__(self) -> Generator[Any, None, None]:
        return self._group.wait().__await__()


class ForkGroup:
    """The branches of one `fork`, each a state. Also a context manager, which joins them at its end.

    ``forks += x`` writes to all: the same text or expression, one each from a list, or what a function of the branch's number returns.
    """

    def __init__(self, parent: ProgramState, states: Sequence[ProgramState]) -> None:
        self._parent = parent
        self._inherited = dict(parent.variables)
        self.states = list(states)
        self._joined = False

    def __len__(self) -> int:
        return len(self.states)

    def __iter__(self) -> Iterator[ProgramState]:
        return iter(self.states)

    @overload
    def __getitem__(self, key: int) -> ProgramState: ...
    @overload
    def __getitem__(self, key: slice) -> list[ProgramState]: ...
    @overload
    def __getitem__(self, key: str) -> list[Any]: ...
    def __getitem__(self, key: int | slice | str) -> Any:
        """A branch by its number, some of them, or by a variable's name its values in all of them."""
        if isinstance(key, str):
            return [state[key] for state in self.states]
        return self.states[key]

    def __setitem__(self, key: int, state: ProgramState) -> None:
        """Lets ``forks[i] += x`` be written; a branch cannot be replaced."""
        if self.states[key] is not state:
            raise InvalidProgram("forks", "a branch cannot be replaced by another state")

    def __iadd__(self, other: str | Expr | Sequence[str | Expr] | Callable[[int], str | Expr]) -> Self:
        if callable(other):
            parts: list[str | Expr] = [other(number) for number in range(len(self.states))]
        elif isinstance(other, str | Expr):
            parts = [other] * len(self.states)
        else:
            parts = list(other)
        if len(parts) != len(self.states):
            raise InvalidProgram("forks +=", f"{len(parts)} parts for {len(self.states)} branches")
        for state, part in zip(self.states, parts, strict=True):
            state += part
        return self

    async def get(self, name: str) -> list[Any]:
        """A variable's values in all branches, awaited."""
        return [await state.get(name) for state in self.states]

    def join(self, mode: str = "gather_variable") -> Joined:
        """End the branches, and bring what they made into the state that they came from.

        ``gather_variable``: each variable that branches set becomes a list of their values, in order, whatever it was before.
        ``concatenate`` (SGLang: ``concate_and_append``): the state goes on with all that the branches wrote, one after the other.

        In a ``def`` body this waits for the branches and raises the first failure among them. In an ``async def`` body
        ``await`` it for that; without, what the state does next still comes after the branches, and failures show
        where they are read. Raises `InvalidProgram` where they were joined before.
        """
        if mode not in MODES:
            raise InvalidProgram("mode", f"is one of {', '.join(MODES)}, not {mode!r}")
        if self._joined:
            raise InvalidProgram("join", "these branches were joined before")
        self._joined = True
        position = caller()
        branches = tuple(state.interpreter for state in self.states)
        if MODES[mode] == "gather_variable":
            targets = self._targets()
            for name, (target, _) in targets.items():
                self._parent.declare(name, target)
            self._parent.submit(Gather(branches, tuple(targets.values()), position))
        else:
            self._parent.submit(Concatenate(branches, position))
        for state in self.states:
            state.close()
        self._parent.block_if_possible(self.wait)
        return Joined(self)

    async def wait(self) -> None:
        """Until the branches are done and joined. Raises the first failure among them; the others are told with it."""
        for state in (*self.states, self._parent):
            await state.settled()
        failures = [failure for state in self.states if (failure := state.failure()) is not None]
        if failures:
            errors = [failure.raised() for failure in dict.fromkeys(failures)]
            for other in errors[1:]:
                errors[0].add_note(f"another branch failed as well: {other}")
            raise errors[0]

    def _targets(self) -> dict[str, tuple[Variable, tuple[Variable, ...]]]:
        """Name -> the new variable, and those of the branches that it gathers."""
        sources: dict[str, list[Variable]] = {}
        for state in self.states:
            for name, variable in state.variables.items():
                if self._inherited.get(name) is not variable:
                    sources.setdefault(name, []).append(variable)
        return {name: (Variable(name), tuple(own)) for name, own in sources.items()}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and not self._joined:
            self.join()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and not self._joined:
            await self.join()


class Copy:
    """One branch as a context manager; joined at the end of its block."""

    def __init__(self, group: ForkGroup) -> None:
        self._group = group

    def __enter__(self) -> ProgramState:
        self._group.__enter__()
        return self._group[0]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._group.__exit__(kind, error, trace)
