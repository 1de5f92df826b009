"""Failures: where they are told, what they leave alone, and that none is lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import radixlang as rl
from radixlang import FakeBackend, ProgramState
from radixlang.backends.scripts import Prompt


def fails(prompt: Prompt) -> str:
    """Fails where the prompt says so."""
    if "fail" in prompt.text:
        raise rl.Refused("prompt", "does not please")
    return " fine"


def test_a_failure_has_the_position_of_the_line_that_wrote_the_step() -> None:
    @rl.function
    def program(s: ProgramState) -> None:
        s += "please fail"
        s += rl.gen("x")
        s += "more" + rl.gen("y")

    with pytest.raises(rl.ProgramError, match="Refused: prompt: does not please") as caught:
        program.run(backend=FakeBackend(fails))
    error = caught.value
    first = program.body.__code__.co_firstlineno
    assert error.position.file == __file__
    assert (error.position.line - first, error.position.function) == (3, "program")
    assert error.variable == "x"
    assert isinstance(error.__cause__, rl.Refused)


def test_arguments_of_a_wrong_kind_are_refused_by_name() -> None:
    @rl.function
    def program(s: ProgramState, size: Any) -> None:
        s.fork(size)

    backend = FakeBackend()
    for size in (0, "2", 2.0, True):
        with pytest.raises(rl.InvalidProgram, match=r"^size: "):
            program.run(size, backend=backend)
    for options in (
        {"timeout": "5"},
        {"timeout": 0},
        {"max_tokens": "5"},
        {"n": 0},
        {"heal": "no"},
        {"hints": 1},
        {"backend": "smollm2"},
    ):
        with pytest.raises(rl.InvalidProgram, match=f"^{next(iter(options))}: "):
            program.run(1, **{"backend": backend, **options})


def test_reads_tell_the_failure_and_later_steps_are_not_done() -> None:
    backend = FakeBackend(fails)

    @rl.function
    def program(s: ProgramState) -> str:
        s += "fail" + rl.gen("x") + rl.gen("y")
        for read in (lambda: s["x"], lambda: s["y"], s.text, s.sync, s.messages, lambda: s.meta("y")):
            with pytest.raises(rl.ProgramError, match="does not please") as caught:
                read()
            assert caught.value.variable == "x"
        assert isinstance(s.error(), rl.ProgramError)
        s += rl.gen("z")
        with pytest.raises(rl.ProgramError):
            s["z"]
        return "handled"

    # The body was told, and went on.
    state = program.run(backend=backend)
    assert state.ret_value == "handled"
    assert isinstance(state.error(), rl.ProgramError)
    assert len(backend.calls) == 1


def test_a_failure_that_nobody_was_told_of_is_raised_at_the_end() -> None:
    @rl.function
    def main_fails(s: ProgramState) -> None:
        s += "fail" + rl.gen("x")

    @rl.function
    def branch_fails(s: ProgramState) -> None:
        forks = s.fork(2)
        forks += ["fine", "fail"]
        forks += rl.gen()

    for program in (main_fails, branch_fails):
        with pytest.raises(rl.ProgramError, match="does not please"):
            program.run(backend=FakeBackend(fails))
        with pytest.raises(rl.ProgramError, match="does not please"):
            asyncio.run(program.arun(backend=FakeBackend(fails)))


def test_a_failing_branch_leaves_the_others_alone() -> None:
    @rl.function
    def program(s: ProgramState) -> Any:
        s += "go"
        forks = s.fork(3)
        forks += [" a", " fail", " c"]
        forks += rl.gen("x")
        with pytest.raises(rl.ProgramError, match="does not please") as caught:
            forks.join()
        assert caught.value.variable == "x"
        assert (forks[0]["x"], forks[2]["x"]) == (" fine", " fine")
        assert forks[0].error() is None
        with pytest.raises(rl.ProgramError):
            s["x"]
        s += " on" + rl.gen("y")
        return s["y"]

    state = program.run(backend=FakeBackend(fails))
    assert state.ret_value == " fine"
    assert state.error() is None


def test_all_failures_of_a_join_are_told() -> None:
    @rl.function
    def program(s: ProgramState) -> None:
        forks = s.fork(3)
        forks += ["fail 1", "fail 2", "c"]
        forks += rl.gen("x")
        with pytest.raises(rl.ProgramError) as caught:
            forks.join()
        assert len(caught.value.__notes__) == 1

    program.run(backend=FakeBackend(fails))


def test_an_awaited_join_raises_and_one_that_is_not_shows_where_it_is_read() -> None:
    @rl.function
    async def awaited(s: ProgramState) -> None:
        forks = s.fork(2)
        forks += ["a", "fail"]
        forks += rl.gen("x")
        with pytest.raises(rl.ProgramError):
            await forks.join()

    @rl.function
    async def read(s: ProgramState) -> None:
        forks = s.fork(2)
        forks += ["a", "fail"]
        forks += rl.gen("x")
        forks.join()
        with pytest.raises(rl.ProgramError):
            await s.get("x")

    @rl.function
    async def neither(s: ProgramState) -> None:
        forks = s.fork(2)
        forks += ["a", "fail"]
        forks += rl.gen("x")
        forks.join()

    awaited.run(backend=FakeBackend(fails))
    read.run(backend=FakeBackend(fails))
    with pytest.raises(rl.ProgramError, match="does not please"):
        neither.run(backend=FakeBackend(fails))


def test_concatenation_fails_with_a_branch() -> None:
    @rl.function
    def program(s: ProgramState) -> None:
        forks = s.fork(2)
        forks += ["a", "fail"]
        forks += rl.gen("x")
        with pytest.raises(rl.ProgramError):
            forks.join("concatenate")
        with pytest.raises(rl.ProgramError) as caught:
            s.text()
        assert caught.value.variable == "x"

    program.run(backend=FakeBackend(fails))


def test_branches_of_a_failed_state_fail() -> None:
    @rl.function
    def program(s: ProgramState) -> None:
        s += "fail" + rl.gen("x")
        forks = s.fork(2)
        forks += rl.gen("y")
        with pytest.raises(rl.ProgramError):
            forks[1]["y"]
        with s.var_scope("scope"):
            s += "text"
        with pytest.raises(rl.ProgramError):
            s["scope"]

    program.run(backend=FakeBackend(fails))


def test_a_scope_around_a_failure_fails() -> None:
    @rl.function
    def program(s: ProgramState) -> None:
        with s.var_scope("scope"):
            s += "fail" + rl.gen("x")
        with pytest.raises(rl.ProgramError):
            s["scope"]

    program.run(backend=FakeBackend(fails))


def test_what_a_body_raises_comes_out_as_it_is() -> None:
    backend = FakeBackend(fails)

    @rl.function
    def program(s: ProgramState) -> None:
        s += "fine" + rl.gen("x")
        raise LookupError("of the body")

    @rl.function
    async def async_program(s: ProgramState) -> None:
        s += "fine" + rl.gen("x")
        raise LookupError("of the body")

    for failing in (program, async_program):
        with pytest.raises(LookupError, match="of the body"):
            failing.run(backend=backend)
        with pytest.raises(LookupError, match="of the body"):
            asyncio.run(failing.arun(backend=backend))


def test_the_loop_survives_a_body_that_wants_to_end_the_process() -> None:
    @rl.function
    async def leaves(s: ProgramState) -> None:
        raise SystemExit(3)

    @rl.function
    def leaves_too(s: ProgramState) -> None:
        raise SystemExit(3)

    with pytest.raises(rl.Stopped, match="SystemExit"):
        leaves.run(backend=FakeBackend())
    with pytest.raises(SystemExit):
        leaves_too.run(backend=FakeBackend())
    with pytest.raises(rl.Stopped, match="SystemExit"):
        asyncio.run(leaves_too.arun(backend=FakeBackend()))

    @rl.function
    def works(s: ProgramState) -> None:
        s += "a" + rl.gen("x")

    assert works.run(backend=FakeBackend(fails))["x"] == " fine"


def test_an_output_that_is_no_value_of_its_type() -> None:
    @rl.function
    def program(s: ProgramState) -> None:
        s += "a" + rl.gen("x", max_tokens=2, dtype=list[int])

    with pytest.raises(rl.ProgramError, match=r"UnreadableOutput.*max_tokens cut it off") as caught:
        program.run(backend=FakeBackend("[1, 2, 3, 4]"))
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_closed_backend() -> None:
    backend = FakeBackend()

    @rl.function
    def program(s: ProgramState) -> None:
        s += "a" + rl.gen("x")

    asyncio.run(backend.aclose())
    with pytest.raises(rl.ProgramError, match="BackendClosed"):
        program.run(backend=backend)
    assert backend.calls[0].state == "failed"
