"""The facade over tree and pool that the scheduler uses: match, lease, extend, publish, settle, release, check.

Who owns which part of a request's block table at any time::

    tokens      0                         node.end             num_computed        num_tokens
                ├──────────────────────────┼─────────────────────────┼──────────────────┤
    KV          in place (or being written   in place, not the        to compute
                by a row of this step)       tree's
    blocks      the tree's, locked by the    private to the lease; the last one may be part-filled
                lease through ``node``

``Lease.node`` always ends at a block boundary. A block becomes the tree's when a step that fills it is planned
(`publish`, the node is pending) or, where the tree got the same tokens from somebody else, is swapped for the tree's
block (`settle`).
"""

from __future__ import annotations

import logging

import msgspec

from radixserve.cache.access_times import AccessTimes
from radixserve.cache.block_pool import BlockPool
from radixserve.cache.cache_stats import CacheStats
from radixserve.cache.eviction import eviction_policy
from radixserve.cache.explain import explain_miss, held_tokens
from radixserve.cache.flight_book import FlightBook
from radixserve.cache.ghosts import Ghost, GhostLog
from radixserve.cache.holds import HoldBook
from radixserve.cache.lease import CopySource, Lease
from radixserve.cache.namespace import Namespace
from radixserve.cache.node import Eviction, Match, Node
from radixserve.cache.radix_tree import RadixTree
from radixserve.cache.recount import recount
from radixserve.cache.room import CacheRoom
from radixserve.cache.token_key import Key, key_length, key_slice
from radixserve.config import CacheConfig
from radixserve.errors import CacheInconsistent, OutOfBlocks
from radixserve.messages import Explanation

logger = logging.getLogger(__name__)


