"""Programs with hints and without: the same results, nothing held at the end, and an account that adds up."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from typing import Any

import pytest

import radixlang as rl
from radixlang import FakeBackend, ProgramState
from radixlang.backends.base import Text
from radixlang.backends.fake import FakeCall, Gate
from radixlang.backends.scripts import Prompt
from radixlang.errors import BackendError

LONG = " ".join(f"word{number}" for number in range(80))
LONGER = " ".join(f"other{number}" for number in range(80))


def hashed(prompt: Prompt) -> str:
    """An answer that depends on everything before it."""
    return f" {hashlib.sha256(f'{prompt.sample} {prompt.text}'.encode()).hexdigest()[:8]}"


@rl.function
def tree(s: ProgramState, question: str = "why") -> None:
    s += LONG + question + rl.gen("plan", max_tokens=20)
    outer = s.fork(3)
    for number, branch in enumerate(outer):
        branch += f" step {number}: {LONGER}" + rl.gen("step", max_tokens=10 * number + 10)
        inner = branch.fork(2)
        inner += rl.gen("detail", n=2)
        inner += " so " + rl.select("verdict", ["yes", "no", "yes indeed"])
        inner.join()
        branch += " after " + rl.gen("after")
    outer.join("concatenate")
    s += " in all" + rl.gen("end")


@rl.function
def unjoined(s: ProgramState, question: str = "why") -> None:
    s += LONG + question
    forks = s.fork(4)
    forks += lambda number: f" {number}"
    forks += rl.gen("x")
    s += "".join(forks["x"]) + rl.gen("y")


@rl.function
def failing(s: ProgramState, question: str = "why") -> None:
    s += LONG + question
    forks = s.fork(3)
    forks[0] += rl.gen("x", regex="[0-9]+")
    forks[1] += rl.gen("x", dtype=int)
    forks[2] += rl.gen("x")
    s["kept"] = forks[2]["x"]
    s += rl.gen("y")


def outcome(state: ProgramState) -> tuple[Any, ...]:
    error = state.error()
    return (
        None if error is None else str(error),
        None if error is not None else state.text(),
        {name: state[name] for name in state.variables if error is None},
    )


def prompts(backend: FakeBackend, kind: Any = "gen") -> list[tuple[int, ...]]:
    return sorted(call.prompt for call in backend.of_kind(kind))


@pytest.mark.parametrize("program", [tree, unjoined, failing])
@pytest.mark.parametrize(("quota", "broken"), [(None, False), (0, False), (30, False), (None, True)])
def test_results_are_the_same_with_hints_and_without(program: rl.Program, quota: int | None, broken: bool) -> None:
    async def before(call: FakeCall) -> None:
        if broken and call.kind == "hold":
            raise BackendError("no holds here")

    hinted, plain = FakeBackend(hashed, hold_quota=quota, before=before), FakeBackend(hashed)
    states = [
        program.run_batch([{}], backend=backend, hints=backend is hinted, errors="keep")[0]
        for backend in (hinted, plain)
    ]
    assert outcome(states[0]) == outcome(states[1])
    assert prompts(hinted) == prompts(plain)
    assert prompts(hinted, "score") == prompts(plain, "score")
    assert hinted.of_kind("hold")
    assert not plain.of_kind("hold")
    assert hinted.held == {}


def test_a_fork_is_held_before_its_branches_call_and_after_nothing_is() -> None:
    backend = FakeBackend(hashed)
    unjoined.run(backend=backend)
    assert [call.kind for call in backend.calls] == ["hold"] + ["gen"] * 5
    (hold,) = backend.of_kind("hold")
    assert all(call.prompt[: len(hold.prompt)] == hold.prompt for call in backend.of_kind("gen"))
    assert backend.held == {}


@pytest.mark.parametrize("hints", [True, False])
@pytest.mark.parametrize("program", [tree, unjoined])
def test_on_a_cache_without_end_a_program_reaches_the_optimum(program: rl.Program, hints: bool) -> None:
    report = program.run(backend=FakeBackend(hashed), hints=hints, heal=False).report()
    assert report.share is not None
    assert report.reused == report.reusable
    assert report.share == 1.0


def test_a_batch_holds_what_its_programs_begin_with() -> None:
    backend, plain = FakeBackend(hashed), FakeBackend(hashed)
    items = [{"question": f"question {number}"} for number in range(12)]
    hinted = unjoined.run_batch(items, backend=backend, concurrency=5)
    assert [outcome(state) for state in hinted] == [
        outcome(state) for state in unjoined.run_batch(items, backend=plain, concurrency=5, hints=False)
    ]
    assert backend.held == {}
    shared = backend.tokenizer.encode([Text(LONG + "question ", "free")], bos=False)
    lengths = sorted(len(call.prompt) for call in backend.of_kind("hold"))
    assert any(abs(length - len(shared)) <= 2 for length in lengths)


@pytest.mark.parametrize("kind", ["hold", "gen"])
def test_a_cancelled_program_leaves_nothing_held(kind: str) -> None:
    gate = Gate()

    async def before(call: FakeCall) -> None:
        if call.kind == kind:
            await gate(call)

    async def main() -> FakeBackend:
        backend = FakeBackend(hashed, before=before)
        running = asyncio.create_task(unjoined.arun(backend=backend))
        while not gate.waiting:
            await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        return backend

    backend = asyncio.run(main())
    assert backend.of_kind("hold")
    assert backend.held == {}
    assert backend.active == 0


def test_priorities_let_begun_programs_and_long_branches_go_first() -> None:
    backend = FakeBackend(hashed)

    @rl.function
    def program(s: ProgramState) -> None:
        s += "start" + rl.gen("a", max_tokens=16)
        forks = s.fork(2)
        forks[0] += rl.gen("b", max_tokens=16) + " and " + rl.gen("c", max_tokens=240)
        forks[1] += rl.gen("d", max_tokens=16)

    program.run(backend=backend)

    def priority(name: str) -> Sequence[int]:
        return [call.priority for call in backend.calls if call.call is not None and call.call.tag.endswith(f":{name}")]

    (first,), (longest,), (rest,), (short,) = (priority(name) for name in "abcd")
    assert first < 8 <= short < longest
    assert 8 <= rest <= 15
