"""The tree alone: what a match finds, and how the tree grows. Block ids are just numbers here."""

from __future__ import annotations

import pytest

from radixserve.cache.token_key import encode_tokens
from tests.cache.bare_tree import NAME, Tree, Watcher, path_of

A, B, C, D = [1, 1, 1, 1], [2, 2, 2, 2], [3, 3, 3, 3], [4, 4, 4, 4]

# ---------------------------------------------------------------- match


@pytest.mark.parametrize("length", range(13))
def test_a_match_ends_at_the_exact_token_for_every_length(length: int) -> None:
    tree = Tree()
    tree.put(tree.top, A + B)
    tree.put_tail(next(iter(tree.nodes())), [3, 3, 3])
    sequence = [*A, *B, 3, 3, 3, 9]
    assert sum(tree.find(sequence[:length])) == min(length, 11)
    assert sum(tree.find(sequence, limit=length)) == min(length, 11)
    assert tree.find(sequence[:length])[0] % 4 == 0
    assert tree.find([*sequence[:length], 7, 7, 7, 7])[0] == length // 4 * 4 if length < 12 else 8


def test_inside_a_block_the_child_that_shares_most_is_found_among_many() -> None:
    tree = Tree()
    for tail in ([5, 1, 1, 1], [5, 6, 1, 1], [5, 6, 7, 1], [5, 6, 9, 9], [5, 9, 9, 9], [8, 8, 8, 8]):
        tree.put(tree.top, tail)
    assert tree.find([5, 6, 7, 8]) == (0, 3)
    assert tree.find([5, 6, 8, 8]) == (0, 2)
    assert tree.find([5, 0, 0, 0]) == (0, 1)
    assert tree.find([4, 0, 0, 0]) == (0, 0)
    assert tree.find([9, 0, 0, 0]) == (0, 0)
    match = tree.match(tree.top, b"", encode_tokens([5, 6, 7, 8]), 4)
    assert match.tail_node is not None and path_of(match.tail_node) == (5, 6, 7, 1)
    assert match.tail_block == match.tail_node.blocks[0] and match.total == 3


def test_a_match_inside_an_edge_names_the_block_of_that_edge() -> None:
    tree = Tree()
    node = tree.put(tree.top, A + B + C)
    match = tree.match(tree.top, b"", encode_tokens([*A, 2, 2, 9, 9]), 8)
    assert (match.node, match.length) == (node, 4)
    assert (match.tail_node, match.tail_block, match.tail_length) == (node, node.blocks[1], 2)


def test_a_walk_may_start_at_a_node_that_is_known_to_match() -> None:
    tree = Tree()
    upper = tree.put(tree.top, A)
    lower = tree.put(upper, B)
    match = tree.match(upper, b"", encode_tokens(A + B + C), 12)
    assert (match.node, match.length) == (lower, 8)


def test_pending_nodes_match_by_whole_blocks_and_are_never_a_copy_source() -> None:
    tree = Tree()
    tree.put(tree.top, [1, 1, 1, 9])
    leader = tree.put(tree.top, A + B, pending=1, locked=True)
    assert tree.find(A + B) == (8, 0)
    assert tree.find([*A, 2, 2, 9, 9]) == (4, 0)
    assert tree.find([1, 1, 1, 5]) == (0, 3), "the committed neighbour serves, not the nearer pending one"
    match = tree.match(tree.top, b"", encode_tokens([1, 1, 1, 5]), 4)
    assert match.tail_node is not leader
    leader.pending = 0
    assert tree.find([*A, 2, 2, 9, 9]) == (4, 2)


def test_match_takes_a_growing_buffer_as_key() -> None:
    tree = Tree()
    tree.put(tree.top, A + B)
    match = tree.match(tree.top, b"", bytearray(encode_tokens(A + B)), 8)
    assert match.length == 8


# ---------------------------------------------------------------- salts


def test_salted_nodes_are_seen_by_their_salt_only_and_public_ones_by_all() -> None:
    tree = Tree()
    public = tree.put(tree.top, A)
    tree.put(public, B, b"x")
    assert tree.find(A + B, salt=b"x") == (8, 0)
    assert tree.find(A + B, salt=b"y") == (4, 0)
    assert tree.find(A + B) == (4, 0)
    assert tree.find([*A, 2, 2, 9, 9], salt=b"y") == (4, 0), "a copy would tell as much as a shared block"
    assert tree.find([*A, 2, 2, 9, 9], salt=b"x") == (4, 2)


def test_of_a_salted_and_a_public_continuation_the_longer_is_taken() -> None:
    tree = Tree()
    short = tree.put(tree.top, A)
    salted = tree.put(tree.top, A + B, b"x")
    assert tree.match(tree.top, b"x", encode_tokens(A + B), 8).node is salted
    assert tree.match(tree.top, b"x", encode_tokens(A + C), 8).node is short, "the public one if they tie"
    tree.put(short, [*B, 5, 5, 5, 5])
    assert tree.match(tree.top, b"x", encode_tokens([*A, *B, 5, 5, 5, 5]), 12).length == 12


def test_a_tenants_branches_beside_a_long_public_path_are_all_looked_at() -> None:
    tree = Tree()
    public = [tree.top]
    for _ in range(1500):
        tree.put(public[-1], [*A, 9, 9, 9, 9], b"x")
        public.append(tree.put(public[-1], A))
    assert tree.find(A * 2000, salt=b"x") == (4 * 1500, 0)
    assert tree.find([*A * 1200, 9, 9, 9, 9], salt=b"x") == (4 * 1201, 0)
    assert tree.find([*A * 1200, 9, 9, 9, 9], salt=b"y") == (4 * 1200, 0)


