"""Steps between planning and collecting, over a bare tree: what is pending, what waits, and what comes back."""

from __future__ import annotations

import pytest

from radixserve.cache.block_pool import BlockPool, BlockState
from radixserve.cache.flight_book import FlightBook
from radixserve.cache.node import Node
from radixserve.cache.token_key import encode_tokens
from tests.cache.bare_tree import Tree, Watcher, path_of

A, B, C, D = [1, 1, 1, 1], [2, 2, 2, 2], [3, 3, 3, 3], [4, 4, 4, 4]


class Scene:
    """A tree whose blocks are a pool's, and the book of its steps. ``let_go``: the sources it told of."""

    def __init__(self) -> None:
        self.tree = Tree()
        self.pool = BlockPool(32)
        self.let_go: list[Node] = []
        self.book = FlightBook(self.tree, self.pool, self.let_go.append)

    def put(self, parent: Node, tokens: list[int], step: int = 0, salt: bytes = b"") -> Node:
        """A node below ``parent`` that its writer keeps locked."""
        self.tree.lock(parent)
        blocks = self._blocks(tokens)
        node, replaced = self.tree.insert(parent, salt, encode_tokens(tokens), blocks)
        if step:
            self.book.write(node, step)
        if replaced is not None:
            self.book.replace(replaced)
        return node

    def put_tail(self, parent: Node, tokens: list[int]) -> Node:
        """An unlocked tail below ``parent``."""
        tail, _ = self.tree.insert_tail(parent, b"", encode_tokens(tokens), self._blocks(tokens)[0])
        assert tail is not None
        return tail

    def _blocks(self, tokens: list[int]) -> list[int]:
        blocks = self.pool.allocate(-(-len(tokens) // 4))
        self.pool.give_to_tree(blocks)
        return blocks


# ---------------------------------------------------------------- collected


def test_a_chain_of_commits_becomes_one_node() -> None:
    scene = Scene()
    tree, book = scene.tree, scene.book
    tree.observer = watcher = Watcher()
    first = scene.put(tree.top, A, step=1)
    book.begin(1)
    book.collect(1)
    second = scene.put(first, B, step=2)
    tree.unlock(first)
    book.begin(2)
    assert (tree.num_nodes, second.pending) == (2, 2)
    book.collect(2)
    assert (tree.num_nodes, tree.num_blocks, second.pending) == (1, 2, 0)
    assert not first.alive and second.parent is tree.top
    assert (second.start, second.end, second.blocks, second.lock) == (0, 8, [0, 1], 1)
    assert tree.match(tree.top, b"", encode_tokens(A + B), 8).node is second
    assert watcher.news == [("added", 0, 4), ("added", 4, 8), ("merged", 0, 8)]
    tree.unlock(second)
    assert tree.evictable_blocks == 2


@pytest.mark.parametrize("apart", ["a lease", "a child", "a salt", "a step"])
def test_a_commit_merges_nothing_that_somebody_needs_apart(apart: str) -> None:
    scene = Scene()
    tree, book = scene.tree, scene.book
    first = scene.put(tree.top, A, step=2 if apart == "a step" else 0)
    second = scene.put(first, B, step=1, salt=b"x" if apart == "a salt" else b"")
    if apart != "a lease":
        tree.unlock(first)
    if apart == "a child":
        tree.unlock(scene.put(first, C))
    nodes = tree.num_nodes
    book.begin(1)
    book.collect(1)
    assert tree.num_nodes == nodes and first.alive and second.parent is first
    assert (first.pending, second.pending) == (2 if apart == "a step" else 0, 0)


def test_what_was_split_while_it_was_pending_is_committed_whole() -> None:
    scene = Scene()
    tree, book = scene.tree, scene.book
    lower = scene.put(tree.top, A + B + C, step=3)
    middle = tree.split(lower, 8)
    upper = tree.split(middle, 4)
    branch = scene.put(middle, D, step=3)
    assert book.pending(3) == [upper, middle, lower, branch]
    assert book.pending(2) == []
    book.begin(3)
    book.collect(3)
    assert not any(node.pending for node in tree.nodes())
    assert sorted(path_of(node) for node in tree.nodes()) == [tuple(A + B), tuple(A + B + C), tuple(A + B + D)]


# ---------------------------------------------------------------- rolled back


def test_a_rolled_back_step_leaves_what_was_there_before() -> None:
    scene = Scene()
    tree, book = scene.tree, scene.book
    base = scene.put(tree.top, A)
    one = scene.put(base, B, step=4)
    two = scene.put(one, C + C, step=4)
    half = tree.split(two, 12)
    other = scene.put(tree.top, D, step=4)
    for node in (base, one, two, other):
        tree.unlock(node)
    book.begin(4)
    free = scene.pool.num_free
    gone = book.roll_back(4)
    assert [item.blocks for item in gone] == [two.blocks, half.blocks, one.blocks, other.blocks]
    assert [item.kept for item in gone] == [12, 8, 4, 0]
    assert tree.paths() == {tuple(A)}
    assert scene.pool.num_free == free + 4
    assert book.pending(4) == []
    assert tree.num_blocks == tree.evictable_blocks == 1


def test_a_later_step_is_rolled_back_without_the_one_before_it() -> None:
    scene = Scene()
    tree, book = scene.tree, scene.book
    first = scene.put(tree.top, A, step=1)
    book.begin(1)
    second = scene.put(first, B, step=2)
    book.begin(2)
    tree.unlock(second)
    assert [item.blocks for item in book.roll_back(2)] == [[1]]
    assert (first.pending, first.alive) == (1, True)
    book.collect(1)
    assert first.pending == 0 and tree.paths() == {tuple(A)}


# ---------------------------------------------------------------- sources, blocks and tails that wait


@pytest.mark.parametrize("end", ["collect", "roll_back"])
def test_a_source_is_let_go_of_when_its_step_is_over_and_not_before(end: str) -> None:
    scene = Scene()
    tree, book = scene.tree, scene.book
    tail = scene.put_tail(tree.top, [5, 6])
    for step in (1, 2):
        tree.lock(tail)
        book.copy(tail, step)
        book.begin(step)
    assert book.sources() == [tail, tail]
    getattr(book, end)(2)
    assert (book.sources(), scene.let_go, tail.lock) == ([tail], [tail], 1)
    book.collect(1)
    assert (book.sources(), scene.let_go, tail.lock) == ([], [tail, tail], 0)


def test_blocks_wait_for_the_last_step_that_has_begun() -> None:
    scene = Scene()
    book, pool = scene.book, scene.pool
    blocks = pool.allocate(3)
    book.give_back(blocks[:1])
    assert pool.state(blocks[0]) is BlockState.FREE, "nobody reads it"
    book.begin(1)
    book.give_back(blocks[1:2])
    book.begin(2)
    book.give_back(blocks[2:])
    assert pool.retired_blocks() == blocks[1:]
    book.collect(1)
    assert pool.retired_blocks() == blocks[2:]
    book.collect(2)
    assert pool.num_free == pool.total


def test_a_replaced_tail_gives_up_its_block_with_its_last_lock() -> None:
    scene = Scene()
    tree, book, pool = scene.tree, scene.book, scene.pool
    unlocked = scene.put_tail(tree.top, [5, 6])
    scene.put(tree.top, [5, 6, 7, 7], step=1)
    assert (pool.state(unlocked.blocks[0]), book.replaced()) == (BlockState.FREE, [])

    locked = scene.put_tail(tree.top, [8, 9])
    tree.lock(locked)
    tree.lock(locked)
    scene.put(tree.top, [8, 9, 7, 7], step=1)
    book.begin(1)
    assert (pool.state(locked.blocks[0]), book.replaced()) == (BlockState.TREE, [locked])
    tree.unlock(locked)
    assert not book.give_up(locked), "somebody may still copy from it"
    tree.unlock(locked)
    assert book.give_up(locked) and book.replaced() == []
    assert pool.state(locked.blocks[0]) is BlockState.RETIRED, "the step in flight may read it"
    assert not book.give_up(locked) and not book.give_up(tree.top)
    book.collect(1)
    assert pool.state(locked.blocks[0]) is BlockState.FREE


@pytest.mark.parametrize("held", [True, False])
def test_a_held_tail_comes_back_where_what_replaced_it_failed(held: bool) -> None:
    scene = Scene()
    tree, book = scene.tree, scene.book
    tail = scene.put_tail(tree.top, [5, 6])
    if held:
        tree.hold(tail)
    else:
        tree.lock(tail)
    longer = scene.put(tree.top, [5, 6, 7, 7], step=1)
    book.begin(1)
    tree.unlock(longer)
    book.roll_back(1)
    assert tail.alive == held
    assert book.replaced() == ([] if held else [tail])
    assert tree.find([5, 6]) == (0, 2 if held else 0)
