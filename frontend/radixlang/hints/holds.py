"""Prefixes kept in the engine's cache: asked for, renewed while they are needed, and given back."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import TypeAlias

from radixlang.backends.base import Hold, TokenBackend, Usage
from radixlang.token_keys import WIDTH, TokenKey, common_tokens, tokens_of

# Told what computing a prefix cost.
Account: TypeAlias = Callable[[Usage, TokenKey], None]

logger = logging.getLogger(__name__)

# Seconds for which the engine is asked to hold: what a client that dies can cost at most. A hold that is still needed is renewed
# after a third of that, and in all for no longer than `LONGEST`: a program that waits for something else for longer than that
# finds in the cache whatever others have left there.
LEASE = 30.0
LONGEST = 600.0
# Holds at a time. A quota of blocks is the engine's; this bounds the requests that renewals make.
MOST = 32
# Seconds that a server which does not answer can delay a program's end by.
RELEASE_PATIENCE = 2.0


class Kept:
    """One prefix. ``settled`` is set when the engine has computed it, has refused, or nobody wants to wait any longer.

    ``prefix``: what is held; while the engine has not answered, what it was asked for; empty once it holds nothing any more.
    """

    __slots__ = ("ids", "prefix", "released", "settled", "task")

    def __init__(self, prefix: TokenKey) -> None:
        self.prefix = prefix
        self.settled = asyncio.Event()
        self.released = False
        self.ids: set[str] = set()
        self.task: asyncio.Task[None] | None = None


class Holds:
    """The holds of one run or batch. A failure ends only the hints: after the first one nothing more is asked for."""

    def __init__(
        self, backend: TokenBackend, *, lease: float = LEASE, longest: float = LONGEST, most: int = MOST
    ) -> None:
        self._backend = backend
        self._lease = lease
        self._longest = longest
        self._most = most
        self._kept: set[Kept] = set()
        self._stopped = False

    def covered(self, prompt: TokenKey) -> int:
        """How many tokens ``prompt`` shares, from its beginning, with what is held or about to be."""
        return max((common_tokens(kept.prefix, prompt) for kept in self._kept), default=0)

    def start(self, prefix: TokenKey, priority: int, account: Account) -> Kept | None:
        """Have ``prefix`` computed and kept until it is released. None if there are too many holds, or was a failure.

        ``account`` is told what it cost, if the backend tells.
        """
        if self._stopped or len(self._kept) >= self._most:
            return None
        kept = Kept(prefix)
        self._kept.add(kept)
        kept.task = asyncio.create_task(self._keep(kept, priority, account))
        kept.task.add_done_callback(lambda _: self._ended(kept))
        return kept

    def release(self, kept: Kept) -> None:
        """``kept`` is not needed any more; what is being computed for it is given up."""
        # Once only: the release itself is awaited in the task, and a second cancellation would end that.
        if kept.task is not None and not kept.released:
            kept.released = True
            kept.task.cancel()

    async def close(self) -> None:
        """Release everything, and wait for that, though not for long. If this is cancelled the releases go on."""
        self._stopped = True
        tasks = [kept.task for kept in self._kept if kept.task is not None]
        for kept in list(self._kept):
            self.release(kept)
        if tasks:
            await asyncio.wait(tasks, timeout=2 * RELEASE_PATIENCE)

    async def _keep(self, kept: Kept, priority: int, account: Account) -> None:
        try:
            hold = await self._ask(kept, priority)
            if hold.usage.prompt:
                account(hold.usage, kept.prefix)
            kept.prefix = kept.prefix[: hold.held * WIDTH]
            kept.settled.set()
            until, gone = asyncio.get_running_loop().time() + self._longest, False
            # A backend may answer in spite of a cancellation, which is lost then: hence ``released``.
            while hold.held and not gone and not kept.released and asyncio.get_running_loop().time() < until:
                await asyncio.sleep(min(self._lease, hold.seconds or self._lease) / 3)
                earlier, hold = hold, await self._ask(kept, priority)
                await self._backend.release([earlier.id])
                kept.ids.discard(earlier.id)
                # What had to be computed anew had given way to others: this is no time to insist.
                if gone := bool(hold.usage.computed):
                    account(hold.usage, kept.prefix)
        except Exception as error:  # a hint that fails is no hint, whatever the reason
            self._stopped = True
            logger.debug("holding %d tokens failed, no more holds are asked for: %s", len(kept.prefix) // WIDTH, error)
        finally:
            kept.released = True
            await self._give_back(kept)

    def _ended(self, kept: Kept) -> None:
        # Not at the task's end: one that is cancelled before it began never comes there.
        kept.released = True
        kept.prefix = b""
        kept.settled.set()
        self._kept.discard(kept)

    async def _ask(self, kept: Kept, priority: int) -> Hold:
        call = asyncio.ensure_future(self._backend.hold(tokens_of(kept.prefix), seconds=self._lease, priority=priority))
        try:
            return await call
        finally:
            # The answer may be there although this task was cancelled before it could read it.
            if call.done() and not call.cancelled() and call.exception() is None and call.result().held:
                kept.ids.add(call.result().id)

    async def _give_back(self, kept: Kept) -> None:
        if kept.ids:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(RELEASE_PATIENCE):
                    await self._backend.release(sorted(kept.ids))
