"""What was once found out and is asked for again: bounded, and asked once where many ask at the same time."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Memo(Generic[K, V]):
    """The youngest values by key, of ``capacity`` units together; ``weigh`` says how many units one takes.

    For any number of threads and event loops; who asks on one loop for what is being found out there waits for it. Errors are
    not kept.
    """

    def __init__(self, capacity: int, weigh: Callable[[K, V], int]) -> None:
        self._capacity = capacity
        self._weigh = weigh
        self._weight = 0
        self._values: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._asked: dict[tuple[asyncio.AbstractEventLoop, K], asyncio.Task[V]] = {}
        self._lock = threading.Lock()

    async def get(self, key: K, find: Callable[[], Coroutine[Any, Any, V]]) -> V:
        """The value of ``key``, from ``find`` where it is not known. One who is cancelled takes it from no other."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key][0]
        # One loop runs in one thread, so nobody else can put a task in this place meanwhile.
        place = (asyncio.get_running_loop(), key)
        task = self._asked.get(place)
        if task is None:
            task = self._asked[place] = asyncio.create_task(find())
            task.add_done_callback(lambda done: self._found(place, done))
        return await asyncio.shield(task)

    def _found(self, place: tuple[asyncio.AbstractEventLoop, K], task: asyncio.Task[V]) -> None:
        del self._asked[place]
        if task.cancelled() or task.exception() is not None:
            return
        key, value = place[1], task.result()
        weight = self._weigh(key, value)
        with self._lock:
            if key in self._values:  # another loop was faster
                return
            self._values[key] = (value, weight)
            self._weight += weight
            while self._weight > self._capacity:
                _, (_, freed) = self._values.popitem(last=False)
                self._weight -= freed
