"""What a state's interpreter does, one after the other: expressions, and the steps behind fork and join."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from radixlang.errors import Position
from radixlang.expressions import Expr
from radixlang.variable import Variable

if TYPE_CHECKING:
    from radixlang.interpreter import Interpreter


@dataclass(frozen=True, slots=True)
class Write:
    """Add ``expr`` (no row) to the state, and set ``variable`` by it. ``position``: of the line that wrote it.

    ``tokens``: the most that it can generate.
    """

    expr: Expr
    position: Position
    variable: Variable | None = None
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Fork:
    """Let ``branches`` begin with what the state has now."""

    branches: tuple[Interpreter, ...]
    position: Position


@dataclass(frozen=True, slots=True)
class Gather:
    """Set each first variable to the list of the others' values, once ``branches`` are idle."""

    branches: tuple[Interpreter, ...]
    targets: tuple[tuple[Variable, tuple[Variable, ...]], ...]
    position: Position


@dataclass(frozen=True, slots=True)
class Concatenate:
    """Add what each of ``branches`` wrote since it began, in order, once it is idle."""

    branches: tuple[Interpreter, ...]
    position: Position


@dataclass(frozen=True, slots=True)
class Reach:
    """Tell that all steps before this one are done, well or not."""

    reached: asyncio.Future[None]


@dataclass(frozen=True, slots=True)
class Close:
    """The state makes no more steps."""


Step = Write | Fork | Gather | Concatenate | Reach | Close
