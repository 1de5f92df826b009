"""Random histories of the cache against the naive oracle and a KV array that knows what it holds."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from radixserve.cache.namespace import Namespace
from radixserve.config import CacheConfig
from tests.cache.driver import Driver, Job

NAMESPACES = (Namespace("m"), Namespace("m", "", b"a"), Namespace("m", "", b"b"), Namespace("m", "adapter", b"a"))
ALPHABET = 2


class CacheMachine(RuleBasedStateMachine):
    """Requests of several tenants that share, part and repeat; ``depth`` steps in flight at most."""

    depth = 1
    blocks = (400,)

    def __init__(self) -> None:
        super().__init__()
        self.driver = Driver(CacheConfig(num_blocks=2))
        self.seen: list[list[int]] = [[]]

    @initialize(data=st.data(), size=st.sampled_from([1, 3, 4, 16]), policy=st.sampled_from(["lru", "lfu"]))
    def build(self, data: st.DataObject, size: int, policy: str) -> None:
        blocks = data.draw(st.sampled_from(self.blocks))
        eviction = "lfu" if policy == "lfu" else "lru"
        config = CacheConfig(
            block_size=size, num_blocks=blocks, eviction="lfu" if eviction == "lfu" else "lru", ghost_tokens=200
        )
        self.driver = Driver(config, ALPHABET)

    def _tokens(self, data: st.DataObject) -> list[int]:
        """A prompt that often begins like an earlier one, cut anywhere."""
        base = data.draw(st.sampled_from(self.seen))
        kept = base[: data.draw(st.integers(0, len(base)))]
        most = max(4, 2 * self.driver.size + 2)
        fresh = data.draw(st.lists(st.integers(0, ALPHABET - 1), min_size=0 if kept else 1, max_size=most))
        self.seen = [*self.seen[-7:], kept + fresh]
        return kept + fresh

    def _idle(self) -> list[Job]:
        return [job for job in self.driver.jobs if job.flights == 0]

    def _leased(self) -> list[Job]:
        """Jobs whose next token is known: a row can be planned for them."""
        return [job for job in self.driver.jobs if job.lease is not None and job.computed < len(job.tokens)]

    @rule(data=st.data(), namespace=st.sampled_from(NAMESPACES), outputs=st.integers(0, 6), samples=st.integers(1, 3))
    def arrive(self, data: st.DataObject, namespace: Namespace, outputs: int, samples: int) -> None:
        if len(self.driver.jobs) < 8:
            job = self.driver.arrive(namespace, self._tokens(data), outputs, samples if outputs else 1)
            if data.draw(st.booleans()):
                self.driver.admit(job)

    @precondition(lambda self: any(job.lease is None for job in self.driver.jobs))
    @rule(data=st.data())
    def admit(self, data: st.DataObject) -> None:
        self.driver.admit(data.draw(st.sampled_from([job for job in self.driver.jobs if job.lease is None])))

    @precondition(lambda self: self._leased() and len(self.driver.flights) < self.depth)
    @rule(data=st.data())
    def plan(self, data: st.DataObject) -> None:
        leased = self._leased()
        chosen = data.draw(st.lists(st.sampled_from(leased), min_size=1, max_size=len(leased), unique=True))
        whole = data.draw(st.booleans())
        chunks = [(job, 1000 if whole else data.draw(st.integers(1, 2 * self.driver.size))) for job in chosen]
        self.driver.plan(chunks)

    @precondition(lambda self: self.driver.flights)
    @rule()
    def collect(self) -> None:
        self.driver.collect()

    @precondition(lambda self: self.driver.flights)
    @rule(chance=st.integers(0, 3))
    def fail(self, chance: int) -> None:
        if chance == 0:
            self.driver.fail()
        else:
            self.driver.collect()

    @precondition(lambda self: self.driver.jobs)
    @rule(data=st.data(), keep_tail=st.booleans(), forget=st.booleans())
    def abort(self, data: st.DataObject, keep_tail: bool, forget: bool) -> None:
        self.driver.leave(data.draw(st.sampled_from(self.driver.jobs)), keep_tail=keep_tail, forget=forget)

    @precondition(lambda self: any(job.lease is not None for job in self._idle()))
    @rule(data=st.data(), how=st.sampled_from(["preempt", "preempt", "preempt whole", "disown"]))
    def take_back(self, data: st.DataObject, how: str) -> None:
        job = data.draw(st.sampled_from([job for job in self._idle() if job.lease is not None]))
        if how == "disown":
            self.driver.disown(job)
        else:
            self.driver.preempt(job, keep_tail=how == "preempt")

    @rule(count=st.integers(0, 12), everything=st.booleans())
    def shrink(self, count: int, everything: bool) -> None:
        if everything and count == 0:
            self.driver.flush()
        elif count >= 9:
            self.driver.evict(count - 8)

    @rule(data=st.data(), namespace=st.sampled_from(NAMESPACES))
    def probe(self, data: st.DataObject, namespace: Namespace) -> None:
        tokens = self._tokens(data)
        self.driver.probe(namespace, tokens, data.draw(st.integers(0, len(tokens))))

    def teardown(self) -> None:
        self.driver.finish()


class SmallPoolMachine(CacheMachine):
    """So few blocks that every request must evict, and some find none."""

    blocks = (2, 6, 14, 40)


class OverlappedMachine(CacheMachine):
    """Two steps in flight."""

    depth = 2
    blocks = (10, 24, 60, 200)


TestCache = CacheMachine.TestCase
TestCache.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestSmallPool = SmallPoolMachine.TestCase
TestSmallPool.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestOverlapped = OverlappedMachine.TestCase
TestOverlapped.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
