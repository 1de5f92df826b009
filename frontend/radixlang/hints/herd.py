"""What the programs of a batch have in common: found from the first prompts that they send."""

from __future__ import annotations

from collections import deque

from radixlang.hints.holds import Account, Holds, Kept
from radixlang.token_keys import WIDTH, TokenKey, common_tokens

# First prompts that are remembered: a batch may mix this many kinds of programs before common prefixes are missed.
REMEMBERED = 16
# Common prefixes that are held at a time, the latest ones that a program began with.
HELD = 4


class Herd:
    """A first prompt goes out at once; a later one that shares a long prefix with it has that held and waits for it.

    What is held is the prefix that two prompts share, so a third that shares less of it is covered as well, and one that shares
    more with yet another has the longer prefix held. A batch of one never holds anything.
    """

    def __init__(self, holds: Holds, least: int) -> None:
        """``least``: tokens beyond what is held already that make a hold worth it."""
        self._holds = holds
        self._least = least
        self._seen: deque[TokenKey] = deque(maxlen=REMEMBERED)
        self._kept: list[Kept] = []

    def join(self, prompt: TokenKey, priority: int, account: Account) -> Kept | None:
        """A program is about to use ``prompt`` for the first time; what it had better wait for."""
        shared = max((common_tokens(earlier, prompt) for earlier in self._seen), default=0)
        shared = min(shared, len(prompt) // WIDTH - 1)
        self._seen.append(prompt)
        self._kept = [kept for kept in self._kept if not kept.released]
        best = max(self._kept, key=lambda kept: common_tokens(kept.prefix, prompt), default=None)
        covered = common_tokens(best.prefix, prompt) if best else 0
        if shared - covered >= self._least:
            return self._start(prompt[: shared * WIDTH], priority, account)
        if best is None or covered < self._least:
            return None
        self._kept.remove(best)
        self._kept.append(best)
        return best

    def _start(self, prefix: TokenKey, priority: int, account: Account) -> Kept | None:
        if len(self._kept) == HELD:
            self._holds.release(self._kept.pop(0))
        kept = self._holds.start(prefix, priority, account)
        if kept is not None:
            self._kept.append(kept)
        return kept
