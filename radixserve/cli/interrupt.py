"""Ctrl-C as a request to stop a generation."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupt:
    """Whether Ctrl-C was pressed since `caught_interrupt` began."""

    def __init__(self) -> None:
        self.requested = False


@contextmanager
def caught_interrupt() -> Iterator[Interrupt]:
    """Note the first Ctrl-C instead of raising `KeyboardInterrupt`, so that a step of the engine is never torn apart.

    The second one raises as usual. Only the main thread may use this.
    """
    interrupt = Interrupt()

    def handle(signum: int, frame: FrameType | None) -> None:
        if interrupt.requested:
            signal.default_int_handler(signum, frame)
        interrupt.requested = True

    previous = signal.signal(signal.SIGINT, handle)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, previous)
