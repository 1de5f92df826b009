"""What is held for branches, when, and who goes first. Time is virtual: a wait that nothing ends is an error."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from radixlang.backends.base import Backend
from radixlang.hints import EngineHints, NoHints, hints_for
from tests.radixlang.holding import PREFIX, Holder, State, call, fork, times
from tests.radixlang.virtual_time import run


def test_what_branches_share_is_computed_before_they_call_and_kept_until_the_last_is_finished() -> None:
    async def main() -> None:
        holder = Holder(seconds=lambda _: 2.0)
        hints = holder.hints()
        branches = fork(hints, State(list(PREFIX)), 3)
        await asyncio.gather(*(call(hints, branch) for branch in branches))
        assert [item.tokens for item in holder.asked] == [PREFIX[:-1]]
        assert times(branches) == [2.0, 2.0, 2.0]
        for branch in branches[:2]:
            hints.finished(branch)
        await asyncio.sleep(1)
        assert holder.live == [PREFIX[:-1]]
        await call(hints, branches[2])
        assert times(branches)[-1] == 3.0
        hints.finished(branches[2])
        await asyncio.sleep(1)
        assert holder.live == []
        await hints.close()

    run(main())


@pytest.mark.parametrize(("tokens", "count"), [(64, 2), (100, 1), (0, 3)])
def test_no_hold_for_a_short_prefix_or_a_single_branch(tokens: int, count: int) -> None:
    async def main() -> None:
        holder = Holder()
        hints = holder.hints()
        branches = fork(hints, State(list(range(tokens))), count)
        await asyncio.gather(*(call(hints, branch) for branch in branches))
        await hints.close()
        assert (holder.asked, times(branches)) == ([], [0.0] * count)

    run(main())


def test_the_prefix_is_that_of_the_moment_of_the_fork() -> None:
    async def main() -> None:
        holder = Holder()
        hints = holder.hints()
        parent = State(list(PREFIX))
        fork(hints, parent, 2)
        parent.tokens += [7, 7, 7]
        await asyncio.sleep(2)
        assert [item.tokens for item in holder.asked] == [PREFIX[:-1]]
        await hints.close()

    run(main())


def test_branches_that_are_finished_at_once_have_nothing_held() -> None:
    async def main() -> None:
        holder = Holder()
        hints = holder.hints()
        for branch in fork(hints, State(list(PREFIX)), 2):
            hints.finished(branch)
        await asyncio.sleep(2)
        assert holder.asked == []
        await hints.close()

    run(main())


def test_a_nested_fork_holds_its_longer_prefix_and_the_outer_one_stays() -> None:
    async def main() -> None:
        holder = Holder()
        hints = holder.hints()
        outer = fork(hints, State(list(PREFIX)), 2)
        outer[0].tokens += range(2000, 2100)
        inner = fork(hints, outer[0], 2)
        await asyncio.gather(*(call(hints, state) for state in [*inner, outer[1]]))
        longer = outer[0].tokens[:-1]
        # One after the other: the longer one is computed on top of the shorter.
        assert [(item.tokens, item.began) for item in holder.asked] == [(PREFIX[:-1], 0.0), (longer, 1.0)]
        assert times(inner) == [2.0, 2.0]
        hints.finished(outer[1])
        for branch in inner:
            hints.finished(branch)
        await asyncio.sleep(1)
        assert holder.live == [PREFIX[:-1]]
        hints.finished(outer[0])
        await asyncio.sleep(1)
        assert holder.live == []
        await hints.close()

    run(main())


@pytest.mark.parametrize("count", [1, 2])
def test_an_inner_fork_without_a_hold_of_its_own_keeps_the_outer_one(count: int) -> None:
    async def main() -> None:
        holder = Holder()
        hints = holder.hints()
        outer = fork(hints, State(list(PREFIX)), 2)
        branches = [*fork(hints, outer[0], count), *fork(hints, outer[1], 1)]
        await asyncio.gather(*(call(hints, state) for state in branches))
        assert len(holder.asked) == 1
        for state in [*outer, *branches[1:]]:
            hints.finished(state)
        await asyncio.sleep(1)
        assert holder.live == [PREFIX[:-1]]
        hints.finished(branches[0])
        await asyncio.sleep(1)
        assert holder.live == []
        await hints.close()

    run(main())


def test_the_end_of_a_program_ends_all_of_it_and_nothing_else() -> None:
    async def main() -> None:
        holder = Holder()
        hints = holder.hints()
        first, second = State(list(PREFIX)), State([5000, *PREFIX])
        for root in (first, second):
            outer = fork(hints, root, 2)
            outer[0].tokens += range(2000, 2100)
            fork(hints, outer[0], 3)
        await asyncio.sleep(5)
        assert len(holder.live) == 4
        hints.finished(first)
        hints.finished(first)
        await asyncio.sleep(1)
        assert {tokens[0] for tokens in holder.live} == {5000}
        await hints.close()
        assert holder.live == []

    run(main())


def test_what_a_hold_cost_is_told_to_the_state_it_was_made_for() -> None:
    async def main() -> None:
        holder = Holder()
        hints = holder.hints()
        parent = State(list(PREFIX))
        fork(hints, parent, 2)
        await asyncio.sleep(100)
        assert len(holder.asked) > 1
        assert [(usage.computed, prompt) for usage, prompt in parent.paid] == [(99, PREFIX[:-1])]
        await hints.close()

    run(main())


def test_begun_programs_go_before_fresh_ones_and_longer_paths_before_shorter() -> None:
    async def main() -> None:
        hints = Holder().hints()
        priorities = {}
        for remaining in (0, 15, 16, 100, 1000, 5000, 10**9):
            state = State([1], remaining=remaining)
            await call(hints, state)
            await call(hints, state)
            priorities[remaining] = [priority for _, _, priority in state.calls]
        assert priorities == {
            0: [0, 8],
            15: [0, 8],
            16: [1, 9],
            100: [3, 11],
            1000: [6, 14],
            5000: [7, 15],
            10**9: [7, 15],
        }
        branches = fork(hints, state, 2)
        branches[0].remaining = 1000
        await call(hints, branches[0])
        assert branches[0].calls[0][2] == 14
        await hints.close()

    run(main())


def test_a_hold_goes_as_early_as_the_most_urgent_of_its_branches() -> None:
    async def main() -> None:
        holder = Holder()
        hints = holder.hints()
        parent = State([1])
        await call(hints, parent, *PREFIX)
        branches = [parent.branch(), parent.branch()]
        branches[1].remaining = 100
        hints.forked(parent, branches)
        await asyncio.sleep(2)
        assert [item.priority for item in holder.asked] == [11]
        await hints.close()

    run(main())


def test_text_backends_and_programs_that_want_none_get_none() -> None:
    class Exact:
        token_exact = True

    class Texts:
        token_exact = False

    assert isinstance(hints_for(cast(Backend, Exact())), EngineHints)
    assert isinstance(hints_for(cast(Backend, Exact()), on=False), NoHints)
    assert isinstance(hints_for(cast(Backend, Texts())), NoHints)


def test_no_hints_wait_for_nothing() -> None:
    async def main() -> None:
        hints = NoHints()
        branches = fork(hints, State(list(PREFIX)), 2)
        await asyncio.gather(*(call(hints, branch) for branch in branches))
        for branch in branches:
            hints.finished(branch)
        await hints.close()
        assert [branch.calls for branch in branches] == [[(0.0, branch.tokens, 0)] for branch in branches]

    run(main())
