"""What a running program tells about itself, so that the engine can be told in time."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Protocol

from radixlang.backends.base import Usage


class StateView(Protocol):
    """What hints see of a program's state."""

    @property
    def key(self) -> int:
        """A number of its own, among all states that share a `Hints`."""

    @property
    def parent(self) -> int | None:
        """The key of the state that it was forked from; None for the state that a program began with."""

    def prompt(self) -> Awaitable[list[int]]:
        """The tokens that a call would send now: as the state is when this is called, not when it is awaited."""

    def remaining_tokens(self) -> int:
        """The most tokens that its steps, as far as the program has written them, may still generate, one after the other."""

    def held(self, usage: Usage, prompt: Sequence[int]) -> None:
        """A hold, made for this state's sake, computed ``prompt`` at this price. For the account of its program."""


class Hints(Protocol):
    """What the interpreter tells as it goes. All methods belong to one event loop; none raises, except for a cancellation."""

    async def before_call(self, state: StateView, prompt: Sequence[int]) -> int:
        """``state`` is about to send ``prompt``: returns the call's priority, perhaps a while later.

        The while is bounded, and there is one only where what the prompt begins with is being computed for several calls.
        """

    def forked(self, parent: StateView, branches: Sequence[StateView]) -> None:
        """``branches`` begin with what ``parent`` has now. To be called before any of them makes a call."""

    def finished(self, state: StateView) -> None:
        """``state`` makes no more calls, because it has ended, failed or been joined. When it is the one that a program began
        with, that goes for all states of the program. Finishing twice is finishing once.
        """

    async def close(self) -> None:
        """All programs have ended, were cancelled or failed: let go of whatever is held."""


class NoHints:
    """Tells nothing. Results are the same as with any other `Hints`."""

    async def before_call(self, state: StateView, prompt: Sequence[int]) -> int:
        """Go at once; nobody goes first."""
        return 0

    def forked(self, parent: StateView, branches: Sequence[StateView]) -> None:
        """Nothing."""

    def finished(self, state: StateView) -> None:
        """Nothing."""

    async def close(self) -> None:
        """Nothing is held."""
