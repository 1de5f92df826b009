"""The books of the cache, counted again from scratch: the obvious, slow version of every number the cache maintains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from radixserve.cache.block_pool import BlockPool, BlockState
from radixserve.cache.flight_book import FlightBook
from radixserve.cache.holds import HoldBook
from radixserve.cache.node import Node
from radixserve.cache.radix_tree import RadixTree
from radixserve.cache.token_key import key_slice

if TYPE_CHECKING:
    from radixserve.cache.lease import Lease


def recount(
    tree: RadixTree,
    pool: BlockPool,
    leases: Iterable[Lease],
    flights: FlightBook,
    holds: HoldBook,
) -> list[str]:
    """Every difference between the books and a recount, in words; empty if there is none."""
    leases = list(leases)
    replaced = flights.replaced()
    facts = _check_shape(tree)
    facts += _check_locks(tree, leases, flights, holds)
    facts += _check_blocks(tree, pool, leases, replaced)
    facts += _check_sums(tree, replaced)
    facts += [
        f"{_name(node)} is pending on step {node.pending}, which does not write it"
        for node in tree.nodes()
        if node.pending and node not in flights.pending(node.pending)
    ]
    return facts


def _check_shape(tree: RadixTree) -> list[str]:
    facts = []
    size = tree.block_size
    for node in tree.nodes():
        name = _name(node)
        parent = node.parent
        assert parent is not None, "roots are not among the nodes"
        if not node.alive:
            facts.append(f"{name} is in the tree but marked dead")
        if node.start != parent.end:
            facts.append(f"{name} starts at {node.start}, its parent ends at {parent.end}")
        if parent.salt and node.salt != parent.salt:
            facts.append(f"{name} has another salt than its parent")
        if not node.data or len(node.blocks) != -(-node.length // size):
            facts.append(f"{name} has {node.length} tokens in {len(node.blocks)} blocks of {size}")
        if node.length % size and (node.children or node.length > size):
            facts.append(f"{name} is a tail of {node.length} tokens with {len(node.children or ())} children")
        previous: Node | None = None
        for child_key, child in (node.children or {}).items():
            if child_key != (child.salt, key_slice(child.data, 0, size)):
                facts.append(f"{_name(child)} is filed under another key")
            if child.parent is not node:
                facts.append(f"{_name(child)} has another parent than the node it hangs from")
            if previous is not None and previous.salt == child.salt and child.data.startswith(previous.data):
                facts.append(f"{_name(child)} extends its sibling {_name(previous)}")
            previous = child
    return facts


def _check_locks(tree: RadixTree, leases: list[Lease], flights: FlightBook, holds: HoldBook) -> list[str]:
    counted: Counter[int] = Counter()
    held: Counter[int] = Counter()
    for node in holds.nodes():
        held.update(id(step) for step in node.path())
    holders = [lease.node for lease in leases]
    holders += [lease.copy.node for lease in leases if lease.copy is not None]
    holders += flights.sources()
    holders += holds.nodes()
    for holder in holders:
        for node in holder.path():
            counted[id(node)] += 1
    nodes = [*tree.nodes(), *flights.replaced()]
    facts = [
        f"{_name(node)} has lock {node.lock}, {counted[id(node)]} holders are counted"
        for node in nodes
        if node.lock != counted[id(node)]
    ]
    facts += [
        f"{_name(node)} has {node.holds} holds, {held[id(node)]} are counted"
        for node in nodes
        if node.holds != held[id(node)]
    ]
    return facts


def _check_blocks(tree: RadixTree, pool: BlockPool, leases: list[Lease], replaced: list[Node]) -> list[str]:
    facts = []
    owners: dict[int, list[str]] = {}
    expected: dict[int, BlockState] = {}

    def own(block: int, owner: str, state: BlockState) -> None:
        owners.setdefault(block, []).append(owner)
        expected[block] = state

    for node in [*tree.nodes(), *replaced]:
        for block in node.blocks:
            own(block, _name(node), BlockState.TREE)
    for lease in leases:
        path = [block for node in lease.node.path() for block in node.blocks]
        if lease.table[: len(path)] != path:
            facts.append(f"a block table begins {lease.table[: len(path)]}, its path holds {path}")
        for block in lease.table[len(path) :]:
            own(block, "a lease", BlockState.PRIVATE)
    for block in pool.retired_blocks():
        own(block, "a step in flight", BlockState.RETIRED)
    for block, names in owners.items():
        if len(names) > 1:
            facts.append(f"block {block} is owned by {' and '.join(names)}")
    counts: Counter[BlockState] = Counter()
    for block in range(pool.total):
        state = expected.get(block, BlockState.FREE)
        counts[state] += 1
        if pool.state(block) is not state:
            facts.append(f"block {block} is {pool.state(block).name} in the pool, {state.name} by count")
    listed = Counter(pool.free_blocks())
    facts += [
        f"block {block} is {listed[block]} times in the free list, {int(block not in expected)} times by count"
        for block in range(pool.total)
        if listed[block] != (block not in expected)
    ]
    booked = {
        BlockState.FREE: pool.num_free,
        BlockState.PRIVATE: pool.num_private,
        BlockState.TREE: pool.num_tree,
        BlockState.RETIRED: pool.num_retired,
    }
    facts += [
        f"{booked[state]} blocks are booked {state.name}, {counts[state]} are counted"
        for state in BlockState
        if booked[state] != counts[state]
    ]
    return facts


def _check_sums(tree: RadixTree, replaced: list[Node]) -> list[str]:
    facts = []
    nodes = list(tree.nodes())
    held: Counter[bytes] = Counter()
    for node in [*nodes, *replaced]:
        if node.holds:
            held[node.salt] += len(node.blocks)
    if held != tree.held_blocks:
        facts.append(f"held_blocks is {tree.held_blocks}, {dict(held)} by count")
    only_held = sum(len(node.blocks) for node in [*nodes, *replaced] if node.only_held)
    sums = {
        "num_nodes": (tree.num_nodes, len(nodes)),
        "num_blocks": (tree.num_blocks, sum(len(node.blocks) for node in nodes)),
        "only_held_blocks": (tree.only_held_blocks, only_held),
        "evictable_blocks": (tree.evictable_blocks, sum(len(node.blocks) for node in nodes if node.lock == 0)),
    }
    facts += [
        f"{name} is {booked}, {counted} by count" for name, (booked, counted) in sums.items() if booked != counted
    ]
    facts += [
        f"{_name(node)} can be evicted but is not queued for it"
        for node in nodes
        if node.evictable and node.heap_key is None
    ]
    return facts


def _name(node: Node) -> str:
    return f"the node of tokens {node.start}-{node.end}"
