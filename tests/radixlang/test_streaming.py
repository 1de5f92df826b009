"""Text while it is made: inside of bodies, and for those who watch a program."""

from __future__ import annotations

import asyncio
import importlib
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

import radixlang as rl
from radixlang import FakeBackend, ProgramState
from radixlang.backends.scripts import Prompt

ANSWERS = {"Say:$": "one two three", "Again:$": "four five"}
WHOLE = "Say:one two three Again:four five"


@rl.function
def program(s: ProgramState) -> str:
    s += "Say:" + rl.gen("x")
    s += " Again:" + rl.gen("y")
    return "ret"


@rl.function
async def async_program(s: ProgramState) -> str:
    program(s)
    return "ret"


@pytest.mark.parametrize("watched", [program, async_program], ids=["def", "async def"])
def test_watching_a_program(watched: rl.Program) -> None:
    backend = FakeBackend(ANSWERS, token_s=0.001)
    state = watched.run(backend=backend, stream=True)
    # The body may not have come there yet.
    assert len(pieces := list(state.stream("y"))) > 1
    assert "".join(pieces) == state["y"] == "four five"
    assert "".join(state.text_iter()) == WHOLE
    state.sync()
    assert (state.text(), state.ret_value) == (WHOLE, "ret")
    with pytest.raises(rl.UnknownVariable):
        state["z"]


@pytest.mark.parametrize("watched", [program, async_program], ids=["def", "async def"])
def test_watching_a_program_on_the_callers_loop(watched: rl.Program) -> None:
    async def main() -> ProgramState:
        state = await watched.arun(backend=FakeBackend(ANSWERS, token_s=0.001), stream=True)
        assert "".join([text async for text in state.text_async_iter()]) == WHOLE
        assert len([text async for text in state.astream("x")]) > 1
        await state.wait()
        return state

    state = asyncio.run(main())
    # The loop is gone, what it made is not.
    assert state["x"] == "".join(state.stream("x")) == "one two three"
    assert state.text() == WHOLE


def test_watching_from_another_loop() -> None:
    """SGLang's way: started synchronously, iterated asynchronously."""
    state = program.run(backend=FakeBackend(ANSWERS, token_s=0.001), stream=True)

    async def main() -> None:
        assert "".join([text async for text in state.text_async_iter("y")]) == "four five"
        assert await state.get("x") == "one two three"
        assert (await state.get_meta("x"))["finish_reason"]["type"] == "stop"
        await state.wait()
        assert state.text() == WHOLE

    asyncio.run(main())


def test_a_watched_state_is_for_reading() -> None:
    state = program.run(backend=FakeBackend(ANSWERS), stream=True)
    for write in (lambda: state.__iadd__("more"), lambda: state.fork(2), lambda: state.set_var("z", 1)):
        with pytest.raises(rl.InvalidProgram, match="watched"):
            write()
    state.sync()
    assert state.text() == WHOLE


def test_threads_of_a_body_are_no_watchers() -> None:
    """They read what is there, and do not wait for the end of the program that waits for them."""

    @rl.function
    def uses_threads(s: ProgramState) -> list[str]:
        s += "Say:" + rl.gen("x")
        with ThreadPoolExecutor(2) as threads:
            texts = [threads.submit(s.text), threads.submit(lambda: s["x"])]
            return [text.result() for text in texts]

    state = uses_threads.run(backend=FakeBackend(ANSWERS), stream=True)
    state.sync()
    assert state.ret_value == ["Say:one two three", "one two three"]


def test_streams_in_bodies() -> None:
    backend = FakeBackend(ANSWERS, token_s=0.001)

    @rl.function
    def reads(s: ProgramState) -> list[str]:
        s += "Say:" + rl.gen("x")
        return list(s.stream("x"))

    @rl.function
    async def reads_async(s: ProgramState) -> list[str]:
        s += "Say:" + rl.gen("x")
        return [text async for text in s.astream("x")]

    for reader in (reads, reads_async):
        pieces = reader.run(backend=backend).ret_value
        assert len(pieces) > 1
        assert "".join(pieces) == "one two three"


def test_a_batch_has_the_same_text_in_one_piece() -> None:
    @rl.function
    def reads(s: ProgramState) -> list[str]:
        s += "Say:" + rl.gen("x")
        return list(s.stream("x"))

    (state,) = reads.run_batch([{}], backend=FakeBackend(ANSWERS))
    assert state.ret_value == ["one two three"]


