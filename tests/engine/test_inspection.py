"""The view of the tree: what it shows to whom, and its bounds."""

from __future__ import annotations

import msgspec
import pytest

from radixserve.cache.namespace import Namespace
from radixserve.cache.token_key import encode_tokens
from radixserve.engine.client import CacheNode, CacheView
from radixserve.engine.inspection import MAX_DEPTH, view_cache
from tests.scheduler.machine import Machine

A, B = b"a", b"b"
PUBLIC = list(range(1, 9))


def walk(nodes: list[CacheNode]) -> list[CacheNode]:
    return [found for node in nodes for found in (node, *walk(node.children))]


@pytest.fixture
def machine() -> Machine:
    machine = Machine(block_size=4)
    machine.add("public", PUBLIC, 1)
    machine.run()
    for name, salt, first in (("a1", A, 20), ("a2", A, 21), ("b", B, 30)):
        machine.add(name, [*PUBLIC, *[first] * 6], 1, salt=salt)
        machine.run()
    return machine


def view(machine: Machine, salt: bytes | None, max_nodes: int = 100, max_tokens: int = 64) -> CacheView:
    return view_cache(machine.cache, salt, max_nodes=max_nodes, max_tokens=max_tokens)


def test_a_tenant_sees_its_own_below_the_public(machine: Machine) -> None:
    for salt, firsts in ((A, {20, 21}), (B, {30}), (b"", set())):
        seen = view(machine, salt)
        shown = walk(seen.nodes)
        assert {node.token_ids[0] for node in shown if node.token_ids[0] >= 20} == firsts
        assert seen.nodes[0].token_ids[:8] == PUBLIC
        assert all(node.salt is None for node in shown)
        assert seen.left_out == 0 and seen.num_nodes == len(shown)


def test_the_operator_sees_all_with_salts(machine: Machine) -> None:
    seen = view(machine, None)
    tree = machine.cache.tree
    shown = walk(seen.nodes)
    assert (
        (seen.num_nodes, seen.num_blocks)
        == (tree.num_nodes, tree.num_blocks)
        == (len(shown), machine.cache.pool.num_tree)
    )
    assert seen.num_tokens == sum(node.length for node in tree.nodes()) == sum(node.num_tokens for node in shown)
    assert {node.salt for node in shown} == {b"", A, B}
    assert any(node.tail for node in shown) and not all(node.tail for node in shown)
    assert all(node.tail == (node.num_tokens % 4 != 0) for node in shown)
    assert view(machine, None, max_tokens=2).nodes[0].token_ids == PUBLIC[:2]


def test_levels_are_cut_from_below(machine: Machine) -> None:
    whole = view(machine, None)
    for most in range(whole.num_nodes + 1):
        seen = view(machine, None, max_nodes=most)
        assert seen.num_nodes == len(walk(seen.nodes)) == most
        assert (seen.left_out == 0) == (most == whole.num_nodes)
    assert view(machine, None, max_nodes=1).nodes[0].token_ids[:8] == PUBLIC


def test_locks_and_pending_nodes() -> None:
    machine = Machine(block_size=4, max_batch_tokens=8, max_running=8)
    machine.add("a", list(range(1, 20)), 4, salt=A)
    plan = machine.scheduler.schedule()
    assert plan is not None
    [node] = view(machine, A).nodes
    assert node.pending and node.locks == 1 and node.num_tokens == 8
    machine.scheduler.update(plan, machine.runner.execute(plan))
    [node] = view(machine, A).nodes
    assert not node.pending


def test_idle_seconds(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.cache.mark_time(100.0)
    machine.add("a3", [*PUBLIC, *[20] * 6], 1, salt=A)
    machine.run()
    machine.cache.mark_time(107.0)
    monkeypatch.setattr("radixserve.engine.inspection.time.monotonic", lambda: 110.0)
    idle = {node.token_ids[0]: node.idle_s for node in walk(view(machine, None).nodes)}
    assert (idle[1], idle[20], idle[21], idle[30]) == (3.0, 3.0, 10.0, 10.0)


def test_a_deep_tree_can_still_be_sent() -> None:
    machine = Machine(block_size=4)
    cache = machine.cache
    depth = MAX_DEPTH + 50
    namespace = Namespace("m", "", A)
    parent = cache.tree.root(namespace.tree)
    for level in range(depth):
        # A branch at every level keeps the chain from being joined.
        for token in (1, 2):
            blocks = cache.pool.allocate(1)
            cache.tree.lock(parent)
            node, _ = cache.tree.insert(parent, A, encode_tokens([token] * 4), blocks)
            cache.pool.give_to_tree(blocks)
            cache.tree.unlock(node)
        parent = node
        assert parent.start == level * 4
    cache.check()
    seen = view(machine, A, max_nodes=10_000)
    assert seen.num_nodes == 2 * MAX_DEPTH and seen.left_out == 2
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(seen), type=CacheView) == seen