class PrefixCache(CacheRoom):
    """One radix tree and one block pool, kept consistent.

    ``step`` numbers are the scheduler's. All token sequences are keys (`token_key`); all lengths are tokens unless
    named blocks. ``pool``: of that many blocks, all free, which it owns until it is repaired; without one it makes its own.
    """

    def __init__(self, config: CacheConfig, pool: BlockPool | None = None) -> None:
        assert config.num_blocks is not None, "the pool's size is resolved before the cache is built"
        self.config = config
        self.block_size = config.block_size
        self.ghosts = GhostLog(config.ghost_tokens)
        self.stats = CacheStats()
        self.leases: set[Lease] = set()
        assert pool is None or pool.total == config.num_blocks, "the pool is as large as the config says"
        self._open_books(BlockPool(config.num_blocks) if pool is None else pool)
        self._step = 0

    def _open_books(self, pool: BlockPool) -> None:
        """An empty tree over a pool that is all free."""
        self.pool = pool
        self.tree = RadixTree(self.block_size, eviction_policy(self.config.eviction))
        self.flights = FlightBook(self.tree, pool, self._let_go)
        self.holds = HoldBook(self.tree, int(self.config.hold_share * pool.total), self._let_go)
        self.access_times = AccessTimes()

    def namespace_of(self, namespace: Namespace, name: str) -> Namespace:
        """The namespace a request really uses: with ``prefix_cache=off`` each request has its own, called ``name``.

        No other request may ever have that name, not even one after it: a step in flight may outlive the request.
        """
        if self.config.prefix_cache == "off":
            return Namespace(namespace.model, namespace.adapter, b"off:" + name.encode())
        return namespace

    # ---------------------------------------------------------------- look

    def match(self, namespace: Namespace, key: Key, limit: int, start: Node | None = None) -> Match:
        """Longest prefix of the first ``limit`` tokens that is held; read-only.

        ``start``: a node known to be on the path.
        """
        root = self.tree.root(namespace.tree)
        if self.config.prefix_cache == "force_miss":
            return Match(root, 0)
        return self.tree.match(start or root, namespace.salt, key, limit)

    # ---------------------------------------------------------------- leases

    def acquire(self, namespace: Namespace, key: Key, limit: int, *, copy: bool = True) -> Lease:
        """Lock the longest held prefix of the first ``limit`` tokens. Allocates nothing.

        ``copy``: whether the match may end inside a block, which keeps the source of the copy locked for a step.
        """
        match = self.match(namespace, key, limit)
        if not copy:
            match = Match(match.node, match.length)
        self.stats.queries += 1
        self.stats.queried_tokens += limit
        self.stats.hit_tokens += match.total
        return self._lease(namespace, match)

    def fork(self, lease: Lease, key: Key, length: int, count: int) -> list[Lease]:
        """``count`` further leases on the first ``length`` tokens of a request whose KV of them is in place.

        The part-filled last block is given to the tree as a tail, from which every fork copies.
        """
        self.settle(lease, key, length)
        self._store_tail(lease, key, length)
        root = self.tree.root(lease.namespace.tree)
        return [
            self._lease(lease.namespace, self.tree.match(root, lease.namespace.salt, key, length).committed())
            for _ in range(count)
        ]

    def _lease(self, namespace: Namespace, match: Match) -> Lease:
        lease = Lease(namespace, self.tree.root(namespace.tree), [])
        self.leases.add(lease)
        self._move(lease, match)
        return lease

    def _move(self, lease: Lease, match: Match) -> None:
        """Let ``lease`` hold ``match``, which continues what it holds; its private blocks must have been dropped."""
        old = lease.node
        node = match.node
        if match.length < node.end:
            node = self.tree.split(node, match.length)
        self.tree.lock(node)
        self.tree.unlock(old)
        self.tree.count_hit(node)
        lease.node = node
        lease.table = [block for step in node.path() for block in step.blocks]
        tail = match.tail_node
        if tail is not None:
            # Before the old source is let go of: it may be the same.
            self.tree.lock(tail)
        self._unlock_copy(lease)
        if tail is not None:
            lease.copy = CopySource(tail, match.tail_block, match.tail_length)

    def _unlock_copy(self, lease: Lease) -> None:
        if lease.copy is not None:
            node, lease.copy = lease.copy.node, None
            self.tree.unlock(node)
            self._let_go(node)

    def _let_go(self, node: Node) -> None:
        """A lock was taken back, a copy source's or a hold's."""
        if not self.flights.give_up(node) and self.config.prefix_cache == "off":
            self._forget_path(node)

    def _replace_tail(self, tail: Node) -> None:
        """A longer sibling has the place of ``tail``."""
        self.flights.replace(tail)
        self.holds.follow()

    def may_rematch(self, lease: Lease, limit: int) -> bool:
        """Whether `rematch` looks at all: for less than a block it does not."""
        return self.config.prefix_cache != "force_miss" and lease.node.end + self.block_size <= limit

    def rematch(self, lease: Lease, key: Key, num_computed: int, limit: int) -> int:
        """Move a lease on to what others have put into the tree meanwhile; returns the new ``num_computed``.

        Nothing changes unless that is more than the request has computed itself.
        """
        if not self.may_rematch(lease, limit):
            return num_computed
        match = self.tree.match(lease.node, lease.namespace.salt, key, limit)
        if match.total <= num_computed:
            return num_computed
        self.stats.hit_tokens += match.total - num_computed
        self.flights.give_back(lease.table[lease.node.end // self.block_size :])
        self._move(lease, match)
        return match.total

    def retreat(self, lease: Lease, step: int) -> int:
        """Let a lease go of the nodes that ``step`` writes, and of all beyond them; returns the tokens that it still holds."""
        node = lease.node
        while node.pending == step:
            assert node.parent is not None, "the root is never pending"
            node = node.parent
        self.flights.give_back(lease.table[lease.node.end // self.block_size :])
        self._unlock_copy(lease)
        self.tree.lock(node)
        self.tree.unlock(lease.node)
        lease.node = node
        lease.table = lease.table[: node.end // self.block_size]
        return node.end

    def missing_blocks(self, lease: Lease, num_tokens: int) -> int:
        """Blocks to allocate before the table covers ``num_tokens``."""
        missing = self.blocks_for(num_tokens) - len(lease.table)
        return missing if missing > 0 else 0

    def extend(self, lease: Lease, num_tokens: int) -> None:
        """Make the table cover ``num_tokens``, evicting as needed.

        Raises `OutOfBlocks` and changes nothing if it cannot.
        """
        count = self.missing_blocks(lease, num_tokens)
        if count == 0:
            return
        if count > self.available_blocks:
            raise OutOfBlocks(count, self.available_blocks)
        if count > self.pool.num_free:
            self.evict(count - self.pool.num_free)
        lease.table += self.pool.allocate(count)

    def take_copy(self, lease: Lease, step: int) -> tuple[int, int] | None:
        """The (source, destination) block copy that ``step`` must make before its first layer, if one is due.

        The source stays locked until the step is collected. The table must have been extended.
        """
        copy = lease.copy
        if copy is None:
            return None
        lease.copy = None
        self.flights.copy(copy.node, step)
        self.stats.copied_tokens += copy.length
        return copy.block, lease.table[lease.node.end // self.block_size]

    def publish(self, lease: Lease, key: Key, num_tokens: int, step: int) -> None:
        """Put the blocks that ``step`` fills, up to ``num_tokens``, into the tree as pending.

        Where the tree already has these tokens from somebody else the blocks stay private until `settle`.
        """
        if num_tokens - lease.node.end >= self.block_size:
            self._insert(lease, key, num_tokens, step)

    def settle(self, lease: Lease, key: Key, num_computed: int) -> None:
        """After a step was collected: all full blocks of the request are the tree's.

        Duplicates are swapped for the tree's blocks.
        """
        full = num_computed // self.block_size * self.block_size
        while lease.node.end < full:
            start = lease.node.end
            match = self.tree.match(lease.node, lease.namespace.salt, key, full)
            if match.length == start:
                self._insert(lease, key, full, 0)
                continue
            if match.node.pending:
                return
            table = lease.table
            duplicates = table[start // self.block_size : match.length // self.block_size]
            self._move(lease, Match(match.node, match.length))
            lease.table += table[match.length // self.block_size :]
            self.flights.give_back(duplicates)
            self.stats.deduplicated_blocks += len(duplicates)

    def _insert(self, lease: Lease, key: Key, num_tokens: int, step: int) -> None:
        """Give the tree the full blocks that it has from nobody else; ``step`` writes them, 0 if they are written."""
        size = self.block_size
        start, end = lease.node.end, num_tokens // size * size
        if end <= start or self.tree.match(lease.node, lease.namespace.salt, key, end).length > start:
            return
        blocks = lease.table[start // size : end // size]
        node, replaced = self.tree.insert(lease.node, lease.namespace.salt, key_slice(key, start, end), blocks)
        self.pool.give_to_tree(blocks)
        lease.node = node
        if step:
            self.flights.write(node, step)
        else:
            self.tree.join(node)
        if replaced is not None:
            self._replace_tail(replaced)

    def release(self, lease: Lease, key: Key, num_computed: int, *, keep_tail: bool = True) -> None:
        """End a lease whose first ``num_computed`` tokens are in place.

        They stay in the tree, everything else is given back.
        """
        self.settle(lease, key, num_computed)
        if keep_tail and self.config.prefix_cache != "off":
            self._store_tail(lease, key, num_computed)
        self.discard(lease)

    def discard(self, lease: Lease) -> None:
        """End a lease without adding anything to the tree."""
        self.leases.remove(lease)
        self.flights.give_back(lease.table[lease.node.end // self.block_size :])
        self._unlock_copy(lease)
        self.tree.unlock(lease.node)
        if self.config.prefix_cache == "off":
            self._forget_path(lease.node)

    def disown(self, lease: Lease) -> None:
        """End a lease whose KV cannot be trusted: what no other lease needs and nothing extends leaves the tree with it.

        Holds on that end: they vouch for nothing.
        """
        self.discard(lease)
        self._forget_path(lease.node, distrust=True)

    def _forget_path(self, node: Node, *, distrust: bool = False) -> None:
        step: Node | None = node
        while step is not None and not step.pending:
            if distrust and step.only_held and not step.children:
                self.holds.distrust(step)
            if not step.evictable:
                return
            parent = step.parent
            self.flights.give_back(self.tree.remove(step).blocks)
            step = parent

    def _store_tail(self, lease: Lease, key: Key, num_computed: int) -> None:
        """Give the part-filled last block to the tree as a tail, unless a sibling holds its tokens already."""
        start = lease.node.end
        if not start < num_computed < start + self.block_size or lease.copy is not None:
            return
        block = lease.table[start // self.block_size]
        node, replaced = self.tree.insert_tail(
            lease.node, lease.namespace.salt, key_slice(key, start, num_computed), block
        )
        if node is None:
            return
        self.pool.give_to_tree([block])
        at = start // self.block_size
        lease.table = [*lease.table[:at], *lease.table[at + 1 :]]
        if replaced is not None:
            self._replace_tail(replaced)

    # ---------------------------------------------------------------- steps

    def begin(self, step: int) -> None:
        """``step`` is planned and will read and write blocks until it is collected (or rolled back)."""
        self.flights.begin(step)
        self._step = step

    def collect(self, step: int) -> None:
        """The result of ``step`` is here: its nodes are committed, its copies made, blocks retired for it free."""
        self.flights.collect(step)
        self._follow_replaced()

    def roll_back(self, step: int) -> None:
        """``step`` failed and its requests' leases were discarded: its nodes leave the tree."""
        locked = self.pool.total - self.available_blocks
        for eviction in self.flights.roll_back(step):
            self._remember(eviction, failed=True, wanted=0, locked=locked)
        self._follow_replaced()

    def _follow_replaced(self) -> None:
        if any(tail.holds for tail in self.flights.replaced()):
            self.holds.follow()

    # ---------------------------------------------------------------- eviction

    def evict(self, count: int) -> int:
        """Evict at least ``count`` blocks if that many are unlocked; returns how many went."""
        evicted, locked = 0, self.pool.total - self.available_blocks
        for eviction in self.tree.evict(count):
            self._remember(eviction, failed=False, wanted=count, locked=locked)
            # No step in flight reads an unlocked block: every row's lease locks its path until the step is collected.
            self.pool.free(eviction.blocks)
            evicted += len(eviction.blocks)
            self.stats.evictions += 1
        self.stats.evicted_blocks += evicted
        return evicted

    def flush(self, salt: bytes | None = None) -> int:
        """Drop everything that no lease holds and forget all ghosts, or those of ``salt`` alone; returns the number of blocks.

        Holds on it end.
        """
        self.holds.release_namespace(salt)
        if salt is None:
            blocks = self.evict(self.tree.evictable_blocks)
            self.ghosts.clear()
            return blocks
        blocks = 0
        for eviction in self.tree.remove_salt(salt):
            self.pool.free(eviction.blocks)
            blocks += len(eviction.blocks)
        self.ghosts.clear(salt)
        return blocks

    def hold(self, hold_id: str, namespace: Namespace, key: Key, expires: float) -> int:
        """Hold what is in place of the tokens ``key`` until ``expires``, as far as the quota goes; returns the tokens held.

        Nothing is where nothing is shared.
        """
        if self.config.prefix_cache != "on":
            return 0
        return self.holds.take(hold_id, namespace, bytes(key), expires)

    def mark_time(self, now: float) -> None:
        """It is ``now`` (seconds of a clock that never goes back); called once a step."""
        self.access_times.sample(self.tree.clock, now)

    def _remember(self, eviction: Eviction, *, failed: bool, wanted: int, locked: int) -> None:
        ghost = Ghost(
            step=self._step,
            failed=failed,
            blocks_wanted=wanted,
            blocks_locked=locked,
            blocks_total=self.pool.total,
        )
        self.ghosts.record(eviction.tree, eviction.salt, eviction.path, ghost)

    # ---------------------------------------------------------------- account

    def explain(
        self, namespace: Namespace, key: Key, *, limit: int | None = None, see_all: bool = False
    ) -> Explanation:
        """Why a prompt with these tokens would hit as much as it would, and not more.

        ``limit``: tokens that may be served from the cache, where the request itself restricts them (prompt logprobs).
        ``see_all``: the operator's view, which may tell that another namespace holds more.
        """
        total = key_length(key)
        allowed = max(0, total - 1 if limit is None else min(limit, total - 1))
        if self.config.prefix_cache != "on":
            return Explanation("disabled", 0, 0, total, f"prefix_cache is {self.config.prefix_cache}")
        explanation = explain_miss(self.tree, self.ghosts, namespace, key, allowed, see_all=see_all)
        held = held_tokens(self.tree.match(self.tree.root(namespace.tree), namespace.salt, key, allowed))
        return msgspec.structs.replace(explanation, held_tokens=held)

    def check(self) -> None:
        """Recount everything from scratch; raises `CacheInconsistent` listing every difference from the books."""
        facts = recount(self.tree, self.pool, self.leases, self.flights, self.holds)
        if facts:
            raise CacheInconsistent(facts)

    def check_and_repair(self) -> bool:
        """`check` for an idle engine (no leases): a violation is logged and repaired by starting afresh.

        True if all was well.
        """
        try:
            self.check()
        except CacheInconsistent as error:
            logger.error("cache books were wrong, the cache was emptied: %s", error)
            self.stats.failed_checks.append(str(error))
            self.stats.repairs += 1
            observer, counted = self.tree.observer, self.holds.stats
            self._open_books(BlockPool(self.pool.total))
            self.tree.observer, self.holds.stats = observer, counted
            return False
        return True
