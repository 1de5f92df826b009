"""Random histories of the cache against the naive oracle and a KV array that knows what it holds.

A history is a number of operations drawn from a seed, so hypothesis shrinks a failure to a short beginning of it.
"""

from __future__ import annotations

import random
from typing import Literal

from hypothesis import given, settings
from hypothesis import strategies as st

from radixserve.cache.namespace import Namespace
from radixserve.config import CacheConfig
from tests.cache.driver import Driver, Job

NAMESPACES = (Namespace("m"), Namespace("m", "", b"a"), Namespace("m", "", b"b"), Namespace("m", "adapter", b"a"))
SIZES = st.sampled_from([1, 3, 4, 16])
POLICIES: st.SearchStrategy[Literal["lru", "lfu"]] = st.sampled_from(["lru", "lfu"])
SEEDS = st.integers(0, 2**32 - 1)


class History:
    """Requests of several tenants that share, part and repeat; at most ``depth`` steps in flight.

    ``loss``: whether anything is evicted, disowned or fails, so that less may be found than was stored.
    """

    def __init__(self, driver: Driver, rng: random.Random, *, depth: int = 1, loss: bool = True) -> None:
        self.driver = driver
        self.rng = rng
        self.depth = depth
        self.prompts: list[list[int]] = [[]]
        gentle = [(self.arrive, 6), (self.admit, 5), (self.plan, 12), (self.collect, 10), (self.leave, 1)]
        gentle += [(self.preempt, 1), (self.probe, 3)]
        gentle += [(self.hold, 3), (self.release, 1), (self.wait, 2)]
        rough = [(self.press, 1), (self.fail, 1), (self.disown, 1), (self.evict, 2), (self.flush, 1)] if loss else []
        self.operations = [operation for operation, weight in gentle + rough for _ in range(weight)]

    def run(self, count: int) -> None:
        """So many operations, then everything is let go of."""
        for _ in range(count):
            self.rng.choice(self.operations)()
        self.driver.finish()

    def tokens(self) -> list[int]:
        """A prompt that often begins like an earlier one, cut anywhere."""
        rng, size = self.rng, self.driver.size
        base = rng.choice(self.prompts)
        kept = base[: rng.choice([len(base), rng.randint(0, len(base))])]
        fresh = [rng.randrange(self.driver.alphabet) for _ in range(rng.randint(0 if kept else 1, 2 * size + 2))]
        self.prompts = [*self.prompts[-7:], (kept + fresh)[: 5 * size + 5]]
        return self.prompts[-1]

    def jobs(self, *, leased: bool | None = None, idle: bool = False) -> list[Job]:
        return [
            job for job in self.driver.jobs if leased in (None, job.lease is not None) and not (idle and job.flights)
        ]

    def arrive(self) -> None:
        if len(self.driver.jobs) < 8:
            outputs = self.rng.choice([0, 1, 3, 6, 20])
            samples = self.rng.choice([1, 1, 1, 2, 3]) if outputs else 1
            self.driver.arrive(self.rng.choice(NAMESPACES), self.tokens(), outputs, samples)

    def admit(self) -> None:
        for job in self.jobs(leased=False)[: self.rng.randint(1, 4)]:
            self.driver.admit(job)

    def plan(self) -> None:
        jobs = [job for job in self.jobs(leased=True) if job.computed < len(job.tokens)]
        if not jobs or len(self.driver.flights) == self.depth:
            return
        self.rng.shuffle(jobs)
        chosen = jobs[: self.rng.choice([1, len(jobs), len(jobs)])]
        longest = self.rng.choice([1, self.driver.size, 2 * self.driver.size, 1000])
        self.driver.plan([(job, self.rng.randint(1, longest)) for job in chosen])

    def collect(self) -> None:
        if self.driver.flights:
            self.driver.collect()

    def fail(self) -> None:
        if self.driver.flights:
            self.driver.fail()

    def leave(self) -> None:
        if jobs := self.jobs():
            self.driver.leave(self.rng.choice(jobs), keep_tail=self.rng.random() < 0.5, forget=self.rng.random() < 0.5)

    def preempt(self) -> None:
        if jobs := self.jobs(leased=True, idle=True):
            self.driver.preempt(self.rng.choice(jobs), keep_tail=self.rng.random() < 0.5)

    def disown(self) -> None:
        if jobs := self.jobs(leased=True, idle=True):
            self.driver.disown(self.rng.choice(jobs))

    def hold(self) -> None:
        # What was computed, and what comes to it later: a tail that is held is replaced then.
        jobs = self.jobs()
        tokens, namespace = self.tokens(), self.rng.choice(NAMESPACES)
        if jobs and self.rng.random() < 0.7:
            job = self.rng.choice(jobs)
            tokens, namespace = job.tokens[: self.rng.randint(1, len(job.tokens))], job.namespace
        self.driver.hold(namespace, tokens, self.rng.choice([1.0, 5.0, 1e6]))

    def release(self) -> None:
        if self.driver.holds:
            self.driver.release(self.rng.choice(sorted(self.driver.holds)))

    def wait(self) -> None:
        self.driver.wait(self.rng.choice([0.0, 0.5, 2.0]))

    def press(self) -> None:
        self.driver.press(self.rng.randint(0, self.driver.cache.pool.total + 1))

    def evict(self) -> None:
        self.driver.evict(self.rng.randint(0, 6))

    def flush(self) -> None:
        if self.rng.random() < 0.2:
            self.driver.flush()

    def probe(self) -> None:
        tokens = self.tokens()
        self.driver.probe(self.rng.choice(NAMESPACES), tokens, self.rng.randint(0, len(tokens)))


