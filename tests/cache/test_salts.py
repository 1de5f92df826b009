"""One namespace at a time: what is seen of it, and what goes when it is flushed."""

from __future__ import annotations

from radixserve.cache.ghosts import Ghost, GhostLog
from radixserve.cache.token_key import encode_tokens
from tests.cache.bare_tree import NAME, Tree
from tests.scheduler.machine import Machine

A, B = b"a", b"b"


def test_children_that_a_salt_sees() -> None:
    tree = Tree()
    public = tree.put(tree.top, [1, 1, 1, 1])
    mine = [tree.put(tree.top, [token] * 4, A) for token in (5, 3, 4)]
    longer = tree.put(tree.top, [3] * 4, A + b"\0")
    below = tree.put(public, [2] * 4, A)
    deeper = tree.put(mine[0], [9] * 4, A)
    in_order = [mine[1], mine[2], mine[0]]
    assert tree.visible_children(tree.top, A, 10) == ([public, *in_order], 0)
    assert tree.visible_children(tree.top, A, 2) == ([public, in_order[0]], 2)
    assert tree.visible_children(tree.top, A, 0) == ([], 4)
    assert tree.visible_children(tree.top, B, 10) == ([public], 0)
    assert tree.visible_children(tree.top, b"", 10) == ([public], 0)
    assert tree.visible_children(tree.top, None, 10) == ([public, *in_order, longer], 0)
    assert tree.visible_children(tree.top, None, 4) == ([public, *in_order], 1)
    assert tree.visible_children(public, A, 10) == ([below], 0)
    assert tree.visible_children(public, B, 10) == ([], 0)
    assert tree.visible_children(mine[0], A, 10) == ([deeper], 0)


def test_flush_of_one_namespace() -> None:
    machine = Machine(block_size=4)
    common = list(range(8))
    machine.add("public", [*common, 9, 9, 9], 2)
    machine.run()
    machine.add("a", [*common, 20, 21, 22, 23, 24], 2, salt=A)
    machine.add("b", [*common, 30, 31, 32, 33, 34], 2, salt=B)
    machine.run()
    held = machine.cache.pool.num_tree
    of_a = sum(len(node.blocks) for node in machine.cache.tree.nodes() if node.salt == A)
    assert of_a > 0
    assert machine.cache.flush(A) == of_a
    assert machine.cache.pool.num_tree == held - of_a
    assert {node.salt for node in machine.cache.tree.nodes()} == {b"", B}
    machine.cache.check()
    assert machine.cache.flush(A) == 0
    assert machine.cache.flush(b"") > 0, "what hangs below stays: nobody else's leaf is public"
    machine.cache.check()
    assert {node.salt for node in machine.cache.tree.nodes()} == {b"", B}


def test_flush_leaves_what_is_used() -> None:
    machine = Machine(block_size=4)
    machine.add("a", list(range(20)), 8, salt=A)
    machine.add("done", list(range(30, 50)), 1, salt=A)
    while machine.scheduler.requests.keys() == {"a", "done"}:
        machine.step()
    running = machine.requests["a"].lease
    assert running is not None
    assert machine.cache.flush(A) > 0
    machine.cache.check()
    assert all(node.lock for node in machine.cache.tree.nodes())
    machine.run()
    assert len(machine.tokens("a")) == 8


def test_ghosts_of_one_namespace_are_forgotten() -> None:
    log = GhostLog(1000)
    ghost = Ghost(step=1, failed=False, blocks_wanted=1, blocks_locked=0, blocks_total=4)
    key = encode_tokens([1, 2, 3])
    for salt in (b"", A, B):
        log.record(NAME, salt, key, ghost)
    log.clear(A)
    assert len(log) == 2 and log.num_tokens == 6
    assert set(log._ghosts) == {(NAME, b"", key), (NAME, B, key)}
