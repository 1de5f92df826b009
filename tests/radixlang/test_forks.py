"""Branches: that they are independent, run concurrently, and come together."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

import radixlang as rl
from radixlang import FakeBackend, ProgramState
from radixlang.backends.fake import FakeCall, Gate
from radixlang.backends.scripts import Prompt


def echo(prompt: Prompt) -> str:
    return f" <{prompt.text.split()[-1]}>"


def test_branches_go_on_from_where_the_state_was() -> None:
    backend = FakeBackend(echo)

    @rl.function
    def program(s: ProgramState) -> None:
        s += "root" + rl.gen("a")
        forks = s.fork(2)
        s += " main"
        forks += lambda number: f" branch{number}"
        forks += rl.gen("b")
        s += rl.gen("c")
        assert [branch["a"] for branch in forks] == [" <root>"] * 2
        assert forks["b"] == [" <branch0>", " <branch1>"]
        assert [branch.text() for branch in forks] == [
            f"root <root> branch{number} <branch{number}>" for number in range(2)
        ]

    assert program.run(backend=backend).text() == "root <root> main <main>"


def test_fork_on_an_empty_prompt() -> None:
    @rl.function
    def program(s: ProgramState) -> None:
        forks = s.fork(3)
        forks += ["one", "two", "three"]
        forks += rl.gen("x")
        forks.join()
        s += "Then:" + "".join(s["x"]) + rl.gen("y")

    for bos in (False, True):
        backend = FakeBackend(echo, bos=bos)
        state = program.run(backend=backend)
        assert state.text() == "Then: <one> <two> <three> <<three>>"
        assert [call.prompt[0] == 1 for call in backend.of_kind("gen")] == [bos] * 4


def test_branches_of_an_empty_prompt_that_generate_at_once() -> None:
    backend = FakeBackend(lambda prompt: "new")

    @rl.function
    def program(s: ProgramState) -> None:
        with s.fork(2) as forks:
            forks += rl.gen("x")

    assert program.run(backend=backend)["x"] == ["new", "new"]


def test_nested_forks() -> None:
    backend = FakeBackend(echo)

    @rl.function
    def program(s: ProgramState) -> None:
        s += "0"
        with s.fork(2) as outer:
            for number, branch in enumerate(outer):
                branch += f" {number}"
                with branch.fork(2) as inner:
                    inner += [f" {number}a", f" {number}b"]
                    inner += rl.gen("leaf")
                branch += " then" + rl.gen("after")

    state = program.run(backend=backend)
    assert state["leaf"] == [[" <0a>", " <0b>"], [" <1a>", " <1b>"]]
    assert state["after"] == [" <then>"] * 2
    leaves = {"main.0.0", "main.0.1", "main.1.0", "main.1.1"}
    assert {line.name for line in state.report().branches} == leaves | {"main.0", "main.1"}


@pytest.mark.parametrize("hints", [False, True])
def test_forks_nested_deeper_than_pythons_stack(hints: bool) -> None:
    depth = sys.getrecursionlimit() + 100

    @rl.function
    def program(s: ProgramState) -> None:
        innermost = s
        for _ in range(depth):
            innermost = innermost.fork(2)[0]
        innermost += "leaf" + rl.gen("x")
        s.set_var("x", innermost["x"])

    assert program.run(backend=FakeBackend(echo), hints=hints)["x"] == " <leaf>"


def test_several_samples_inside_of_branches() -> None:
    backend = FakeBackend(lambda prompt: f" {prompt.text[-1]}{prompt.sample}")

    @rl.function
    def program(s: ProgramState) -> None:
        with s.fork(2) as forks:
            forks += ["a", "b"]
            forks += rl.gen("x", n=2) + "."

    state = program.run(backend=backend)
    assert state["x"] == [[" a0", " a1"], [" b0", " b1"]]


@pytest.mark.parametrize("style", ["def", "async def", "run in thread"])
def test_branches_run_concurrently(style: str) -> None:
    """Each call waits until all eight are there."""
    here = 0

    async def rendezvous(call: FakeCall) -> None:
        nonlocal here
        here += 1
        while here < 8:
            await asyncio.sleep(0)

    backend = FakeBackend(echo, before=rendezvous)

    def body(s: ProgramState) -> None:
        s += "start"
        forks = s.fork(8)
        forks += lambda number: f" {number}"
        forks += rl.gen("x")
        forks.join()

    async def async_body(s: ProgramState) -> None:
        body(s)
        await s.get("x")

    program = rl.function(async_body if style == "async def" else body)
    on_a_thread = style == "run in thread"
    state = asyncio.run(program.arun(backend=backend)) if on_a_thread else program.run(backend=backend)
    assert state["x"] == [f" <{number}>" for number in range(8)]
    assert backend.peak == 8


def test_concatenation() -> None:
    backend = FakeBackend(echo)

    @rl.function
    def program(s: ProgramState, mode: str) -> None:
        s += "root" + rl.gen("a")
        forks = s.fork(2)
        forks += [" one", " two"]
        forks += rl.gen("x")
        forks.join(mode)
        s += " end" + rl.gen("b")
        assert "x" not in s

    state = program.run("concatenate", backend=backend)
    assert state.text() == "root <root> one <one> two <two> end <end>"
    # The first branch's tokens stay what they were, so its cache is hit to the last of them.
    last, branch = backend.calls[-1], next(call for call in backend.calls if call.text.endswith("one"))
    assert branch.output is not None
    sample = branch.output.samples[0]
    known = branch.prompt[: len(branch.prompt) - branch.output.healed] + sample.token_ids[: sample.kept]
    assert last.prompt[: len(known)] == known
    assert program.run("concate_and_append", backend=backend).text() == state.text()


def test_concatenation_of_messages() -> None:
    backend = FakeBackend("Yes.")

    @rl.function
    def program(s: ProgramState) -> None:
        s += rl.system("S")
        forks = s.fork(2)
        forks += lambda number: rl.user(f"Q{number}") + rl.assistant(rl.gen("x"))
        forks.join("concatenate")
        s += rl.user("Q2")

    state = program.run(backend=backend)
    assert [message["content"] for message in state.messages()] == ["S", "Q0", "Yes.", "Q1", "Yes.", "Q2"]


def test_a_branch_that_ends_inside_a_message_cannot_be_concatenated() -> None:
    @rl.function
    def program(s: ProgramState) -> None:
        forks = s.fork(1)
        forks += rl.user_begin()
        forks.join("concatenate")
        s.sync()

    with pytest.raises(rl.ProgramError, match="inside another message"):
        program.run(backend=FakeBackend())


def test_branches_inside_of_a_message() -> None:
    backend = FakeBackend(" said")

    @rl.function
    def program(s: ProgramState) -> None:
        with s.assistant():
            s += "I"
            forks = s.fork(2)
            forks += [" first", " second"]
            forks += rl.gen("x")
            forks.join("concatenate")

    assert program.run(backend=backend).messages() == [{"role": "assistant", "content": "I first said second said"}]


def test_a_gathered_variable_has_the_values_in_the_order_of_branches() -> None:
    gate = Gate()

    async def before(call: FakeCall) -> None:
        if call.text.endswith("0"):
            await gate(call)

    backend = FakeBackend(echo, before=before)

    @rl.function
    def program(s: ProgramState) -> None:
        s.set_var("kept", "mine")
        forks = s.fork(3)
        for number, branch in enumerate(forks):
            branch += f"b{number}" + rl.gen("x")
            branch.set_var("set", number)
            if number:
                branch += rl.gen("some")
        assert forks[2]["x"] == " <b2>"
        gate.open()
        forks.join()
        assert s["x"] == [" <b0>", " <b1>", " <b2>"]
        assert s["set"] == [0, 1, 2]
        assert s["kept"] == "mine"
        assert len(s["some"]) == 2
        assert [meta["prompt_tokens"] for meta in s.meta("x")] == [1, 1, 1]

    program.run(backend=backend)


def test_a_name_that_every_round_of_branches_uses_has_the_last_rounds_values() -> None:
    @rl.function
    def program(s: ProgramState) -> list[Any]:
        rounds = []
        for number in range(3):
            with s.fork(2) as forks:
                forks += [f"{number}a", f"{number}b"]
                forks += rl.gen("x")
            rounds.append(s["x"])
        return rounds

    state = program.run(backend=FakeBackend(echo))
    assert state.ret_value == [[f" <{number}a>", f" <{number}b>"] for number in range(3)]


def test_joined_branches_are_for_reading() -> None:
    @rl.function
    def program(s: ProgramState) -> None:
        with s.fork(2) as forks:
            forks += "a" + rl.gen("x")
        assert len(forks) == 2
        assert [branch["x"] for branch in forks] == s["x"]
        assert forks[0].text().startswith("a")
        assert len(forks[:1]) == 1
        with pytest.raises(rl.InvalidProgram, match="joined"):
            forks += "b"
        with pytest.raises(rl.InvalidProgram, match="joined"):
            forks[0].fork(2)
        with pytest.raises(rl.InvalidProgram, match="joined before"):
            forks.join()

    program.run(backend=FakeBackend())


def test_how_a_group_is_written_to() -> None:
    @rl.function
    def program(s: ProgramState) -> None:
        forks = s.fork(2)
        forks[0] += "zero"
        with pytest.raises(rl.InvalidProgram, match="1 parts for 2 branches"):
            forks += ["x"]
        with pytest.raises(rl.InvalidProgram, match="cannot be replaced"):
            forks[0] = s
        with pytest.raises(rl.InvalidProgram, match="gather_variable"):
            forks.join("merge")
        assert forks[0].text() == "zero"
        assert forks[1].text() == ""

    program.run(backend=FakeBackend())


def test_copy_is_one_branch() -> None:
    backend = FakeBackend(echo)

    @rl.function
    def program(s: ProgramState) -> None:
        s += "root"
        with s.copy() as aside:
            aside += " aside" + rl.gen("x")
        s += rl.gen("y")

    state = program.run(backend=backend)
    assert state["x"] == [" <aside>"]
    assert state.text() == "root <root>"


def test_an_awaited_join() -> None:
    backend = FakeBackend(echo)

    @rl.function
    async def program(s: ProgramState) -> Any:
        s += "root"
        async with s.fork(2) as forks:
            forks += [" a", " b"]
            forks += rl.gen("x")
        # Everything is there now, so it may be read without waiting.
        assert s["x"] == await s.get("x") == await forks.get("x")
        later = s.fork(2)
        later += rl.gen("y")
        with later:
            pass
        # Not awaited: what follows still comes after the branches.
        s += "".join(await s.get("y"))
        return await s.get("y")

    state = program.run(backend=backend)
    assert state.ret_value == [" <root>"] * 2
    assert state.text() == "root <root> <root>"


def test_hints_change_nothing_but_what_is_told() -> None:
    preamble = "word " * 200

    @rl.function
    def program(s: ProgramState) -> None:
        s += preamble
        forks = s.fork(3)
        forks += lambda number: f" {number}"
        forks += rl.gen("x", n=2)
        forks.join()
        s += " so" + rl.gen("y") + rl.select("z", ["a", "b"])

    def run(hints: bool) -> tuple[FakeBackend, ProgramState]:
        backend = FakeBackend()
        return backend, program.run(backend=backend, hints=hints, temperature=0.7, seed=1)

    (with_backend, with_hints), (without_backend, without) = run(True), run(False)
    assert [with_hints[name] for name in "xyz"] == [without[name] for name in "xyz"]
    assert with_hints.text() == without.text()
    assert len(with_backend.of_kind("hold")) == 1
    assert len(without_backend.of_kind("hold")) == 0
    assert [call.kind for call in with_backend.calls][:2] == ["hold", "gen"]
    assert with_backend.held == {}
    assert len(with_backend.released) == 1
    assert with_hints.report().total.computed == without.report().total.computed
