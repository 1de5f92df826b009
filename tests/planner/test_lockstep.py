"""The event loop of plans: what it does in its pauses, its clock, and threads that wait for it."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from radixlang import ProgramError, ProgramState, function, gen
from radixlang.plan import plan
from radixserve.config import EngineConfig
from radixserve.errors import ConfigError
from radixserve.planner.lockstep import LockstepLoop
from radixserve.planner.model import PlanModel, traced_core
from radixserve.planner.planning import plan_program, run_in_lockstep
from radixserve.planner.stand_in import StandIn
from radixserve.planner.step_cost import NOMINAL, StepCost, parse_step_cost


@pytest.fixture
def loop(tiny_text: PlanModel) -> LockstepLoop:
    text = tiny_text.text
    runner = StandIn(text.tokenizer, text.generation.eos_ids, output_tokens=8)
    return LockstepLoop(traced_core(tiny_text, EngineConfig(), runner, cost=NOMINAL))


def test_a_plan_takes_one_step_at_a_time(tiny_text: PlanModel) -> None:
    text = tiny_text.text
    for options in ({"overlap": "on"}, {"device": "cuda"}):
        runner = StandIn(text.tokenizer, text.generation.eos_ids, output_tokens=8)
        core = traced_core(tiny_text, EngineConfig.from_options(**options), runner, cost=NOMINAL)
        assert core.config.scheduler.overlap == "off"


def test_timers_cost_no_time(loop: LockstepLoop) -> None:
    order: list[tuple[str, float]] = []

    async def sleep(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        order.append((name, asyncio.get_running_loop().time()))

    async def work() -> None:
        await asyncio.gather(sleep("long", 3600), sleep("short", 60))

    began = time.monotonic()
    run_in_lockstep(loop, work)
    assert [name for name, _ in order] == ["short", "long"]
    assert [at for _, at in order] == pytest.approx([60, 3600])
    assert time.monotonic() - began < 60


def test_it_works_under_a_running_loop(loop: LockstepLoop) -> None:
    async def outer() -> int:
        return int(run_in_lockstep(loop, lambda: asyncio.sleep(1, 7)))

    assert asyncio.run(outer()) == 7


def test_errors_come_out(loop: LockstepLoop) -> None:
    async def work() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError, match="x"):
        run_in_lockstep(loop, work)


def test_functions_beside_the_loop_run_in_order(loop: LockstepLoop) -> None:
    async def work() -> list[int]:
        return list(await asyncio.gather(*(asyncio.to_thread(threading.get_ident) for _ in range(3))))

    assert len(set(run_in_lockstep(loop, work))) == 1


def test_bodies_run_one_at_a_time_and_in_order(loop: LockstepLoop) -> None:
    """Each waits for the loop twice; the second one to begin never overtakes the first."""
    order: list[tuple[int, int]] = []
    inside = threading.Lock()

    def body(number: int, event_loop: Any) -> None:
        for place in range(3):
            assert inside.acquire(blocking=False), "two bodies run at once"
            time.sleep(0.002 * (5 - number))
            order.append((place, number))
            inside.release()
            future = asyncio.run_coroutine_threadsafe(asyncio.sleep(0.5), event_loop)
            event_loop.wait_in_thread(future)
            future.result()

    async def work() -> None:
        event_loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(5) as threads:
            await asyncio.gather(
                *(event_loop.run_in_executor(threads, body, number, event_loop) for number in range(5))
            )

    run_in_lockstep(loop, work)
    assert order == [(place, number) for place in range(3) for number in range(5)]


def test_what_a_body_asks_of_the_loop_comes_together_when_it_waits(loop: LockstepLoop) -> None:
    """Or the order of calls would be a matter of how fast the loop is while the body runs."""
    order: list[str] = []

    def body(event_loop: Any) -> None:
        event_loop.call_soon_threadsafe(order.append, "first")
        time.sleep(0.02)
        order.append("body")
        event_loop.call_soon_threadsafe(order.append, "second")

    async def work() -> None:
        event_loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1) as threads:
            await event_loop.run_in_executor(threads, body, event_loop)

    run_in_lockstep(loop, work)
    assert order == ["body", "first", "second"]


@function
def own_threads(s: ProgramState) -> None:
    """Reads its branches from threads that it makes itself."""
    s += "Say a word:"
    branches = s.fork(3)
    for branch in branches:
        branch += gen("word", max_tokens=3)
    with ThreadPoolExecutor(3) as threads:
        words = list(threads.map(lambda branch: branch["word"], list(branches)))
    s += " ".join(words)


def test_threads_of_a_programs_own_do_not_hang_it(tiny_text: PlanModel) -> None:
    assert plan_program(own_threads, [{}], model=tiny_text).calls == 3


@function
def failing(s: ProgramState) -> None:
    """Its call is refused."""
    s += "a" * 5000 + gen("x", max_tokens=3)
    s["x"]


def test_what_a_program_raises_is_raised(tiny_text: PlanModel) -> None:
    with pytest.raises(ProgramError, match="maximum context length is 4096"):
        plan_program(failing, [{}, {}], model=tiny_text)


@function
async def waiting(s: ProgramState) -> None:
    """Calls a tool that takes a while."""
    s += "Think." + gen("thought", max_tokens=3)
    await s.wait()
    await asyncio.sleep(1.0)
    s += gen("more", max_tokens=3)


def test_the_plan_tells_time_only_where_a_cost_is_given() -> None:
    assert plan(waiting).seconds is None
    timed = plan(waiting, step_cost=(0.5, 0.0, 0.0))
    assert timed.seconds == pytest.approx(0.5 * timed.steps)


def test_a_target_in_time_needs_a_cost() -> None:
    with pytest.raises(ConfigError, match="itl_target_ms: is a time: a plan needs step_cost"):
        plan(waiting, itl_target_ms=50.0)
    assert plan(waiting, itl_target_ms=50.0, step_cost=(0.01, 0.001, 0.0)).calls == 2


def test_the_cost_of_a_step_in_text() -> None:
    assert parse_step_cost("0.01,2e-4,1e-8") == StepCost(0.01, 2e-4, 1e-8)
    for text in ("1", "a,b,c", "1,2", "-1,0,0", "nan,1,1", "0,0,0"):
        with pytest.raises(ConfigError, match="step_cost: must be FIXED,TOKEN,PAIR"):
            parse_step_cost(text)


@pytest.mark.parametrize(("name", "value"), [("output_tokens", 0), ("concurrency", -1), ("pools", (1,))])
def test_options_are_checked_by_name(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{name}: must be"):
        plan(waiting, **{name: value})


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(ConfigError, match="blocks: unknown option"):
        plan(waiting, blocks=3)
