"""A cache whose tree is changed in every way a scheduler can change it, while requests wait."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from radixserve.cache.lease import Lease
from radixserve.cache.namespace import Namespace
from radixserve.cache.node import Match
from radixserve.cache.prefix_cache import PrefixCache
from radixserve.cache.token_key import encode_tokens, key_length
from radixserve.config import CacheConfig
from radixserve.messages import SamplingParams
from radixserve.scheduler.request import Request

SALTS = (b"", b"", b"a", b"b")
NUM_BLOCKS = 48


class Queue(Protocol):
    """What waiting requests are put into."""

    def add(self, request: Request) -> None:
        """It waits."""

    def remove(self, request: Request) -> bool:
        """It waits no longer."""


@dataclass(slots=True, eq=False)
class Plant:
    """A request that computes its prompt in chunks; ``computed`` counts what is planned."""

    namespace: Namespace
    key: bytes
    lease: Lease
    computed: int
    in_flight: bool = False


class Garden:
    """``change`` does one random thing to the tree or to the queue; ``waiting`` is who waits."""

    def __init__(self, seed: int, size: int) -> None:
        self.rng = random.Random(seed)
        self.size = size
        self.cache = PrefixCache(CacheConfig(block_size=size, num_blocks=NUM_BLOCKS))
        self.waiting: list[Request] = []
        self.gone: list[Request] = []
        self._plants: list[Plant] = []
        self._arrivals = 0
        self._step = 0
        self._stems = [[self.rng.randrange(2) for _ in range(8 * size)] for _ in range(2)]

    def match(self, request: Request) -> Match:
        """A fresh walk from the root."""
        return self.cache.match(request.namespace, request.key, request.match_limit)

    # ---------------------------------------------------------------- the queue

    def wait(
        self, queue: Queue, tokens: Sequence[int], *, salt: bytes = b"", sample: int = 0, priority: int = 0
    ) -> Request:
        """One more request waits."""
        params = SamplingParams()
        request = Request(
            f"r{self._arrivals}",
            encode_tokens(tokens),
            params,
            Namespace("m", "", salt),
            max_tokens=1,
            seed=0,
            priority=priority,
        )
        request.arrival, request.sample_index = self._arrivals, sample
        self._arrivals += 1
        self.waiting.append(request)
        queue.add(request)
        return request

    def leave(self, queue: Queue, request: Request) -> None:
        """``request`` waits no longer; it may come back."""
        assert queue.remove(request)
        self.waiting.remove(request)
        self.gone.append(request)

    # ---------------------------------------------------------------- the tree

    def hold(self, tokens: Sequence[int], *, salt: bytes = b"") -> None:
        """A whole prompt is computed and let go of."""
        plant = self._sow(Namespace("m", "", salt), encode_tokens(tokens))
        self._grow([plant], whole=True)
        self._collect()
        self._reap(plant)

    def change(self, queue: Queue) -> None:
        """One random operation; the cache's books stay right."""
        rng = self.rng
        idle = [plant for plant in self._plants if not plant.in_flight]
        choice = rng.randrange(16)
        if choice < 5:
            priority = rng.choice([0, 0, 0, 1, -3, 70, -500])
            self.wait(queue, self._prompt(), salt=rng.choice(SALTS), sample=rng.randrange(2), priority=priority)
        elif choice == 5 and self.waiting:
            self.leave(queue, rng.choice(self.waiting))
        elif choice == 6 and self.gone:
            request = self.gone.pop(rng.randrange(len(self.gone)))
            self.waiting.append(request)
            queue.add(request)
        elif choice < 9 and not self._planned:
            self._sow(Namespace(rng.choice(["m", "m", "other"]), "", rng.choice(SALTS)), encode_tokens(self._prompt()))
        elif choice < 12 and not self._planned:
            self._grow(rng.sample(idle, rng.randint(0, len(idle))), whole=rng.random() < 0.3)
        elif choice < 14:
            if rng.random() < 0.15:
                self._fail()
            else:
                self._collect()
        elif choice == 14 and idle:
            self._reap(rng.choice(idle))
        elif choice == 15 and rng.random() < 0.5:
            self._hold_or_release()
        else:
            self.cache.evict(rng.randint(1, 6))
        self.cache.check()

    def _prompt(self) -> list[int]:
        stem = self.rng.choice(self._stems)
        own = [self.rng.randrange(2) for _ in range(self.rng.randint(1, 2 * self.size))]
        return stem[: self.rng.randint(0, len(stem))] + own

    def _sow(self, namespace: Namespace, key: bytes) -> Plant:
        lease = self.cache.acquire(namespace, key, key_length(key) - 1)
        plant = Plant(namespace, key, lease, lease.leased_tokens)
        self._plants.append(plant)
        return plant

    def _grow(self, plants: Sequence[Plant], *, whole: bool) -> None:
        """Plan a step in which ``plants`` compute more of their prompts."""
        self._step += 1
        for plant in plants:
            length = key_length(plant.key)
            plant.computed = self.cache.rematch(plant.lease, plant.key, plant.computed, length - 1)
            end = length if whole else self.rng.randint(plant.computed, length)
            plant.in_flight = True
            if end <= plant.computed or self.cache.missing_blocks(plant.lease, end) > self.cache.available_blocks:
                continue
            self.cache.extend(plant.lease, end)
            self.cache.take_copy(plant.lease, self._step)
            self.cache.publish(plant.lease, plant.key, end, self._step)
            plant.computed = end
        self.cache.begin(self._step)
        self._planned = self._step

    _planned = 0

    def _hold_or_release(self) -> None:
        """A hold splits what it ends inside of, and moves on to what replaces its tail."""
        holds = self.cache.holds
        held = [hold_id for hold_id in map(str, range(self._holds)) if hold_id in holds]
        if held and self.rng.random() < 0.4:
            holds.release([self.rng.choice(held)])
            return
        namespace = Namespace("m", "", self.rng.choice(SALTS))
        self.cache.hold(str(self._holds), namespace, encode_tokens(self._prompt()), 1e9)
        self._holds += 1

    _holds = 0

    def _collect(self) -> None:
        if self._planned:
            self.cache.collect(self._planned)
            self._planned = 0
            for plant in self._plants:
                if plant.in_flight:
                    self.cache.settle(plant.lease, plant.key, plant.computed)
                    plant.in_flight = False

    def _fail(self) -> None:
        if self._planned:
            for plant in [plant for plant in self._plants if plant.in_flight]:
                self.cache.discard(plant.lease)
                self._plants.remove(plant)
            self.cache.roll_back(self._planned)
            self._planned = 0

    def _reap(self, plant: Plant) -> None:
        self._plants.remove(plant)
        self.cache.release(plant.lease, plant.key, plant.computed)
