"""Many programs at once: in order, bounded, with their errors."""

from __future__ import annotations

import asyncio
import io
from typing import Any

import pytest

import radixlang as rl
from radixlang import FakeBackend, ProgramState
from radixlang.backends.fake import FakeCall
from radixlang.backends.scripts import Prompt
from tests.radixlang import virtual_time


def echo(prompt: Prompt) -> str:
    if prompt.text.endswith("bad"):
        raise rl.Refused("prompt", "does not please")
    return f" <{prompt.text.split()[-1]}>"


@rl.function
def program(s: ProgramState, word: str) -> str:
    s += "say " + word + rl.gen("x")
    return str(s["x"])


@rl.function
async def async_program(s: ProgramState, word: str) -> str:
    s += "say " + word + rl.gen("x")
    return str(await s.get("x"))


BOTH = pytest.mark.parametrize("either", [program, async_program], ids=["def", "async def"])


@BOTH
def test_a_thousand(either: rl.Program) -> None:
    words = [f"w{number}" for number in range(1000)]
    backend = FakeBackend(echo)
    states = either.run_batch([{"word": word} for word in words], backend=backend)
    assert [state["x"] for state in states] == [state.ret_value for state in states] == [f" <{word}>" for word in words]
    assert 1 < backend.peak <= 128
    assert backend.active == 0


@BOTH
def test_a_thousand_on_the_callers_loop(either: rl.Program) -> None:
    states = asyncio.run(either.arun_batch([(f"w{number}",) for number in range(1000)], backend=FakeBackend(echo)))
    assert [state["x"] for state in states] == [f" <w{number}>" for number in range(1000)]


@BOTH
@pytest.mark.parametrize("option", ["concurrency", "num_threads"])
def test_concurrency_is_bounded(either: rl.Program, option: str) -> None:
    backend = FakeBackend(echo, token_s=0.001)
    options: dict[str, Any] = {option: 3}
    either.run_batch([{"word": str(number)} for number in range(12)], backend=backend, **options)
    assert backend.peak == 3


@BOTH
def test_results_are_in_order_whatever_ends_first(either: rl.Program) -> None:
    async def before(call: FakeCall) -> None:
        # The later the item, the sooner it ends.
        for _ in range(400 - 20 * int(call.text.split()[-1])):
            await asyncio.sleep(0)

    backend = FakeBackend(echo, before=before)
    states = either.run_batch([(str(number),) for number in range(20)], backend=backend)
    assert [state["x"] for state in states] == [f" <{number}>" for number in range(20)]


@BOTH
def test_generator_style(either: rl.Program) -> None:
    batch = either.run_batch([(str(number),) for number in range(5)], backend=FakeBackend(echo), generator_style=True)
    assert [state["x"] for state in batch] == [f" <{number}>" for number in range(5)]


def test_leaving_a_generator_ends_the_rest() -> None:
    backend = FakeBackend(echo, token_s=0.002)
    items = [(str(number),) for number in range(50)]
    for state in program.run_batch(items, backend=backend, generator_style=True, concurrency=1):
        assert state["x"] == " <0>"
        break
    # The background loop is one: after this nothing of the batch can be left.
    program.run("last", backend=backend)
    assert len(backend.calls) < 50
    assert backend.active == 0


@BOTH
def test_the_first_error_ends_a_batch(either: rl.Program) -> None:
    backend = FakeBackend(echo)
    items = [("a",), ("bad",), *[("c",)] * 50]
    with pytest.raises(rl.ProgramError, match="does not please") as caught:
        either.run_batch(items, backend=backend, concurrency=2)
    assert caught.value.__notes__ == ["item 1 of the batch"]
    assert len(backend.calls) < 20
    with pytest.raises(rl.ProgramError, match="does not please"):
        list(either.run_batch(items, backend=backend, concurrency=2, generator_style=True))
    with pytest.raises(rl.ProgramError, match="does not please"):
        asyncio.run(either.arun_batch(items, backend=backend, concurrency=2))


