"""The tree alone: locks, and the order in which it shrinks. Block ids are just numbers here."""

from __future__ import annotations

import pytest

from radixserve.cache.eviction import LeastFrequentlyUsed
from radixserve.cache.node import Node
from radixserve.cache.radix_tree import RadixTree
from radixserve.cache.token_key import decode_tokens, encode_tokens
from tests.cache.bare_tree import NAME, Tree, Watcher

A, B, C, D = [1, 1, 1, 1], [2, 2, 2, 2], [3, 3, 3, 3], [4, 4, 4, 4]

# ---------------------------------------------------------------- lock and evict


def _bushy() -> tuple[Tree, list[Node]]:
    """Three levels of two children each, with a tail at the end."""
    tree = Tree()
    nodes: list[Node] = []
    level = [tree.top]
    for _ in range(3):
        level = [tree.put(parent, tokens) for parent in level for tokens in (A, B + B)]
        nodes += level
    for parent in level:
        tail, _ = tree.put_tail(parent, [7])
        assert tail is not None
        nodes.append(tail)
    return tree, nodes


@pytest.mark.parametrize("index", range(22))
def test_lock_one_node_and_evict_everything_leaves_exactly_its_path(index: int) -> None:
    tree, nodes = _bushy()
    kept = nodes[index]
    tree.lock(kept)
    held = sum(len(node.blocks) for node in kept.path())
    total = tree.num_blocks
    assert tree.evictable_blocks == total - held
    evicted = tree.evict(total)
    assert sum(len(item.blocks) for item in evicted) == total - held
    assert set(tree.nodes()) == set(kept.path())
    assert all(node.lock == 1 for node in kept.path())
    tree.unlock(kept)
    assert tree.evictable_blocks == held
    tree.evict(held)
    assert (tree.num_nodes, tree.num_blocks, tree.evictable_blocks) == (0, 0, 0)


def test_an_unlock_without_a_lock_is_caught() -> None:
    tree, nodes = _bushy()
    with pytest.raises(AssertionError, match="unlock without lock"):
        tree.unlock(nodes[0])


@pytest.mark.parametrize("count", range(1, 6))
def test_a_long_leaf_loses_its_end_block_by_block(count: int) -> None:
    tree = Tree()
    tree.observer = watcher = Watcher()
    node = tree.put(tree.top, A + B + C + D)
    blocks = list(node.blocks)
    (eviction,) = tree.evict(count)
    taken = min(count, 4)
    assert eviction.blocks == blocks[4 - taken :]
    assert (eviction.kept, decode_tokens(eviction.path).tolist()) == (16 - 4 * taken, A + B + C + D)
    assert (eviction.tree, eviction.salt) == (NAME, b"")
    assert tree.num_blocks == tree.evictable_blocks == 4 - taken
    assert tree.find(A + B + C + D) == (16 - 4 * taken, 0)
    assert watcher.news[-1] == ("trimmed", 16 - 4 * taken, 4 * taken)


def test_eviction_takes_as_many_as_asked_across_leaves_and_no_more() -> None:
    tree = Tree()
    old = tree.put(tree.top, A + A)
    young = tree.put(tree.top, B + B + B)
    blocks = [*old.blocks[::1], young.blocks[2]]
    assert [block for item in tree.evict(3) for block in item.blocks] == blocks
    assert tree.paths() == {tuple(B + B)}
    assert tree.evict(0) == []
    assert sum(len(item.blocks) for item in tree.evict(100)) == 2
    assert tree.evict(1) == []


def test_the_least_recently_used_leaf_goes_first_and_then_its_parent_in_turn() -> None:
    tree = Tree()
    trunk = tree.put(tree.top, A)
    first, second = tree.put(trunk, B), tree.put(trunk, C)
    third = tree.put(tree.top, D)
    tree.lock(first)
    tree.unlock(first)
    order = [tree.evict(1)[0].path for _ in range(4)]
    assert order == [encode_tokens(path) for path in (A + C, D, A + B, A)]
    assert not (first.alive or second.alive or third.alive or trunk.alive)


def test_lfu_takes_the_leaf_that_was_leased_least() -> None:
    tree = RadixTree(4, LeastFrequentlyUsed())
    leaves = []
    for index, tokens in enumerate((A, B, C)):
        node, _ = tree.insert(tree.root(NAME), b"", encode_tokens(tokens), [index])
        leaves.append(node)
    for node, hits in zip(leaves, (2, 0, 1), strict=True):
        for _ in range(hits):
            tree.count_hit(node)
    for node in leaves:
        tree.unlock(node)
    assert [tree.evict(1)[0].blocks for _ in range(3)] == [[1], [2], [0]]


def test_a_node_that_a_step_in_flight_writes_is_never_evicted() -> None:
    tree = Tree()
    tree.put(tree.top, A, pending=1)
    with pytest.raises(AssertionError, match="until the step that writes it is collected"):
        tree.evict(1)


def test_only_an_unlocked_leaf_is_removed() -> None:
    tree, nodes = _bushy()
    with pytest.raises(AssertionError, match="only an unlocked leaf"):
        tree.remove(nodes[0])
    tree.lock(nodes[-1])
    with pytest.raises(AssertionError, match="only an unlocked leaf"):
        tree.remove(nodes[-1])
    assert tree.remove(nodes[-2]).blocks == nodes[-2].blocks


# ---------------------------------------------------------------- storage


def test_nothing_of_the_callers_is_kept_alive_in_the_tree() -> None:
    tree = Tree()
    buffer = bytearray(encode_tokens(A + B))
    blocks = [3, 4]
    node, _ = tree.insert(tree.top, b"", bytes(buffer), blocks)
    blocks.append(99)
    buffer[:] = bytes(len(buffer))
    assert node.blocks == [3, 4]
    assert tree.find(A + B) == (8, 0)


def test_a_second_child_with_the_same_first_block_is_refused() -> None:
    tree = Tree()
    tree.put(tree.top, A + B)
    with pytest.raises(AssertionError, match="a child with this first block exists"):
        tree.insert(tree.top, b"", encode_tokens(A + C), [8, 9])
