"""What the programs of a batch begin with is found and held."""

from __future__ import annotations

import asyncio

from tests.radixlang.holding import Holder, State, call, fork, times
from tests.radixlang.virtual_time import run


def first_prompt(*parts: range) -> State:
    return State([token for part in parts for token in part])


SYSTEM, SHOTS, OTHER_SHOTS = range(100), range(1000, 1200), range(2000, 2200)


def test_the_first_prompt_goes_at_once_and_those_that_share_its_beginning_when_that_is_computed() -> None:
    async def main() -> None:
        holder = Holder()
        hints = holder.hints()
        states = [first_prompt(SYSTEM, range(5000 + 10 * number, 5005 + 10 * number)) for number in range(4)]
        states.append(first_prompt(range(9000, 9300)))
        await asyncio.gather(*(call(hints, state) for state in states))
        assert times(states) == [0.0, 1.0, 1.0, 1.0, 0.0]
        assert [item.tokens for item in holder.asked] == [list(SYSTEM)]
        for state in states:
            hints.finished(state)
        late = first_prompt(SYSTEM, range(8000, 8020))
        await call(hints, late)
        assert times([late]) == [1.0]
        assert holder.live == [list(SYSTEM)]
        await hints.close()
        assert holder.live == []

    run(main())


def test_a_program_alone_holds_nothing_for_its_turns() -> None:
    async def main() -> None:
        holder = Holder()
        hints = holder.hints()
        state = first_prompt(SYSTEM)
        for turn in range(3):
            await call(hints, state, *range(3000 + turn, 3100 + turn))
        await hints.close()
        assert holder.asked == []

    run(main())


def test_kinds_of_programs_in_one_batch_each_have_their_prefix_held() -> None:
    async def main() -> None:
        holder = Holder(seconds=lambda _: 0.0)
        hints = holder.hints()
        for number in range(3):
            for shots in (SHOTS, OTHER_SHOTS):
                await call(hints, first_prompt(SYSTEM, shots, range(5000 + number, 5030 + number)))
        assert sorted(map(len, holder.live)) == [100, 300, 300]
        await hints.close()

    run(main())


def test_common_prefixes_of_a_batch_are_few_and_the_latest() -> None:
    async def main() -> None:
        holder = Holder(seconds=lambda _: 0.0)
        hints = holder.hints()
        for number in range(20):
            for item in range(3):
                await call(hints, first_prompt(range(10_000 * number, 10_000 * number + 80), range(item, item + 1)))
        await asyncio.sleep(1)
        assert [tokens[0] // 10_000 for tokens in holder.live] == [16, 17, 18, 19]
        await hints.close()

    run(main())


def test_a_common_prefix_in_use_and_one_that_is_held_give_way_last() -> None:
    def kind(number: int, item: int) -> State:
        return first_prompt(range(10_000 * number, 10_000 * number + 80), range(item, item + 1))

    async def main() -> None:
        holder = Holder(seconds=lambda _: 0.0)
        hints = holder.hints()
        for number in range(1, 5):
            for item in range(2):
                await call(hints, kind(number, item))
        await call(hints, kind(1, 2))
        # The engine holds nothing of two more kinds: the first of them takes the place of the oldest, the second that of the first.
        holder.most = 0
        for number in range(5, 7):
            for item in range(2):
                await call(hints, kind(number, item))
            await asyncio.sleep(1)
        assert [tokens[0] // 10_000 for tokens in holder.live] == [1, 3, 4]
        await hints.close()

    run(main())


def test_equal_prompts_leave_one_token_to_compute() -> None:
    async def main() -> None:
        holder = Holder()
        hints = holder.hints()
        for _ in range(3):
            await call(hints, first_prompt(SYSTEM))
        assert [item.tokens for item in holder.asked] == [list(SYSTEM)[:-1]]
        await hints.close()

    run(main())


def test_programs_that_fork_before_their_first_call_share_their_beginning_too() -> None:
    async def main() -> None:
        holder = Holder()
        hints = holder.hints()
        roots = [first_prompt(SYSTEM, SHOTS, range(5000 + 100 * number, 5090 + 100 * number)) for number in range(3)]
        await asyncio.gather(*(call(hints, branch) for root in roots for branch in fork(hints, root, 2)))
        common = [*SYSTEM, *SHOTS]
        began = {tuple(item.tokens): item.began for item in holder.asked}
        assert began == {
            tuple(roots[0].tokens[:-1]): 0.0,
            tuple(common): 0.0,
            tuple(roots[1].tokens[:-1]): 1.0,
            tuple(roots[2].tokens[:-1]): 1.0,
        }
        for root in roots:
            hints.finished(root)
        await asyncio.sleep(1)
        assert holder.live == [common]
        await hints.close()

    run(main())