@BOTH
def test_errors_may_be_kept(either: rl.Program) -> None:
    states = either.run_batch([("a",), ("bad",), ("c",)], backend=FakeBackend(echo), errors="keep")
    assert [type(state.error()) for state in states] == [type(None), rl.ProgramError, type(None)]
    assert (states[0]["x"], states[2]["x"]) == (" <a>", " <c>")
    with pytest.raises(rl.ProgramError):
        states[1]["x"]


def test_errors_of_bodies_are_kept_too() -> None:
    @rl.function
    def fails(s: ProgramState, number: int) -> None:
        s += "a" + rl.gen("x")
        if number == 1:
            raise LookupError("of the body")

    states = fails.run_batch([(0,), (1,)], backend=FakeBackend("y"), errors="keep")
    assert states[0].error() is None
    assert isinstance(states[1].error(), LookupError)


def test_each_program_has_its_own_time() -> None:
    async def before(call: FakeCall) -> None:
        if call.text.endswith("slow"):
            await asyncio.Event().wait()

    backend = FakeBackend(echo, before=before)
    words = ["a", "slow", "c", "slow", "e"]
    states = virtual_time.run(
        async_program.arun_batch([(word,) for word in words], backend=backend, errors="keep", timeout=60, concurrency=2)
    )
    assert [isinstance(state.error(), rl.TimedOut) for state in states] == [word == "slow" for word in words]


def test_empty_batches() -> None:
    backend = FakeBackend(echo)
    assert program.run_batch([], backend=backend) == []
    assert list(program.run_batch([], backend=backend, generator_style=True)) == []
    assert asyncio.run(async_program.arun_batch([], backend=backend)) == []


def test_common_arguments_and_options() -> None:
    backend = FakeBackend(echo)

    @rl.function
    def two(s: ProgramState, word: str, end: str) -> None:
        s += word + end + rl.gen("x")

    states = two.run_batch([{"word": "a"}, {"word": "b", "end": "?"}], end="!", max_tokens=5, backend=backend)
    assert [state.text()[:2] for state in states] == ["a!", "b?"]
    assert {call.call.sampling.max_tokens for call in backend.calls if call.call is not None} == {5}


def test_what_is_wrong_is_told_before_anything_runs() -> None:
    backend = FakeBackend(echo)
    with pytest.raises(TypeError, match=r"item 1 of the batch: program.*word"):
        program.run_batch([("a",), {}], backend=backend)
    with pytest.raises(rl.InvalidProgram, match="item 0"):
        program.run_batch(["text"], backend=backend)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"concurrency": 0}, "concurrency"),
        ({"num_threads": "many"}, "num_threads"),
        ({"num_threads": 1, "concurrency": 1}, "num_threads"),
        ({"errors": "ignore"}, "errors"),
        ({"stream": True}, "stream"),
    ]
    for options, what in wrong:
        with pytest.raises(rl.InvalidProgram, match=what):
            program.run_batch([("a",)], backend=backend, **options)
    assert backend.calls == []


def test_the_progress_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    monkeypatch.setattr("sys.stderr", written)
    program.run_batch([(str(number),) for number in range(4)], backend=FakeBackend(echo), progress_bar=True)
    pictures = written.getvalue().split("\r")
    assert "0/4" in pictures[1]
    assert "4/4" in pictures[-1]
    assert pictures[-1].endswith("\n")
    program.run_batch([], backend=FakeBackend(echo), progress_bar=True)


def test_programs_of_a_batch_share_hints() -> None:
    """What they all begin with is held once, and let go at the end."""
    preamble = "word " * 100

    @rl.function
    def shares(s: ProgramState, word: str) -> None:
        s += preamble + word + rl.gen("x")

    backend = FakeBackend()
    shares.run_batch([(f"w{number}",) for number in range(8)], backend=backend)
    holds = backend.of_kind("hold")
    assert 1 <= len(holds) <= 2
    assert backend.held == {}
    quiet = FakeBackend()
    shares.run_batch([(f"w{number}",) for number in range(8)], backend=quiet, hints=False)
    assert quiet.of_kind("hold") == []
    texts = [
        {call.text: call.output.samples[0].text for call in one.of_kind("gen") if call.output}
        for one in (backend, quiet)
    ]
    assert texts[0] == texts[1]
