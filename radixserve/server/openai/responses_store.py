"""Answers of ``/v1/responses`` that are kept in memory, so that a later request can go on from them."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from radixserve.server.openai.responses_items import Item


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """One answer.

    ``body``: the response as JSON. ``input``: all items that it was made from, those of earlier responses included and
    instructions not; ``output``: the items that it holds.
    """

    id: str
    body: bytes
    input: tuple[Item, ...]
    output: tuple[Item, ...]

    @property
    def size(self) -> int:
        """Bytes that it keeps alive, about; items that several responses share count for each."""
        return len(self.body) + sum(item.size for item in (*self.input, *self.output))


class ResponseStore:
    """The latest responses of all namespaces: at most ``max_responses`` of at most ``max_bytes`` together.

    Every call is about one namespace, ``salt``; what is stored in another is unknown there. The one that was not used for
    the longest time goes first. Safe to share between threads.
    """

    def __init__(self, max_responses: int, max_bytes: int = 256 << 20) -> None:
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._responses: OrderedDict[tuple[bytes, str], StoredResponse] = OrderedDict()
        # By namespace and id: the newest item, and how many responses hold one of that id.
        self._items: dict[tuple[bytes, str], Item] = {}
        self._held: Counter[tuple[bytes, str]] = Counter()
        self._bytes = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """How many are kept."""
        return len(self._responses)

    @property
    def enabled(self) -> bool:
        """Whether anything is kept at all."""
        return self._max_responses > 0

    def put(self, salt: bytes, response: StoredResponse) -> None:
        """Keep a new response; one that is larger than the whole store is not kept."""
        size = response.size
        if not self.enabled or size > self._max_bytes:
            return
        with self._lock:
            self._responses[salt, response.id] = response
            self._items |= (items := _items_of(salt, response))
            self._held.update(items.keys())
            self._bytes += size
            while len(self._responses) > self._max_responses or self._bytes > self._max_bytes:
                self._drop(next(iter(self._responses)))

    def get(self, salt: bytes, name: str) -> StoredResponse | None:
        """The response of that id, None where there is none."""
        with self._lock:
            found = self._responses.get((salt, name))
            if found is not None:
                self._responses.move_to_end((salt, name))
            return found

    def item(self, salt: bytes, name: str) -> Item | None:
        """The item of that id in any of the responses, the newest where several have it."""
        with self._lock:
            return self._items.get((salt, name))

    def delete(self, salt: bytes, name: str) -> bool:
        """Forget a response; whether there was one."""
        with self._lock:
            if (salt, name) not in self._responses:
                return False
            self._drop((salt, name))
            return True

    def _drop(self, key: tuple[bytes, str]) -> None:
        response = self._responses.pop(key)
        self._bytes -= response.size
        for item in _items_of(key[0], response):
            self._held[item] -= 1
            if not self._held[item]:
                del self._held[item], self._items[item]


def _items_of(salt: bytes, response: StoredResponse) -> dict[tuple[bytes, str], Item]:
    return {(salt, item.id): item for item in (*response.input, *response.output)}
