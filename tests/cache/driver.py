"""Drives a `PrefixCache` as a scheduler and a runner would, and holds every promise it makes after every call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from radixserve.cache.block_pool import BlockState
from radixserve.cache.lease import Lease
from radixserve.cache.namespace import Namespace
from radixserve.cache.node import Node
from radixserve.cache.prefix_cache import PrefixCache
from radixserve.cache.token_key import decode_tokens, encode_tokens
from radixserve.config import CacheConfig
from radixserve.errors import OutOfBlocks
from tests.cache.fake_kv import FakeKV, FakePlan, FakeRow, PoisoningPool
from tests.cache.oracle import Oracle


@dataclass(slots=True, eq=False)
class Job:
    """A request. ``computed``: planned so far; ``in_place``: tokens that are collected and still in the lease's blocks.

    ``moved``: the step for which the lease took over another's blocks; what earlier steps computed went to its old ones.
    """

    namespace: Namespace
    tokens: list[int]
    prompt: int
    length: int
    samples: int = 1
    computed: int = 0
    in_place: int = 0
    moved: int = 0
    lease: Lease | None = None
    flights: int = 0
    aborted: bool = False

    @property
    def key(self) -> bytes:
        return encode_tokens(self.tokens)

    @property
    def held(self) -> Lease:
        assert self.lease is not None, "the job holds a lease"
        return self.lease


@dataclass(slots=True)
class _Flight:
    plan: FakePlan
    rows: list[tuple[Job, int]] = field(default_factory=list)


def next_token(tokens: Sequence[int], sample: int, alphabet: int) -> int:
    """The model: equal prefixes continue equally, so identical decodes run in lock-step."""
    return (sum((index + 1) * token for index, token in enumerate(tokens)) + sample) % alphabet


PUBLIC = Namespace("m")


class Driver:
    """``alphabet`` is the vocabulary's size; steps in flight are kept in order in ``flights``."""

    def __init__(self, config: CacheConfig, alphabet: int = 2) -> None:
        assert config.num_blocks is not None
        self.cache = PrefixCache(config, PoisoningPool(config.num_blocks, self._freed))
        self.kv = FakeKV(config.num_blocks, config.block_size)
        self.alphabet = alphabet
        self.size = config.block_size
        self.may = Oracle(self.size)
        self.must = Oracle(self.size)
        self.jobs: list[Job] = []
        self.flights: list[_Flight] = []
        self.step = 0
        self.arrivals = 0
        self.exact_matches = 0
        # By id: the tokens that were held when the hold was taken, and whether a step failed since.
        self.holds: dict[str, tuple[Namespace, list[int], bool]] = {}
        self.now = 0.0

    # ---------------------------------------------------------------- requests

    def arrive(self, namespace: Namespace, tokens: Sequence[int], outputs: int = 0, samples: int = 1) -> Job:
        """Queue a request that generates ``outputs`` tokens (one more step computes the last of them)."""
        self.arrivals += 1
        own = self.cache.namespace_of(namespace, f"r{self.arrivals}")
        job = Job(own, list(tokens), len(tokens), len(tokens) + outputs, samples)
        self.jobs.append(job)
        return job

    def admit(self, job: Job) -> None:
        """Lease what is held, after looking whether that is what must be held."""
        assert job.lease is None
        limit = len(job.tokens) - 1
        before = self.cache.available_blocks
        found = self.probe(job.namespace, job.tokens, limit)
        cost = self.cache.locked_by(self.cache.match(job.namespace, job.key, limit))
        job.lease = self.cache.acquire(job.namespace, job.key, limit)
        job.computed = job.lease.leased_tokens
        job.in_place = 0
        assert job.computed == found <= limit
        assert before - self.cache.available_blocks == cost, "locked_by foretells what acquire locks"
        self.check()

    def serve(self, tokens: Sequence[int], namespace: Namespace = PUBLIC, *, outputs: int = 0) -> int:
        """One request alone from arrival to its end; returns how many tokens its prompt hit."""
        job = self.arrive(namespace, tokens, outputs)
        self.admit(job)
        hit = job.computed
        while job in self.jobs:
            assert self.plan([(job, len(job.tokens))])
            self.collect()
        return hit

    def probe(self, namespace: Namespace, tokens: Sequence[int], limit: int) -> int:
        """The length of a match, which lies within what the oracles say, and changes nothing."""
        books = self._books()
        match = self.cache.match(namespace, encode_tokens(tokens), limit)
        assert self._books() == books, "match is read-only"
        low, high = self.must.match(namespace, tokens, limit), self.may.match(namespace, tokens, limit)
        if self.cache.config.prefix_cache == "off":
            low = 0  # what no lease holds is forgotten
        elif self.cache.config.prefix_cache == "force_miss":
            low = high = 0
        assert low <= match.total <= high, f"{match.total} tokens matched, {low} to {high} are held"
        self.exact_matches += low == high
        return match.total

    def _books(self) -> list[tuple[int, int, int, int, int, bytes]]:
        return [(id(n), n.start, n.lock, n.last_access, n.hits, n.data) for n in self.cache.tree.nodes()]

    def leave(self, job: Job, *, keep_tail: bool, forget: bool = False) -> None:
        """Abort: at once if no step in flight has a row of the job, when that is collected otherwise."""
        job.aborted = True
        self.jobs.remove(job)
        if job.flights == 0 and job.lease is not None:
            if forget:
                self._drop(job)
            else:
                self._release(job, keep_tail=keep_tail)

    def preempt(self, job: Job, *, keep_tail: bool) -> None:
        """Back to the queue, keeping its tokens."""
        self._release(job, keep_tail=keep_tail)
        job.computed = 0

    def disown(self, job: Job) -> None:
        """The job's row gave nonsense: nothing of it is re-used."""
        self.cache.disown(job.held)
        job.lease = None
        self.jobs.remove(job)
        self.must.clear()
        self._forget_holds()
        self.check()

    def _release(self, job: Job, *, keep_tail: bool) -> None:
        lease, computed = job.held, job.computed
        copied = lease.copy is not None
        pending = self._any_pending()
        self.cache.release(lease, job.key, computed, keep_tail=keep_tail)
        job.lease, job.computed = None, 0
        whole = computed // self.size * self.size
        if not copied:
            stored = computed if keep_tail else whole
            self.may.add(job.namespace, job.tokens[:stored])
            if not pending:
                self.must.add(job.namespace, job.tokens[:stored])
        self.check()

    def _drop(self, job: Job) -> None:
        self.cache.discard(job.held)
        job.lease, job.computed = None, 0
        self.check()

    # ---------------------------------------------------------------- steps

    def plan(self, chunks: Sequence[tuple[Job, int]]) -> bool:
        """Plan a step of up to so many tokens for each job, and begin it; False if no job could have a row."""
        self.step += 1
        rows: list[tuple[Job, int]] = []
        snapshots: list[FakeRow] = []
        copies: list[tuple[int, int]] = []
        for job, count in chunks:
            row = self._extend(job, count, copies)
            if row is not None:
                rows.append((job, len(row.tokens)))
                snapshots.append(row)
        if not rows:
            return False
        self.flights.append(_Flight(FakePlan(self.step, tuple(snapshots), tuple(copies)), rows))
        for job, _ in rows:
            job.flights += 1
        self.cache.begin(self.step)
        self.check()
        return True

    def _extend(self, job: Job, count: int, copies: list[tuple[int, int]]) -> FakeRow | None:
        cache, lease, key = self.cache, job.held, job.key
        limit = len(job.tokens) - 1
        moved = cache.rematch(lease, key, job.computed, limit)
        assert job.computed <= moved <= max(limit, job.computed)
        if moved > job.computed:
            assert moved == lease.leased_tokens <= self.may.match(job.namespace, job.tokens, limit)
            job.computed, job.in_place, job.moved = moved, 0, self.step
        self.check()
        end = min(job.computed + count, len(job.tokens))
        if end == job.computed or not self._make_room(lease, end):
            return None
        assert len(lease.table) >= cache.blocks_for(end) and cache.missing_blocks(lease, end) == 0
        copied = lease.copy.length if lease.copy else 0
        copy = cache.take_copy(lease, self.step)
        assert (copy is not None) == (copied > 0)
        if copy is not None:
            copies.append(copy)
        held = lease.node.end
        whole = end // self.size * self.size
        cache.publish(lease, key, end, self.step)
        if lease.node.end > held:
            assert lease.node.end == whole
            self.may.publish(job.namespace, job.tokens[:whole], self.step)
            self.must.drop_tails(job.namespace, job.tokens[:whole])
            self.must.publish(job.namespace, job.tokens[:whole], self.step)
        elif whole > held:
            twin = self.may.match(job.namespace, job.tokens, whole)
            assert twin // self.size * self.size > held, "blocks stay private only where the tree has their tokens"
        start, job.computed = job.computed, end
        self.check()
        table = lease.snapshot(cache.blocks_for(end)).tolist()
        assert table == lease.table[: cache.blocks_for(end)]
        return FakeRow(job.namespace.tree, start, tuple(job.tokens[:end]), tuple(table))

    def _make_room(self, lease: Lease, end: int) -> bool:
        """Extend the table, evicting exactly what is missing; False, with nothing changed, if the pool cannot."""
        cache = self.cache
        before = (list(lease.table), cache.pool.num_free, cache.available_blocks, cache.stats.evicted_blocks)
        missing, free = cache.missing_blocks(lease, end), cache.pool.num_free
        try:
            cache.extend(lease, end)
        except OutOfBlocks:
            after = (list(lease.table), cache.pool.num_free, cache.available_blocks, cache.stats.evicted_blocks)
            assert after == before and missing > before[2], "a refusal changes nothing"
            return False
        assert missing <= before[2]
        evicted = cache.stats.evicted_blocks - before[3]
        assert evicted == max(0, missing - free), "as many blocks as are needed, no more"
        if evicted:
            self.must.clear()
        self.check()
        return True

    def collect(self) -> None:
        """Run the oldest step in flight, as late as can be, and take its result in."""
        flight = self.flights.pop(0)
        step = flight.plan.step
        self.kv.execute(flight.plan)
        self.cache.collect(step)
        for oracle in (self.may, self.must):
            oracle.collect(step)
        self.check()
        for job, end in flight.rows:
            job.flights -= 1
            if job.lease is not None and job.flights == 0 and job.aborted:
                self._release(job, keep_tail=True)
            elif not job.aborted:
                self._settle(job, end, step)
        self.check()

    def _settle(self, job: Job, end: int, step: int) -> None:
        lease = job.held
        pending = self._any_pending()
        if step >= job.moved:
            job.in_place = end
        self.cache.settle(lease, job.key, end)
        whole = end // self.size * self.size
        assert pending or lease.node.end >= whole, "all full blocks are the tree's after a step"
        settled = job.tokens[: min(whole, lease.node.end)]
        if not any(node.pending for node in lease.node.path() if node.start < whole):
            self.may.add(job.namespace, settled)
            self.must.add(job.namespace, settled)
        self.check()
        if end < len(job.tokens):
            return
        if len(job.tokens) == job.length:
            self.jobs.remove(job)
            self._release(job, keep_tail=True)
        elif job.samples > 1:
            self._fork(job)
        else:
            job.tokens.append(next_token(job.tokens, 0, self.alphabet))

    def _fork(self, job: Job) -> None:
        length = len(job.tokens)
        pending = self._any_pending()
        leases = self.cache.fork(job.held, job.key, length, job.samples)
        self.cache.discard(job.held)
        self.jobs.remove(job)
        self.may.add(job.namespace, job.tokens)
        if not pending:
            self.must.add(job.namespace, job.tokens)
        for sample, lease in enumerate(leases):
            assert pending or lease.leased_tokens == length, "a fork re-uses all that its parent computed"
            tokens = [*job.tokens, next_token(job.tokens, sample, self.alphabet)]
            fork = Job(job.namespace, tokens, job.prompt, job.length)
            fork.lease, fork.computed = lease, lease.leased_tokens
            self.jobs.append(fork)
        self.check()

    def fail(self) -> None:
        """The oldest step in flight failed: what was planned on top of it is undone too, and its requests queue again."""
        failed, self.flights = self.flights, []
        involved = {job for flight in failed for job, _ in flight.rows}
        for job in involved:
            job.flights = 0
        for job in [*self.jobs, *(job for job in involved if job.aborted)]:
            if job.lease is not None and (job in involved or any(node.pending for node in job.lease.node.path())):
                self._drop(job)
        self.holds = {hold_id: (namespace, tokens, True) for hold_id, (namespace, tokens, _) in self.holds.items()}
        for flight in reversed(failed):
            self.cache.roll_back(flight.plan.step)
            for oracle in (self.may, self.must):
                oracle.roll_back(flight.plan.step)
            self.check()

    # ---------------------------------------------------------------- holds

    def hold(self, namespace: Namespace, tokens: Sequence[int], seconds: float = 1e9) -> int:
        """Hold what is in place of ``tokens``; returns how many are. With all of the quota free it is all that is committed."""
        self.arrivals += 1
        hold_id = f"h{self.arrivals}"
        cache = self.cache
        found = cache.match(namespace, encode_tokens(tokens), len(tokens))
        blocks = cache.holds.num_blocks
        held = cache.hold(hold_id, namespace, encode_tokens(tokens), self.now + seconds)
        assert 0 <= held <= found.total and (hold_id in cache.holds) == (held > 0)
        room = cache.holds.max_blocks - blocks
        if not found.node.pending and cache.config.prefix_cache == "on" and cache.blocks_for(len(tokens)) <= room:
            assert held == found.total, "all that is there is held"
        if held:
            self.holds[hold_id] = (namespace, list(tokens[:held]), False)
        self._forget_holds()
        self.check()
        return held

    def release(self, hold_id: str) -> None:
        """End a hold."""
        assert self.cache.holds.release([hold_id, "unknown"]) == 1
        self._forget_holds()
        self.check()

    def wait(self, seconds: float) -> None:
        """Time passes; holds end by themselves."""
        self.now += seconds
        before = len(self.cache.holds)
        assert before - self.cache.holds.expire(self.now) == len(self.cache.holds)
        expiry = self.cache.holds.next_expiry
        assert expiry is None or expiry > self.now
        self._forget_holds()
        self.check()

    def press(self, count: int) -> None:
        """Blocks are wanted: holds give way, no more of them than it takes."""
        cache = self.cache
        before, only_held = cache.available_blocks, cache.yieldable_blocks
        had = cache.secure(count)
        assert had == cache.available_blocks >= min(count, before + only_held)
        if before >= count:
            assert had == before
        self._forget_holds()
        self.check()

    def _forget_holds(self) -> None:
        self.holds = {hold_id: hold for hold_id, hold in self.holds.items() if hold_id in self.cache.holds}

    def evict(self, count: int) -> None:
        """Eviction by hand: exactly as many blocks as asked for, or all there are."""
        evictable = self.cache.tree.evictable_blocks
        assert self.cache.evict(count) == min(count, evictable)
        if count and evictable:
            self.must.clear()
        self.check()

    def flush(self) -> None:
        """Everything that no lease holds goes, and holds end."""
        evictable, held = self.cache.tree.evictable_blocks, bool(self.holds)
        flushed = self.cache.flush()
        assert flushed >= evictable if held else flushed == evictable
        assert len(self.cache.holds) == 0
        self._forget_holds()
        assert self.cache.tree.evictable_blocks == 0 and len(self.cache.ghosts) == 0
        self.must.clear()
        self.check()

    def finish(self) -> None:
        """Let go of everything: the pool returns to its baseline."""
        while self.flights:
            self.collect()
        for job in list(self.jobs):
            self.leave(job, keep_tail=True)
        self.flush()
        assert not self.cache.leases
        assert self.cache.pool.num_free == self.cache.pool.total
        assert self.cache.tree.num_nodes == 0

    # ---------------------------------------------------------------- promises

    def check(self) -> None:
        """The books balance, and every block holds what its owner says."""
        cache, pool = self.cache, self.cache.pool
        cache.check()
        assert pool.num_free + pool.num_tree + pool.num_private + pool.num_retired == pool.total
        assert cache.available_blocks == pool.num_free + cache.tree.evictable_blocks
        for node in cache.tree.nodes():
            self._check_node(node)
        self._check_holds()
        for job in self.jobs:
            if job.lease is not None:
                self._check_lease(job, job.lease)
        for flight in self.flights:
            for block in flight.plan.blocks():
                assert pool.state(block) is not BlockState.FREE, f"block {block} of a step in flight is free"

    def _check_holds(self) -> None:
        """What is held is found, to the token, and the quota is kept."""
        book = self.cache.holds
        assert book.num_blocks <= book.max_blocks
        assert (book.num_blocks == 0) == (len(book) == 0) and len(book) >= len(self.holds)
        displaced = any(tail.holds for tail in self.cache.flights.replaced())
        for namespace, tokens, failed in self.holds.values():
            found = self.cache.match(namespace, encode_tokens(tokens), len(tokens))
            whole = len(tokens) // self.size * self.size
            # A tail is not found while the step that replaces it is in flight, or once that failed.
            assert found.total >= (whole if displaced or failed else len(tokens))

    def _check_node(self, node: Node) -> None:
        if node.pending:
            return
        path = node.path()
        assert not any(step.pending for step in path), "what is committed hangs from what is committed"
        root = path[0].parent
        tree = next(name for name, known in self.cache.tree.roots().items() if known is root)
        tokens = decode_tokens(b"".join(step.data for step in path)).tolist()
        table = [block for step in path for block in step.blocks]
        self.kv.verify(tree, tokens, table, node.start, node.end)

    def _check_lease(self, job: Job, lease: Lease) -> None:
        start = lease.node.end
        assert decode_tokens(b"".join(n.data for n in lease.node.path())).tolist() == job.tokens[:start]
        if lease.copy is not None:
            stop = start + lease.copy.length
            table = [*lease.table[: start // self.size], lease.copy.block]
            self.kv.verify(job.namespace.tree, job.tokens, table, start, stop)
        elif job.in_place > start:
            self.kv.verify(job.namespace.tree, job.tokens, lease.table, start, job.in_place)

    def _any_pending(self) -> bool:
        return any(node.pending for node in self.cache.tree.nodes())

    def _freed(self, blocks: Sequence[int]) -> None:
        in_flight = set().union(*(flight.plan.blocks() for flight in self.flights))
        assert in_flight.isdisjoint(blocks), f"{in_flight.intersection(blocks)} are freed, a step in flight reads them"
        self.kv.poison(blocks)
