"""Reading while a program goes on: that it waits for all that was written before it, each time."""

from __future__ import annotations

import asyncio

import radixlang as rl
from radixlang import FakeBackend, ProgramState
from radixlang.backends.scripts import Prompt

TURNS = 6


def count(prompt: Prompt) -> str:
    return f" <{prompt.text.count('<')}>"


def expected(turns: int) -> str:
    return "".join(f"{turn} <{turn}>" for turn in range(turns))


def test_every_reading_of_the_text_waits_for_what_was_written_before_it() -> None:
    @rl.function
    def program(s: ProgramState) -> None:
        for turn in range(TURNS):
            s += f"{turn}" + rl.gen()
            assert s.text() == expected(turn + 1)

    program.run(backend=FakeBackend(count, token_s=0.001), heal=False)


def test_the_same_awaited() -> None:
    @rl.function
    async def program(s: ProgramState) -> None:
        for turn in range(TURNS):
            s += f"{turn}" + rl.gen()
            await s.wait()
            assert s.text() == expected(turn + 1)

    asyncio.run(program.arun(backend=FakeBackend(count, token_s=0.001), heal=False))


def test_waiting_often_is_no_step() -> None:
    """Nor are streams of the whole text and errors that are asked for, which wait as well."""

    @rl.function
    def program(s: ProgramState) -> None:
        s += "0" + rl.gen()
        for _ in range(5):
            s.sync()
            assert s.error() is None
            assert "".join(s.stream()) == expected(1)
        s += "1" + rl.gen()
        assert s.text() == expected(2)

    program.run(backend=FakeBackend(count, token_s=0.001), heal=False)