def test_models_and_adapters_have_trees_of_their_own() -> None:
    tree = Tree()
    tree.put(tree.top, A)
    for name in (("other", ""), ("m", "adapter")):
        assert tree.match(tree.root(name), b"", encode_tokens(A), 4).total == 0
    assert set(tree.roots()) == {NAME, ("other", ""), ("m", "adapter")}
    tree.put(tree.root(("m", "adapter")), B)
    evicted = tree.evict(9)
    assert [(item.tree, len(item.blocks)) for item in evicted] == [(NAME, 1), (("m", "adapter"), 1)]


# ---------------------------------------------------------------- split


def test_a_split_keeps_locks_blocks_counts_and_the_lower_identity() -> None:
    tree = Tree()
    tree.observer = watcher = Watcher()
    node = tree.put(tree.top, A + B + C, locked=True)
    tree.count_hit(node)
    blocks, order = list(node.blocks), node.last_access
    upper = tree.split(node, 4)
    assert (path_of(upper), path_of(node)) == (tuple(A), tuple(A + B + C))
    assert (upper.blocks, node.blocks) == (blocks[:1], blocks[1:])
    assert (upper.lock, node.lock) == (1, 1)
    assert (upper.hits, upper.last_access) == (node.hits, order)
    assert (tree.num_nodes, tree.num_blocks, tree.evictable_blocks) == (2, 3, 0)
    tree.unlock(node)
    assert tree.evictable_blocks == 3
    assert watcher.news == [("added", 0, 12), ("split", 4, 12)]
    assert [item.blocks for item in tree.evict(9)] == [blocks[1:], blocks[:1]]
    assert watcher.news[2:] == [("trimmed", 4, 8), ("trimmed", 0, 4)]


def test_a_split_of_an_unlocked_leaf_leaves_it_evictable() -> None:
    tree = Tree()
    node = tree.put(tree.top, A + B)
    upper = tree.split(node, 4)
    assert node.evictable and not upper.evictable
    assert tree.evictable_blocks == 2
    assert tree.evict(1)[0].blocks == node.blocks


def test_a_split_of_a_pending_node_leaves_both_parts_pending() -> None:
    tree = Tree()
    node = tree.put(tree.top, A + B, pending=3, locked=True)
    upper = tree.split(node, 4)
    assert upper.pending == node.pending == 3


@pytest.mark.parametrize("length", [0, 2, 8])
def test_a_split_elsewhere_than_at_a_block_boundary_inside_is_refused(length: int) -> None:
    tree = Tree()
    node = tree.put(tree.top, A + B)
    with pytest.raises(AssertionError, match="a split is inside an edge"):
        tree.split(node, length)


# ---------------------------------------------------------------- tails


def test_a_longer_tail_replaces_a_shorter_and_a_shorter_one_is_not_stored() -> None:
    tree = Tree()
    first, _ = tree.put_tail(tree.top, [1, 2])
    second, replaced = tree.put_tail(tree.top, [1, 2, 3])
    assert replaced is first and first is not None and not first.alive
    assert tree.put_tail(tree.top, [1]) == (None, None)
    assert tree.put_tail(tree.top, [1, 2]) == (None, None)
    assert tree.put_tail(tree.top, [1, 2, 3]) == (None, None)
    assert tree.paths() == {(1, 2, 3)}
    assert tree.num_blocks == tree.evictable_blocks == 1
    assert second is not None and tree.evict(9)[0].blocks == second.blocks


def test_tails_that_part_stand_side_by_side() -> None:
    tree = Tree()
    for tail in ([1, 2, 3], [1, 3], [2], [1, 2, 4]):
        assert tree.put_tail(tree.top, tail)[1] is None
    assert tree.put_tail(tree.top, [1, 2]) == (None, None)
    assert tree.paths() == {(1, 2, 3), (1, 3), (2,), (1, 2, 4)}


def test_a_full_block_replaces_the_tail_that_it_continues_and_no_other() -> None:
    tree = Tree()
    prefix, _ = tree.put_tail(tree.top, [1, 1])
    tree.put_tail(tree.top, [1, 2])
    salted, _ = tree.put_tail(tree.top, [1, 1], b"x")
    tree.lock(tree.top)
    node, replaced = tree.insert(tree.top, b"", encode_tokens(A), [50])
    assert replaced is prefix and salted is not None and salted.alive
    assert node.lock == 1
    assert tree.paths() == {(1, 2), (1, 1), (1, 1, 1, 1)}
    assert tree.put_tail(tree.top, [1, 1, 1]) == (None, None), "a full sibling holds these tokens already"


def test_a_replaced_tail_keeps_its_locks_until_they_are_taken_back() -> None:
    tree = Tree()
    parent = tree.put(tree.top, A)
    tail, _ = tree.put_tail(parent, [2, 2])
    assert tail is not None
    tree.lock(tail)
    assert tree.put_tail(parent, [2, 2, 2])[1] is tail
    assert (tail.alive, tail.lock, parent.lock) == (False, 1, 1)
    assert tree.evictable_blocks == 1, "the new tail; the parent is held by the old one"
    tree.unlock(tail)
    assert (tail.lock, parent.lock, tree.evictable_blocks) == (0, 0, 2)
