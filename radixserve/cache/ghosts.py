"""Ghosts: what was evicted, remembered without its KV so that a later miss can be explained."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from sortedcontainers import SortedDict

from radixserve.cache.token_key import Key, common_tokens, key_length

TreeName = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Ghost:
    """Circumstances under which the end of a path was lost."""

    step: int
    failed: bool
    blocks_wanted: int
    blocks_locked: int
    blocks_total: int

    @property
    def detail(self) -> str:
        """The circumstances in words."""
        if self.failed:
            return f"the forward pass of step {self.step} that computed it failed"
        return (
            f"evicted at step {self.step}, when {self.blocks_wanted} more blocks were needed and "
            f"{self.blocks_locked} of {self.blocks_total} were in use"
        )


class GhostLog:
    """Paths (tokens only) that were evicted, oldest forgotten first when they exceed ``max_tokens`` in all.

    A path that another ghost extends is not kept twice, so a leaf that loses block after block leaves one ghost.
    """

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self.num_tokens = 0
        self._ghosts: SortedDict[tuple[TreeName, bytes, bytes], Ghost] = SortedDict()
        self._order: deque[tuple[TreeName, bytes, bytes]] = deque()

    def __len__(self) -> int:
        return len(self._ghosts)

    def record(self, tree: TreeName, salt: bytes, path: bytes, ghost: Ghost) -> None:
        """Remember that (the end of) ``path`` is gone."""
        if key_length(path) > self.max_tokens:
            return
        place = (tree, salt, path)
        at = self._ghosts.bisect_left(place)
        if at < len(self._ghosts):
            other = self._ghosts.keys()[at]
            if other[:2] == place[:2] and other[2].startswith(path):
                self._ghosts[other] = ghost
                return
        if at > 0:
            other = self._ghosts.keys()[at - 1]
            if other[:2] == place[:2] and path.startswith(other[2]):
                self._forget(other)
        self._ghosts[place] = ghost
        self._order.append(place)
        self.num_tokens += key_length(path)
        while self.num_tokens > self.max_tokens:
            self._forget(self._order.popleft())
        if len(self._order) > 2 * len(self._ghosts) + 64:
            self._order = deque(place for place in dict.fromkeys(self._order) if place in self._ghosts)

    def find(self, tree: TreeName, salt: bytes, key: Key) -> tuple[int, Ghost | None]:
        """The ghost that shares the longest prefix with ``key`` under ``salt`` or the public salt, and its length in
        tokens.
        """
        wanted = bytes(key)
        best, found = 0, None
        for section in (b"", salt) if salt else (b"",):
            at = self._ghosts.bisect_left((tree, section, wanted))
            for index in (at - 1, at):
                if not 0 <= index < len(self._ghosts):
                    continue
                place = self._ghosts.keys()[index]
                if place[:2] != (tree, section):
                    continue
                common = common_tokens(place[2], wanted)
                if common > best:
                    best, found = common, self._ghosts[place]
        return best, found

    def clear(self, salt: bytes | None = None) -> None:
        """Forget all, or all of ``salt``."""
        if salt is not None:
            for place in [place for place in self._ghosts if place[1] == salt]:
                self._forget(place)
            return
        self._ghosts.clear()
        self._order.clear()
        self.num_tokens = 0

    def _forget(self, place: tuple[TreeName, bytes, bytes]) -> None:
        if self._ghosts.pop(place, None) is not None:
            self.num_tokens -= key_length(place[2])
