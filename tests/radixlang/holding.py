"""A backend that only holds, and states that only have tokens: all that hints see of a program."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from radixlang.backends.base import Hold, TokenBackend, Usage
from radixlang.errors import BackendClosed
from radixlang.hints import EngineHints, Hints
from tests.radixlang.virtual_time import now


@dataclass
class Asked:
    """One hold that was asked for: from ``began`` to ``answered`` it was computed, then kept until ``expires`` or released."""

    tokens: list[int]
    priority: int
    began: float
    answered: float | None = None
    expires: float = 0.0
    released: float | None = None

    @property
    def live(self) -> bool:
        return self.answered is not None and self.released is None and now() < self.expires


@dataclass
class Holder:
    """``seconds``: what each hold takes to compute, by its number; -1 hangs, -2 fails. ``most``: tokens it lets anybody hold."""

    seconds: Callable[[int], float] = lambda number: 1.0
    most: int = 1 << 30
    longest: float | None = None
    asked: list[Asked] = field(default_factory=list)
    peak: int = 0

    async def hold(self, token_ids: Sequence[int], *, seconds: float, priority: int = 0) -> Hold:
        number = len(self.asked)
        item = Asked(list(token_ids), priority, now())
        self.asked.append(item)
        takes = self.seconds(number)
        if takes == -1:
            await asyncio.Event().wait()
        if takes == -2:
            raise BackendClosed("the engine is gone")
        await asyncio.sleep(takes)
        held = min(len(token_ids), self.most)
        item.answered = now()
        item.expires = now() + min(seconds, self.longest or seconds) if held else now()
        self.peak = max(self.peak, sum(other.live for other in self.asked))
        cached = len(token_ids) if any(other.live and other is not item for other in self.asked) else 0
        usage = Usage(prompt=len(token_ids), cached=cached, computed=len(token_ids) - cached, wall_s=takes)
        return Hold(str(number), held, usage, self.longest)

    async def release(self, holds: Sequence[str]) -> None:
        await asyncio.sleep(0.001)
        for name in holds:
            assert self.asked[int(name)].released is None, "released twice"
            self.asked[int(name)].released = now()

    @property
    def live(self) -> list[list[int]]:
        """What is held now."""
        return [item.tokens for item in self.asked if item.live]

    def hints(self, **options: Any) -> EngineHints:
        return EngineHints(cast(TokenBackend, self), **options)


@dataclass
class State:
    """A state that has ``tokens`` now; ``calls``: when each call went out, with which prompt and priority."""

    tokens: list[int] = field(default_factory=list)
    parent: int | None = None
    remaining: int = 0
    key: int = field(default_factory=itertools.count().__next__)
    calls: list[tuple[float, list[int], int]] = field(default_factory=list)
    paid: list[tuple[Usage, list[int]]] = field(default_factory=list)
    prompts_read: int = 0

    def prompt(self) -> Awaitable[list[int]]:
        return self._prompt(list(self.tokens))

    async def _prompt(self, tokens: list[int]) -> list[int]:
        self.prompts_read += 1
        await asyncio.sleep(0)
        return tokens

    def remaining_tokens(self) -> int:
        return self.remaining

    def held(self, usage: Usage, prompt: Sequence[int]) -> None:
        self.paid.append((usage, list(prompt)))

    def branch(self, *tokens: int) -> State:
        return State([*self.tokens, *tokens], self.key)


PREFIX = list(range(100))


async def call(hints: Hints, state: State, *more: int, seconds: float = 0.0) -> None:
    """One call of ``state``, after it wrote ``more``."""
    state.tokens += more
    priority = await hints.before_call(state, state.tokens)
    state.calls.append((now(), list(state.tokens), priority))
    await asyncio.sleep(seconds)


def fork(hints: Hints, parent: State, count: int) -> list[State]:
    branches = [parent.branch(1000 + number) for number in range(count)]
    hints.forked(parent, branches)
    return branches


def times(states: Sequence[State]) -> list[float]:
    return [went for state in states for went, _, _ in state.calls]
