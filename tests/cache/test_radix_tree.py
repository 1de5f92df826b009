"""The tree alone: shape, locks, order of eviction. Block ids are just numbers here."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from radixserve.cache.eviction import LeastFrequentlyUsed, LeastRecentlyUsed
from radixserve.cache.radix_tree import Node, RadixTree
from radixserve.cache.token_key import decode_tokens, encode_tokens

NAME = ("m", "")
A, B, C, D = [1, 1, 1, 1], [2, 2, 2, 2], [3, 3, 3, 3], [4, 4, 4, 4]


class Watcher:
    """Writes down what the tree tells."""

    def __init__(self) -> None:
        self.news: list[tuple[str, int, int]] = []

    def child_added(self, parent: Node, child: Node) -> None:
        assert child.parent is parent and child in (parent.children or {}).values()
        self.news.append(("added", child.start, child.end))

    def split(self, upper: Node, lower: Node) -> None:
        assert lower.parent is upper and upper.end == lower.start
        self.news.append(("split", upper.end, lower.end))

    def merged(self, upper: Node, lower: Node) -> None:
        assert not upper.alive and lower.alive and lower.start == upper.start
        self.news.append(("merged", lower.start, lower.end))

    def trimmed(self, node: Node, removed: bytes) -> None:
        self.news.append(("trimmed", node.end if node.alive else node.start, len(removed) // 4))


class Tree(RadixTree):
    """Block size 4, block ids handed out in order."""

    def __init__(self) -> None:
        super().__init__(4, LeastRecentlyUsed())
        self.top = self.root(NAME)
        self.next_block = 0

    def put(
        self, parent: Node, tokens: Sequence[int], salt: bytes = b"", *, pending: int = 0, locked: bool = False
    ) -> Node:
        """Insert whole blocks as a request would: lock the parent, insert, let go."""
        self.lock(parent)
        node, replaced = self.insert(parent, salt, encode_tokens(tokens), self.blocks(tokens), pending=pending)
        assert replaced is None
        if not locked:
            self.unlock(node)
        return node

    def put_tail(self, parent: Node, tokens: Sequence[int], salt: bytes = b"") -> tuple[Node | None, Node | None]:
        return self.insert_tail(parent, salt, encode_tokens(tokens), self.blocks(tokens)[0])

    def blocks(self, tokens: Sequence[int]) -> list[int]:
        count = -(-len(tokens) // 4)
        self.next_block += count
        return list(range(self.next_block - count, self.next_block))

    def paths(self) -> set[tuple[int, ...]]:
        """The token path of every node."""
        return {path_of(node) for node in self.nodes()}

    def find(self, tokens: Sequence[int], limit: int | None = None, salt: bytes = b"") -> tuple[int, int]:
        """(tokens in whole blocks, tokens inside a block) of a match from the root."""
        match = self.match(self.top, salt, encode_tokens(tokens), len(tokens) if limit is None else limit)
        return match.length, match.tail_length


def path_of(node: Node) -> tuple[int, ...]:
    return tuple(decode_tokens(b"".join(step.data for step in node.path())).tolist())


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
    tree.commit(1)
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
    assert tree.pending(3) == [upper, node]
    assert upper.pending == node.pending == 3
    tree.unlock(node)
    assert [item.kept for item in tree.roll_back(3)] == [4, 0]
    assert tree.num_nodes == tree.num_blocks == tree.evictable_blocks == 0


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


# ---------------------------------------------------------------- commit


def test_a_chain_of_commits_becomes_one_node() -> None:
    tree = Tree()
    tree.observer = watcher = Watcher()
    first = tree.put(tree.top, A, pending=1, locked=True)
    tree.commit(1)
    second, _ = tree.insert(first, b"", encode_tokens(B), [1], pending=2)
    assert tree.num_nodes == 2
    tree.commit(2)
    assert (tree.num_nodes, tree.num_blocks) == (1, 2)
    assert not first.alive and second.parent is tree.top
    assert (second.start, second.end, second.blocks, second.lock) == (0, 8, [0, 1], 1)
    assert tree.match(tree.top, b"", encode_tokens(A + B), 8).node is second
    assert watcher.news == [("added", 0, 4), ("added", 4, 8), ("merged", 0, 8)]
    tree.unlock(second)
    assert tree.evictable_blocks == 2


def test_a_commit_merges_nothing_that_somebody_needs_apart() -> None:
    def chain(tree: Tree, salt: bytes = b"") -> tuple[Node, Node]:
        first = tree.put(tree.top, A, pending=1, locked=True)
        tree.commit(1)
        return first, tree.insert(first, salt, encode_tokens(B), [7], pending=2)[0]

    tree = Tree()
    first, _ = chain(tree)
    tree.lock(first)
    tree.commit(2)
    assert tree.num_nodes == 2, "another lease ends at the parent"

    tree = Tree()
    first, second = chain(tree)
    tree.put(first, C)
    tree.commit(2)
    assert tree.num_nodes == 3, "the parent has another child"

    tree = Tree()
    chain(tree, b"x")
    tree.commit(2)
    assert tree.num_nodes == 2, "the parent is public, the child is not"

    tree = Tree()
    first = tree.put(tree.top, A, pending=2, locked=True)
    second, _ = tree.insert(first, b"", encode_tokens(B), [7], pending=1)
    tree.commit(1)
    assert (tree.num_nodes, second.pending, first.pending) == (2, 0, 2), "the parent is not committed yet"


def test_a_rolled_back_step_leaves_what_was_there_before() -> None:
    tree = Tree()
    base = tree.put(tree.top, A)
    one = tree.put(base, B, pending=4, locked=True)
    two, _ = tree.insert(one, b"", encode_tokens(C), [9], pending=4)
    other = tree.put(tree.top, D, pending=4, locked=True)
    tree.unlock(two)
    tree.unlock(other)
    gone = tree.roll_back(4)
    assert [item.blocks for item in gone] == [two.blocks, one.blocks, other.blocks]
    assert tree.paths() == {tuple(A)}
    assert tree.pending(4) == []
    assert tree.num_blocks == tree.evictable_blocks == 1


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