def config(size: int, blocks: int, policy: Literal["lru", "lfu"] = "lru") -> CacheConfig:
    return CacheConfig(block_size=size, num_blocks=blocks, eviction=policy, ghost_tokens=300, hold_share=0.4)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(seed=SEEDS, count=st.integers(50, 150), size=SIZES, policy=POLICIES, alphabet=st.sampled_from([2, 3]))
def test_everything_that_was_stored_is_found_token_by_token(
    seed: int, count: int, size: int, policy: Literal["lru", "lfu"], alphabet: int
) -> None:
    driver = Driver(config(size, 3000 if size == 1 else 800, policy), alphabet)
    history = History(driver, random.Random(seed), loss=False)
    history.run(count)
    assert driver.exact_matches > 0


@settings(max_examples=150, deadline=None, derandomize=True)
@given(seed=SEEDS, count=st.integers(50, 250), size=SIZES, policy=POLICIES, per_size=st.integers(2, 60))
def test_a_small_pool_never_gives_wrong_kv(
    seed: int, count: int, size: int, policy: Literal["lru", "lfu"], per_size: int
) -> None:
    blocks = max(2, per_size * (4 if size == 1 else 1))
    History(Driver(config(size, blocks, policy)), random.Random(seed)).run(count)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(seed=SEEDS, count=st.integers(50, 250), size=SIZES, policy=POLICIES, per_size=st.integers(4, 80))
def test_two_steps_in_flight_never_read_a_freed_block(
    seed: int, count: int, size: int, policy: Literal["lru", "lfu"], per_size: int
) -> None:
    blocks = max(2, per_size * (4 if size == 1 else 1))
    History(Driver(config(size, blocks, policy)), random.Random(seed), depth=2).run(count)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(seed=SEEDS, count=st.integers(50, 150), size=SIZES, mode=st.sampled_from(["off", "force_miss"]))
def test_the_switched_off_modes_keep_the_same_books(
    seed: int, count: int, size: int, mode: Literal["off", "force_miss"]
) -> None:
    blocks = 240 if size == 1 else 60
    driver = Driver(CacheConfig(block_size=size, num_blocks=blocks, prefix_cache=mode))
    History(driver, random.Random(seed)).run(count)
