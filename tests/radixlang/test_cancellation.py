"""Programs that are ended from outside: their calls are aborted, their holds released, and everybody who waits is told."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

import radixlang as rl
from radixlang import FakeBackend, ProgramState
from radixlang.backends.fake import FakeCall, Gate
from tests.radixlang import virtual_time

PREAMBLE = "word " * 100


def until(true: Callable[[], bool]) -> None:
    """Poll from a thread; a test that waits in vain fails."""
    for _ in range(2000):
        if true():
            return
        time.sleep(0.005)
    raise AssertionError("it never came true")


async def until_async(true: Callable[[], bool]) -> None:
    await asyncio.get_running_loop().run_in_executor(None, until, true)


def body(s: ProgramState) -> None:
    s += PREAMBLE
    forks = s.fork(3)
    forks += lambda number: f" {number}"
    forks += rl.gen("x") + rl.gen("y")
    forks.join()


async def async_body(s: ProgramState) -> None:
    body(s)
    await s.get("x")


def blocked() -> tuple[FakeBackend, Gate]:
    """A backend whose generations, but not its holds, wait at the gate."""
    gate = Gate()

    async def before(call: FakeCall) -> None:
        if call.kind == "gen":
            await gate(call)

    return FakeBackend(before=before), gate


@pytest.mark.parametrize("program", [rl.function(body), rl.function(async_body)], ids=["def", "async def"])
def test_cancelling_aborts_calls_and_releases_holds(program: rl.Program) -> None:
    backend, gate = blocked()

    async def main() -> None:
        task = asyncio.create_task(program.arun(backend=backend))
        await until_async(lambda: gate.waiting == 3)
        assert len(backend.held) == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [call.state for call in backend.of_kind("gen")] == ["aborted"] * 3
        assert backend.active == 0
        assert backend.held == {}

    asyncio.run(main())


@pytest.mark.parametrize("how", ["cancelled", "out of time"])
def test_a_call_that_takes_a_while_to_end_is_left_alone_meanwhile(how: str) -> None:
    """It closes a connection, say, which is how a server learns that the client is gone."""
    gate = Gate()
    ended: list[FakeCall] = []

    async def before(call: FakeCall) -> None:
        if call.kind == "gen":
            try:
                await gate(call)
            finally:
                for _ in range(9):
                    await asyncio.sleep(0)
                ended.append(call)

    backend = FakeBackend(before=before)

    async def main() -> None:
        program = rl.function(async_body)
        task = asyncio.create_task(program.arun(backend=backend, timeout=0.2 if how == "out of time" else None))
        await until_async(lambda: gate.waiting == 3)
        if how == "cancelled":
            task.cancel()
        with pytest.raises((asyncio.CancelledError, rl.TimedOut)):
            await task

    asyncio.run(main())
    assert len(ended) == 3


def test_cancelling_a_batch_ends_all_of_it() -> None:
    backend, gate = blocked()
    program = rl.function(async_body)

    async def main() -> None:
        task = asyncio.create_task(program.arun_batch([{}] * 5, concurrency=2, backend=backend))
        await until_async(lambda: gate.waiting == 6)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert {call.state for call in backend.of_kind("gen")} == {"aborted"}
        assert len(backend.of_kind("gen")) == 6
        assert backend.held == {}

    asyncio.run(main())


def test_a_body_on_a_thread_is_told() -> None:
    backend, gate = blocked()
    told: list[BaseException] = []

    @rl.function
    def program(s: ProgramState) -> None:
        s += "a" + rl.gen("x")
        try:
            s["x"]
        except rl.Stopped as error:
            told.append(error)
        with pytest.raises(rl.Stopped):
            s += "more"
        told.append(RuntimeError("reached"))

    async def main() -> None:
        task = asyncio.create_task(program.arun(backend=backend))
        await until_async(lambda: gate.waiting == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until_async(lambda: len(told) == 2)

    asyncio.run(main())


@pytest.mark.parametrize("program", [rl.function(body), rl.function(async_body)], ids=["def", "async def"])
@pytest.mark.parametrize("awaited", [False, True])
def test_a_timeout(program: rl.Program, awaited: bool) -> None:
    backend, _ = blocked()

    def run() -> ProgramState:
        if awaited:
            return asyncio.run(program.arun(backend=backend, timeout=0.2))
        return program.run(backend=backend, timeout=0.2)

    with pytest.raises(rl.TimedOut, match=r"0\.2 s"):
        run()
    assert {call.state for call in backend.calls} <= {"aborted", "done"}
    assert backend.active == 0
    assert backend.held == {}


def test_a_timeout_by_the_clock() -> None:
    backend, _ = blocked()

    async def main() -> float:
        with pytest.raises(rl.TimedOut, match="60 s"):
            await rl.function(async_body).arun(backend=backend, timeout=60)
        return virtual_time.now()

    assert virtual_time.run(main()) == pytest.approx(60)
    assert [call.state for call in backend.of_kind("gen")] == ["aborted"] * 3


def test_a_timeout_ends_a_body_that_waits_for_something_else() -> None:
    @rl.function
    async def program(s: ProgramState) -> None:
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        program.run(backend=FakeBackend(), timeout=0.05)


def test_a_body_that_goes_on_after_its_time_is_told_at_its_next_step() -> None:
    backend, gate = blocked()

    @rl.function
    def program(s: ProgramState) -> None:
        s += "a" + rl.gen("x")
        with pytest.raises(rl.TimedOut):
            s["x"]
        with pytest.raises(rl.TimedOut):
            s.fork(2)
        s.set_var("y", 1)

    with pytest.raises(rl.TimedOut):
        program.run(backend=backend, timeout=0.05)
    assert gate.waiting == 0


def test_a_body_that_fails_ends_its_calls() -> None:
    backend, gate = blocked()

    @rl.function
    def program(s: ProgramState) -> None:
        s += "a" + rl.gen("x")
        until(lambda: gate.waiting == 1)
        raise LookupError

    with pytest.raises(LookupError):
        program.run(backend=backend)
    assert backend.calls[0].state == "aborted"


def test_an_interrupt_in_a_synchronous_run() -> None:
    """What Ctrl-C raises in the body's thread ends the program."""
    backend, gate = blocked()

    @rl.function
    def program(s: ProgramState) -> None:
        s += "a" + rl.gen("x")
        until(lambda: gate.waiting == 1)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        program.run(backend=backend)
    assert backend.calls[0].state == "aborted"


