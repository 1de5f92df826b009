"""An event loop whose clock jumps to the next timer, so waits cost nothing and a deadlock is seen at once."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


class _Selector(selectors.DefaultSelector):
    def __init__(self, loop: _Loop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise AssertionError("a deadlock: everything waits, and no timer runs")
        self._loop.now += max(timeout, 0.0)
        return super().select(0)


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(_Selector(self))

    def time(self) -> float:
        return self.now


def now() -> float:
    """Seconds since the running loop began."""
    return asyncio.get_running_loop().time()


def run(main: Coroutine[Any, Any, _T]) -> _T:
    """The result of ``main``, which may leave no task behind."""
    with asyncio.Runner(loop_factory=_Loop) as runner:
        return runner.run(_alone(main))


async def _alone(main: Coroutine[Any, Any, _T]) -> _T:
    result = await main
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not left, f"left behind: {left}"
    return result