def test_streams_of_branches_begin_with_what_they_were_forked_from() -> None:
    @rl.function
    def forks(s: ProgramState) -> None:
        s += "Say:" + rl.gen("x")
        branches = s.fork(2)
        branches += " Again:" + rl.gen("y")
        branches.join("concatenate")
        assert ["".join(branch.stream()) for branch in branches] == [WHOLE] * 2

    state = forks.run(backend=FakeBackend(ANSWERS))
    assert "".join(state.stream()) == state.text() == WHOLE + " Again:four five"


def test_the_stream_of_several_samples_is_that_of_the_first() -> None:
    def script(prompt: Prompt) -> str:
        return f"sample number {prompt.sample}"

    @rl.function
    def samples(s: ProgramState) -> None:
        s += "a" + rl.gen("x", n=2) + rl.select("y", ["b"])
        assert "".join(s.stream("x")) == "sample number 0"
        assert list(s.stream("y")) == ["b"]

    state = samples.run(backend=FakeBackend(script))
    assert "".join(state.stream()) == "asample number 0b"


def test_a_stream_ends_with_the_failure() -> None:
    def script(prompt: Prompt) -> str:
        if prompt.number:
            raise rl.Refused("prompt", "does not please")
        return "one"

    for name in ("y", None):
        state = program.run(backend=FakeBackend(script), stream=True)
        with pytest.raises(rl.ProgramError, match="does not please"):
            list(state.stream(name))


def test_a_watched_body_that_fails_tells_its_watchers() -> None:
    @rl.function
    def fails(s: ProgramState) -> None:
        s += "Say:" + rl.gen("x")
        raise LookupError("of the body")

    state = fails.run(backend=FakeBackend(ANSWERS), stream=True)
    with pytest.raises(LookupError, match="of the body"):
        state["never"]
    with pytest.raises(LookupError, match="of the body"):
        state.sync()
    assert isinstance(state.error(), LookupError)


def test_a_body_reads_all_text_so_far() -> None:
    """Its own state ends with the body: a stream of everything must not wait for that."""
    backend = FakeBackend(ANSWERS, token_s=0.001)

    @rl.function
    def reads(s: ProgramState) -> tuple[str, str]:
        s += "Say:" + rl.gen("x")
        first = "".join(s.stream())
        s += " Again:" + rl.gen("y")
        return first, "".join(s.text_iter())

    @rl.function
    async def reads_async(s: ProgramState) -> tuple[str, str]:
        s += "Say:" + rl.gen("x")
        first = "".join([text async for text in s.astream()])
        s += " Again:" + rl.gen("y")
        return first, "".join([text async for text in s.text_async_iter()])

    for reader in (reads, reads_async):
        assert reader.run(backend=backend).ret_value == ("Say:one two three", WHOLE)
        assert reader.run_batch([{}], backend=backend)[0].ret_value == ("Say:one two three", WHOLE)


def test_a_branch_is_read_from_before_it_begins() -> None:
    @rl.function
    async def reads(s: ProgramState) -> str:
        s += "Say:" + rl.gen("x")
        (branch,) = s.fork(1)
        branch += " Again:" + rl.gen("y")
        return "".join([text async for text in branch.astream()])

    assert reads.run(backend=FakeBackend(ANSWERS)).ret_value == WHOLE


def test_reading_a_failed_state_ends() -> None:
    def script(prompt: Prompt) -> str:
        raise rl.Refused("prompt", "does not please")

    @rl.function
    def reads(s: ProgramState) -> str:
        s += "Say:" + rl.gen("x") + " more"
        texts: list[str] = []
        with pytest.raises(rl.ProgramError):
            texts.extend(s.stream())
        return "".join(texts)

    assert reads.run(backend=FakeBackend(script)).ret_value == "Say:"


def test_bodies_that_watch_programs_need_no_second_place_among_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many bodies run: here the one thread that there is is taken by the one that watches."""
    backend = FakeBackend(ANSWERS)
    watched: list[ProgramState] = []

    @rl.function
    def watching(s: ProgramState) -> str:
        watched.append(program.run(backend=backend, stream=True))
        return "".join(watched[0].stream("x"))

    async def main() -> str:
        try:
            async with asyncio.timeout(10):
                state = await watching.arun(backend=backend)
            return str(state.ret_value)
        finally:
            # Sets the thread free where the test fails.
            holder = watched[0]._run.holder
            assert isinstance(holder, Future)
            holder.cancel()

    with ThreadPoolExecutor(1) as threads:
        monkeypatch.setattr(importlib.import_module("radixlang.function"), "body_threads", lambda: threads)
        assert asyncio.run(main()) == "one two three"