def test_leaving_a_stream_stops_a_program_that_is_watched() -> None:
    backend = FakeBackend("one two three four five six seven", token_s=0.01)
    program = rl.function(lambda s: s.__iadd__("Say:" + rl.gen("x")))
    state = program.run(backend=backend, stream=True)
    for text in state.stream("x"):
        assert text.startswith("one")
        break
    until(lambda: backend.active == 0)
    assert backend.calls[0].state == "aborted"
    with pytest.raises(rl.Stopped, match="left before its end"):
        state["x"]
    with pytest.raises(rl.Stopped):
        state.sync()


def test_a_body_that_leaves_a_stream_goes_on() -> None:
    backend = FakeBackend("one two three four five six seven", token_s=0.002)

    @rl.function
    def program(s: ProgramState) -> None:
        s += "Say:" + rl.gen("x")
        for text in s.stream("x"):
            assert "one" in text
            break
        s += rl.gen("y")

    state = program.run(backend=backend, stream=True)
    assert state["x"] == "one two three four five six seven"
    state.sync()
    assert [call.state for call in backend.calls] == ["done", "done"]


def test_a_call_that_is_cancelled_from_elsewhere_fails_its_state_only() -> None:
    async def before(call: FakeCall) -> None:
        if "second" in call.text:
            raise asyncio.CancelledError

    @rl.function
    def program(s: ProgramState) -> None:
        forks = s.fork(2)
        forks += ["first", "second"]
        forks += rl.gen("x")
        with pytest.raises(rl.ProgramError, match="cancelled from elsewhere"):
            forks[1]["x"]
        assert forks[0]["x"]

    program.run(backend=FakeBackend(before=before))


def test_no_thread_per_state() -> None:
    @rl.function
    def program(s: ProgramState) -> int:
        s += "a"
        forks = s.fork(200)
        forks += lambda number: str(number)
        forks += rl.gen("x")
        forks.join()
        return threading.active_count()

    before = threading.active_count()
    assert program.run(backend=FakeBackend()).ret_value <= before + 1
