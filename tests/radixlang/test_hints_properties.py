"""Random trees of forks on a backend that holds slowly, in part, not at all or never answers: programs run as without hints."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from radixlang.hints import Hints, NoHints
from radixlang.hints.engine import PATIENCE
from radixlang.hints.holds import MOST
from tests.radixlang.holding import Holder, State
from tests.radixlang.virtual_time import now, run


@dataclass(frozen=True)
class Write:
    tokens: int


@dataclass(frozen=True)
class Call:
    seconds: float
    fails: bool = False


@dataclass(frozen=True)
class Fork:
    branches: tuple[tuple[Any, ...], ...]
    join: bool


STEPS = st.one_of(
    st.builds(Write, st.sampled_from([1, 70, 300])),
    st.builds(Call, st.sampled_from([0.0, 1.0, 40.0]), st.sampled_from([False] * 9 + [True])),
)
PROGRAMS: st.SearchStrategy[tuple[Any, ...]] = st.recursive(
    st.lists(STEPS, max_size=4).map(tuple),
    lambda inner: st.lists(
        STEPS | st.builds(Fork, st.lists(inner, min_size=1, max_size=3).map(tuple), st.booleans()), max_size=4
    ).map(tuple),
    max_leaves=12,
)
# By the number of the hold: seconds, -1 for no answer, -2 for a failure.
SECONDS = st.lists(st.sampled_from([0.0, 0.5, 3.0, 20.0, -1.0, -2.0]), min_size=1, max_size=6)


class CallFailed(Exception):
    pass


@dataclass
class Execution:
    """A batch that runs: two programs at a time. ``prompts``: by the path of a state."""

    hints: Hints
    prompts: dict[str, list[list[int]]] = field(default_factory=dict)
    waited: float = 0.0
    calls: int = 0

    async def batch(self, programs: list[tuple[Any, ...]], cancelled: dict[int, float]) -> float:
        places = asyncio.Semaphore(2)

        async def one(number: int, steps: tuple[Any, ...]) -> None:
            async with places:
                state = State()
                late: list[asyncio.Task[None]] = []
                try:
                    async with asyncio.timeout(cancelled.get(number)):
                        with contextlib.suppress(CallFailed):
                            await self._steps(str(number), state, steps, late)
                        # Branches that nobody joined go on, and may fork while the others are waited for.
                        for task in late:
                            await asyncio.wait([task])
                except TimeoutError:
                    pass
                finally:
                    for task in late:
                        task.cancel()
                    await asyncio.gather(*late, return_exceptions=True)
                    self.hints.finished(state)

        await asyncio.gather(*(one(number, steps) for number, steps in enumerate(programs)))
        ended = now()
        await self.hints.close()
        return ended

    async def _steps(self, path: str, state: State, steps: tuple[Any, ...], late: list[asyncio.Task[None]]) -> None:
        for at, step in enumerate(steps):
            if isinstance(step, Write):
                state.tokens += range(len(state.tokens), len(state.tokens) + step.tokens)
            elif isinstance(step, Call):
                await self._call(path, state, step)
            else:
                branches = [state.branch(1000 + number) for number in range(len(step.branches))]
                self.hints.forked(state, branches)
                tasks = [
                    asyncio.create_task(self._branch(f"{path}.{at}.{number}", branch, inner, late))
                    for number, (branch, inner) in enumerate(zip(branches, step.branches, strict=True))
                ]
                late += tasks
                if step.join:
                    await asyncio.gather(*tasks, return_exceptions=True)

    async def _branch(self, path: str, state: State, steps: tuple[Any, ...], late: list[asyncio.Task[None]]) -> None:
        try:
            await self._steps(path, state, steps, late)
        finally:
            self.hints.finished(state)

    async def _call(self, path: str, state: State, step: Call) -> None:
        began = now()
        assert 0 <= await self.hints.before_call(state, state.tokens) <= 15
        self.waited = max(self.waited, now() - began)
        self.calls += 1
        self.prompts.setdefault(path, []).append(list(state.tokens))
        await asyncio.sleep(step.seconds)
        if step.fails:
            raise CallFailed
        state.tokens += [hash(tuple(state.tokens)) % 7 + 100]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(PROGRAMS, min_size=1, max_size=5),
    SECONDS,
    st.sampled_from([0, 50, 1 << 30]),
    st.dictionaries(st.integers(0, 4), st.sampled_from([0.0, 0.5, 2.0, 25.0]), max_size=2),
)
def test_programs_run_as_without_hints_and_leave_nothing_held(
    programs: list[tuple[Any, ...]], seconds: list[float], most: int, cancelled: dict[int, float]
) -> None:
    async def main() -> None:
        holder = Holder(seconds=lambda number: seconds[number % len(seconds)], most=most)
        hinted, plain = Execution(holder.hints()), Execution(NoHints())
        began = now()
        took = await hinted.batch(programs, cancelled) - began
        await asyncio.sleep(0.1)
        assert holder.live == []
        assert holder.peak <= MOST
        assert hinted.waited <= PATIENCE
        if not cancelled:
            began = now()
            without = await plain.batch(programs, {}) - began
            assert hinted.prompts == plain.prompts
            assert took <= without + PATIENCE * hinted.calls

    run(main())
