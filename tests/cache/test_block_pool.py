"""Every transition of the block pool, the illegal ones included."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixserve.cache.block_pool import BlockPool, BlockState
from radixserve.errors import OutOfBlocks


def test_the_lowest_ids_go_first_then_the_last_freed() -> None:
    pool = BlockPool(6)
    assert pool.allocate(3) == [0, 1, 2]
    pool.free([1, 0])
    assert pool.allocate(2) == [1, 0]
    assert pool.allocate(3) == [3, 4, 5]


def test_a_refused_allocation_changes_nothing() -> None:
    pool = BlockPool(3)
    pool.allocate(1)
    with pytest.raises(OutOfBlocks) as refused:
        pool.allocate(3)
    assert (refused.value.needed, refused.value.available) == (3, 2)
    assert pool.num_free == 2
    assert pool.allocate(0) == []
    assert pool.allocate(2) == [1, 2]


def test_a_retired_block_is_free_when_its_step_is_collected_and_not_before() -> None:
    pool = BlockPool(4)
    blocks = pool.allocate(4)
    pool.give_to_tree(blocks[:2])
    pool.retire([blocks[0], blocks[2]], 5)
    pool.retire([], 5)
    pool.retire([blocks[3]], 6)
    assert pool.retired_blocks() == [blocks[0], blocks[2], blocks[3]]
    assert (pool.num_free, pool.num_tree, pool.num_private, pool.num_retired) == (0, 1, 0, 3)
    pool.collect(4)
    assert pool.num_free == 0
    pool.collect(5)
    assert (pool.num_free, pool.num_retired) == (2, 1)
    assert pool.state(blocks[3]) is BlockState.RETIRED
    pool.collect(7)
    assert (pool.num_free, pool.num_tree, pool.num_retired) == (3, 1, 0)
    assert pool.retired_blocks() == []


def _in(state: BlockState) -> tuple[BlockPool, int]:
    pool = BlockPool(2)
    if state is not BlockState.FREE:
        pool.allocate(1)
    if state is BlockState.TREE:
        pool.give_to_tree([0])
    if state is BlockState.RETIRED:
        pool.retire([0], 1)
    assert pool.state(0) is state
    return pool, 0


@pytest.mark.parametrize("state", [BlockState.FREE, BlockState.TREE, BlockState.RETIRED])
def test_only_a_private_block_is_given_to_the_tree(state: BlockState) -> None:
    pool, block = _in(state)
    with pytest.raises(AssertionError, match=f"block 0 is {state.name}, cannot become TREE"):
        pool.give_to_tree([block])


@pytest.mark.parametrize("state", [BlockState.FREE, BlockState.RETIRED])
def test_a_block_is_never_freed_twice_nor_under_a_running_step(state: BlockState) -> None:
    pool, block = _in(state)
    with pytest.raises(AssertionError, match=f"block 0 is {state.name}, cannot become FREE"):
        pool.free([block])


@pytest.mark.parametrize("state", [BlockState.FREE, BlockState.RETIRED])
def test_only_an_owned_block_is_retired(state: BlockState) -> None:
    pool, block = _in(state)
    with pytest.raises(AssertionError, match=f"block 0 is {state.name}, cannot become RETIRED"):
        pool.retire([block], 2)


def test_the_same_block_twice_in_one_call_is_caught() -> None:
    pool, block = _in(BlockState.PRIVATE)
    with pytest.raises(AssertionError, match="block 0 is FREE"):
        pool.free([block, block])


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.lists(st.tuples(st.sampled_from(["allocate", "tree", "free", "retire", "collect"]), st.integers(0, 5))))
def test_every_block_is_in_one_state_and_counted_there(operations: list[tuple[str, int]]) -> None:
    pool = BlockPool(9)
    model = dict.fromkeys(range(9), BlockState.FREE)
    due: dict[int, int] = {}
    step = 1
    for verb, number in operations:
        owned = [block for block, state in model.items() if state in (BlockState.PRIVATE, BlockState.TREE)][:number]
        private = [block for block, state in model.items() if state is BlockState.PRIVATE][:number]
        if verb == "allocate" and number <= pool.num_free:
            model |= dict.fromkeys(pool.allocate(number), BlockState.PRIVATE)
        elif verb == "tree":
            pool.give_to_tree(private)
            model |= dict.fromkeys(private, BlockState.TREE)
        elif verb == "free":
            pool.free(owned)
            model |= dict.fromkeys(owned, BlockState.FREE)
        elif verb == "retire":
            step += number % 2
            pool.retire(owned, step)
            model |= dict.fromkeys(owned, BlockState.RETIRED)
            due |= dict.fromkeys(owned, step)
        elif verb == "collect":
            pool.collect(step - 1)
            done = [block for block, state in model.items() if state is BlockState.RETIRED and due[block] < step]
            model |= dict.fromkeys(done, BlockState.FREE)
        counts = Counter(model.values())
        assert {block: pool.state(block) for block in model} == model
        assert pool.num_free == counts[BlockState.FREE]
        assert pool.num_private == counts[BlockState.PRIVATE]
        assert pool.num_tree == counts[BlockState.TREE]
        assert pool.num_retired == counts[BlockState.RETIRED]
        assert set(pool.retired_blocks()) == {b for b, state in model.items() if state is BlockState.RETIRED}
