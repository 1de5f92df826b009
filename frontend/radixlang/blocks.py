"""`with` blocks of a program. They only write, so they are the same in ``def`` and ``async def`` bodies."""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import TYPE_CHECKING

from radixlang.expressions import Expr

if TYPE_CHECKING:
    from radixlang.state import ProgramState


class Block:
    """Writes ``begin`` where the block begins and ``end`` where it ends, even with an exception."""

    def __init__(self, state: ProgramState, begin: Expr, end: Expr) -> None:
        self._state = state
        self._begin = begin
        self._end = end

    def __enter__(self) -> None:
        self._state += self._begin

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The exception that ends the block is the one to tell of, not that the program is over.
        with contextlib.suppress(*(() if kind is None else (Exception,))):
            self._state += self._end
