"""Holds that fail, hang, lapse or are too many, and ends in the middle of anything: programs go on, nothing stays held."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any, cast

import pytest

from radixlang.backends.base import Hold
from radixlang.hints.holds import Holds
from tests.radixlang.holding import PREFIX, Holder, State, call, fork, times
from tests.radixlang.virtual_time import now, run


def test_a_hold_that_fails_is_no_error_and_the_last_one() -> None:
    async def main() -> None:
        holder = Holder(seconds=lambda _: -2)
        hints = holder.hints()
        branches = fork(hints, State(list(PREFIX)), 2)
        await asyncio.gather(*(call(hints, branch) for branch in branches))
        others = fork(hints, State([5000, *PREFIX]), 2)
        await asyncio.gather(*(call(hints, branch) for branch in others))
        assert len(holder.asked) == 1
        assert times([*branches, *others]) == [0.0] * 4
        await hints.close()

    run(main())


def test_nobody_waits_longer_than_the_limit_and_nobody_twice() -> None:
    async def main() -> None:
        holder = Holder(seconds=lambda _: -1)
        hints = holder.hints(patience=10.0)
        branches = fork(hints, State(list(PREFIX)), 2)
        await asyncio.gather(*(call(hints, branch) for branch in branches))
        await call(hints, branches[0])
        late = fork(hints, branches[1], 2)
        await call(hints, late[0])
        assert times([*branches, *late]) == [10.0, 10.0, 10.0, 10.0]
        await hints.close()

    run(main())


def test_a_fork_whose_prompt_cannot_be_made_is_left_to_its_branches() -> None:
    class Broken(State):
        async def _prompt(self, tokens: list[int]) -> list[int]:
            raise RuntimeError("no tokenizer")

    async def main() -> None:
        holder = Holder()
        hints = holder.hints()
        branches = fork(hints, Broken(list(PREFIX)), 2)
        await call(hints, branches[0])
        assert times(branches) == [0.0]
        await hints.close()

    run(main())


def test_an_engine_that_holds_nothing_is_not_asked_again_for_the_same() -> None:
    async def main() -> None:
        holder = Holder(most=0)
        hints = holder.hints()
        branches = fork(hints, State(list(PREFIX)), 2)
        await call(hints, branches[0])
        await asyncio.sleep(500)
        await hints.close()
        assert [item.released for item in holder.asked] == [None]

    run(main())


def test_a_hold_of_a_part_counts_as_that_part() -> None:
    async def main() -> None:
        holder = Holder(most=30)
        hints = holder.hints()
        outer = fork(hints, State(list(PREFIX)), 2)
        await call(hints, outer[0])
        outer[0].tokens += range(2000, 2010)
        fork(hints, outer[0], 2)
        await asyncio.sleep(2)
        assert len(holder.asked) == 2
        await hints.close()

    run(main())


@pytest.mark.parametrize("longest", [None, 6.0])
def test_a_hold_is_renewed_while_it_is_needed(longest: float | None) -> None:
    async def main() -> None:
        holder = Holder(seconds=lambda _: 0.5, longest=longest)
        hints = holder.hints()
        branches = fork(hints, State(list(PREFIX)), 2)
        await call(hints, branches[0])
        for _ in range(200):
            await asyncio.sleep(0.7)
            assert holder.live
            assert len(holder.live) <= 2
        for branch in branches:
            hints.finished(branch)
        await asyncio.sleep(1)
        assert holder.live == []
        await hints.close()

    run(main())


def test_what_gave_way_to_others_is_computed_again_once_at_most() -> None:
    async def main() -> None:
        holder = Holder()
        hints = holder.hints()
        parent = State(list(PREFIX))
        fork(hints, parent, 2)
        await asyncio.sleep(15)
        assert len(holder.asked) == 2
        for item in holder.asked:
            item.expires = 0.0
        await asyncio.sleep(100)
        assert len(holder.asked) == 3
        assert holder.live == []
        assert [usage.computed for usage, _ in parent.paid] == [99, 99]
        await hints.close()

    run(main())


def test_a_forgotten_program_does_not_hold_for_ever() -> None:
    async def main() -> None:
        holder = Holder()
        hints = holder.hints()
        fork(hints, State(list(PREFIX)), 2)
        await asyncio.sleep(700)
        assert holder.live == []
        await hints.close()

    run(main())


def test_the_number_of_holds_is_bounded_and_the_rest_does_without() -> None:
    async def main() -> None:
        holder = Holder()
        hints = holder.hints(holds=Holds(cast(Any, holder), most=3))
        programs = [fork(hints, State([5000 + number, *PREFIX]), 2) for number in range(8)]
        await asyncio.gather(*(call(hints, branch) for branches in programs for branch in branches))
        assert (holder.peak, len(holder.asked)) == (3, 3)
        assert sorted({went for branches in programs for went in times(branches)}) == [0.0, 1.0]
        for branch in programs[0]:
            hints.finished(branch)
        await asyncio.sleep(1)
        fork(hints, State([6000, *PREFIX]), 2)
        await asyncio.sleep(2)
        assert (len(holder.asked), len(holder.live)) == (4, 3)
        await hints.close()
        assert holder.live == []

    run(main())


@pytest.mark.parametrize("after", [None, 0, 0.5, 1.0, 5.0, 10.5, 11.0])
def test_closing_releases_whatever_is_under_way(after: float | None) -> None:
    async def main() -> None:
        holder = Holder()
        hints = holder.hints()
        branches = fork(hints, State(list(PREFIX)), 2)
        if after is not None:
            await asyncio.sleep(after)
        waiting = [asyncio.create_task(call(hints, branch)) for branch in branches]
        began = now()
        await hints.close()
        assert now() - began < 0.1
        assert holder.live == []
        await asyncio.gather(*waiting)
        fork(hints, branches[0], 2)
        await hints.close()
        assert holder.live == []

    run(main())


def test_closing_releases_although_it_is_cancelled() -> None:
    async def main() -> None:
        holder = Holder()
        hints = holder.hints()
        fork(hints, State(list(PREFIX)), 2)
        await asyncio.sleep(5)
        closing = asyncio.create_task(hints.close())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.sleep(1)
        assert closing.cancelled()
        assert holder.live == []

    run(main())


def test_a_server_that_does_not_answer_delays_the_end_by_seconds_only() -> None:
    class Silent(Holder):
        async def release(self, holds: Sequence[str]) -> None:
            await asyncio.Event().wait()

    async def main() -> None:
        hints = Silent().hints()
        fork(hints, State(list(PREFIX)), 2)
        await asyncio.sleep(5)
        await hints.close()
        assert now() <= 9

    run(main())


def test_a_branch_that_is_cancelled_while_it_waits_harms_nobody() -> None:
    async def main() -> None:
        holder = Holder()
        hints = holder.hints()
        branches = fork(hints, State(list(PREFIX)), 2)
        tasks = [asyncio.create_task(call(hints, branch)) for branch in branches]
        await asyncio.sleep(0.5)
        tasks[0].cancel()
        await asyncio.wait(tasks)
        hints.finished(branches[0])
        assert times(branches) == [1.0]
        assert holder.live
        await hints.close()

    run(main())


def test_closing_ends_an_announcement_that_waits_for_a_tokenizer() -> None:
    class Slow(State):
        async def _prompt(self, tokens: list[int]) -> list[int]:
            await asyncio.Event().wait()
            return tokens

    async def main() -> None:
        hints = Holder().hints()
        fork(hints, Slow(list(PREFIX)), 2)
        await asyncio.sleep(1)
        await hints.close()
        await asyncio.sleep(0)

    run(main())


def test_closing_at_once_leaves_no_prompt_unawaited() -> None:
    async def main() -> None:
        hints = Holder().hints()
        parent = State(list(PREFIX))
        fork(hints, parent, 2)
        await hints.close()
        await asyncio.sleep(0)
        assert parent.prompts_read == 1

    run(main())


def test_a_hold_that_comes_in_spite_of_its_cancellation_is_released_too() -> None:
    class Stubborn(Holder):
        async def hold(self, token_ids: Sequence[int], *, seconds: float, priority: int = 0) -> Hold:
            answer = asyncio.ensure_future(super().hold(token_ids, seconds=seconds, priority=priority))
            with contextlib.suppress(asyncio.CancelledError):
                return await asyncio.shield(answer)
            return await answer

    async def main() -> None:
        holder = Stubborn()
        hints = holder.hints()
        fork(hints, State(list(PREFIX)), 2)
        await asyncio.sleep(0.5)
        await hints.close()
        assert now() < 2
        assert holder.live == []

    run(main())
