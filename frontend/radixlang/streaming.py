"""Text that is read while it is written."""

from __future__ import annotations

import asyncio


class Pulse:
    """Wakes whoever waits, again and again. For one event loop."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []

    def beat(self) -> None:
        """Wake all."""
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def wait(self) -> None:
        """Until the next beat."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        await future


class TextStream:
    """A text that grows until it is closed. Written on one event loop; any number of readers on the same loop."""

    __slots__ = ("_pieces", "_pulse", "closed")

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._pulse = Pulse()
        self.closed = False

    def write(self, text: str) -> None:
        """Add text to the end."""
        if text:
            self._pieces.append(text)
            self._pulse.beat()

    def close(self) -> None:
        """Nothing comes any more."""
        self.closed = True
        self._pulse.beat()

    def pieces(self) -> list[str]:
        """What was written so far, as it was."""
        return list(self._pieces)

    async def read(self, start: int, until: asyncio.Future[None] | None = None) -> tuple[str, int] | None:
        """What was written from piece ``start`` on, and the number of the piece after it; waits for some. None: the end, which is
        where the stream is closed or, with nothing more to read, ``until`` is done.
        """
        if until is not None:
            until.add_done_callback(self._wake)
        try:
            while start >= len(self._pieces):
                if self.closed or (until is not None and until.done()):
                    return None
                await self._pulse.wait()
        finally:
            if until is not None:
                until.remove_done_callback(self._wake)
        return "".join(self._pieces[start:]), len(self._pieces)

    def _wake(self, _: asyncio.Future[None]) -> None:
        self._pulse.beat()
