"""Hints for a backend that holds prefixes and knows priorities.

**Forks.** What the parent had is held before the first call of any branch goes out, so that it is computed once, to the last
token, and not evicted between the calls. The hold ends with the last branch. A fork inside a branch holds its own, longer
prefix. The outer hold stays meanwhile: the branch may go on from its own state after that, and inner branches depend on it
where they got no hold of their own. As paths are shared, it costs the engine no block more. The very last token is left out, for it may
be tokenized otherwise with what a branch writes behind it.

**Batches.** What the first prompts of programs share is held likewise (`radixlang.hints.herd`) until the batch ends.

**Priorities.** Calls of programs that have begun go before those of programs that have not: what is begun keeps blocks, and
somebody waiting. Among those, the more a state may still generate the earlier it goes, as a join waits for its slowest branch.

**Why nobody waits for ever.** `before_call` waits for the announcement of the fork that its state came from, or for a hold. An
announcement waits for the parent's tokens, which come from the backend, for the announcement of an outer fork, or for a hold. A hold
waits for the backend. Forks are a tree, so this has no circle, and nothing in it waits for a call, for a place among a
batch's programs, or for anything that a program does. Each wait has a limit besides, and one that reaches it is the last of its
kind: whoever waits for the same goes on as well.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field

from radixlang.backends.base import TokenBackend
from radixlang.hints.base import StateView
from radixlang.hints.herd import Herd
from radixlang.hints.holds import Account, Holds, Kept
from radixlang.token_keys import WIDTH, TokenKey, token_key, tokens_of

logger = logging.getLogger(__name__)

# Tokens beyond what is held already that make a hold worth its round trip.
LEAST = 64
# Seconds that a call waits at most. After that it goes out as it would without hints, and shares what is being computed.
PATIENCE = 10.0
# Priorities are 0 to 15: the upper half for programs that have begun.
BEGUN = 8


@dataclass(slots=True, eq=False)
class _Program:
    """``used``: its first prompt has been told to the herd. ``begun``: a call has gone out."""

    used: bool = False
    begun: bool = False
    states: set[int] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class _Fork:
    """``users``: keys of branches, and forks inside them, that are not finished. ``ready``: branches need not wait any more."""

    outer: _Fork | None
    users: set[int | _Fork]
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    kept: Kept | None = None


@dataclass(slots=True, eq=False)
class _State:
    program: _Program
    fork: _Fork | None = None


class EngineHints:
    """The hints of one run, or of all programs of one batch. See the module."""

    def __init__(
        self, backend: TokenBackend, *, least: int = LEAST, patience: float = PATIENCE, holds: Holds | None = None
    ) -> None:
        self._least = least
        self._patience = patience
        self._holds = holds or Holds(backend)
        self._herd = Herd(self._holds, least)
        self._states: dict[int, _State] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    async def before_call(self, state: StateView, prompt: Sequence[int]) -> int:
        """See `Hints`."""
        mine = self._state(state)
        priority = _priority(mine.program, state.remaining_tokens())
        if mine.fork is not None:
            await self._settled(mine.fork.ready)
        elif not mine.program.used:
            await self._first_use(mine.program, state, token_key(prompt), priority)
        mine.program.begun = True
        return priority

    def forked(self, parent: StateView, branches: Sequence[StateView]) -> None:
        """See `Hints`."""
        mine = self._state(parent)
        fork = mine.fork
        if len(branches) > 1 and not self._closed:
            fork = _Fork(mine.fork, set())
            if mine.fork is not None:
                mine.fork.users.add(fork)
            priority = max(_priority(mine.program, branch.remaining_tokens()) for branch in branches)
            task = asyncio.create_task(self._announce(fork, mine.program, parent, parent.prompt(), priority))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        for branch in branches:
            self._states[branch.key] = _State(mine.program, fork)
            mine.program.states.add(branch.key)
            if fork is not None:
                fork.users.add(branch.key)

    def finished(self, state: StateView) -> None:
        """See `Hints`."""
        mine = self._states.get(state.key)
        if mine is not None:
            for key in [state.key] if state.parent is not None else list(mine.program.states):
                self._leave(key)

    async def close(self) -> None:
        """See `Hints`."""
        self._closed = True
        try:
            # An announcement that is cancelled before its first step would leave the prompt it was given unawaited.
            await asyncio.sleep(0)
        finally:
            for task in self._tasks:
                task.cancel()
            await self._holds.close()

    async def _announce(
        self, fork: _Fork, program: _Program, parent: StateView, prompt: Awaitable[list[int]], priority: int
    ) -> None:
        """Have what the branches of ``fork`` begin with held, if that is worth it."""
        try:
            shared = token_key((await prompt)[:-1])
            if fork.outer is not None:
                await self._settled(fork.outer.ready)
            elif not program.used:
                await self._first_use(program, parent, shared, priority)
            if fork.users and len(shared) // WIDTH - self._holds.covered(shared) >= self._least:
                fork.kept = self._holds.start(shared, priority, _account(parent))
            if fork.kept is not None:
                await fork.kept.settled.wait()
        except Exception as error:  # the branches will meet the same error, and say where
            logger.debug("a fork was not announced: %s", error)
        finally:
            fork.ready.set()

    async def _first_use(self, program: _Program, state: StateView, prompt: TokenKey, priority: int) -> None:
        program.used = True
        kept = self._herd.join(prompt, priority, _account(state))
        if kept is not None:
            await self._settled(kept.settled)

    async def _settled(self, event: asyncio.Event) -> None:
        if not event.is_set():
            try:
                async with asyncio.timeout(self._patience):
                    await event.wait()
            except TimeoutError:
                event.set()

    def _state(self, view: StateView) -> _State:
        known = self._states.get(view.key)
        if known is None:
            parent = self._states.get(view.parent) if view.parent is not None else None
            known = _State(parent.program if parent is not None else _Program())
            known.program.states.add(view.key)
            self._states[view.key] = known
        return known

    def _leave(self, key: int) -> None:
        state = self._states.pop(key, None)
        if state is not None:
            state.program.states.discard(key)
            if state.fork is not None:
                self._unused(state.fork, key)

    def _unused(self, fork: _Fork, by: int | _Fork) -> None:
        # Not by recursion: forks may be nested to any depth.
        inside: _Fork | None = fork
        while inside is not None:
            inside.users.discard(by)
            if inside.users:
                return
            if inside.kept is not None:
                self._holds.release(inside.kept)
            by, inside = inside, inside.outer


def _account(state: StateView) -> Account:
    return lambda usage, prefix: state.held(usage, tokens_of(prefix))


def _priority(program: _Program, remaining: int) -> int:
    """Doubling the tokens that are left, from 16 to 1,024, is a step."""
    return BEGUN * program.begun + min((remaining // 16).bit_length(), BEGUN - 1)
