"""Programs on a real engine, in this process and behind a server: the same results, and nothing left running or held."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

import radixlang as rl
from radixlang import EngineBackend, ProgramState, RuntimeEndpoint
from radixserve import Engine
from tests.chat.models import byte_level
from tests.chat.templates import CHATML
from tests.radixlang.backends.models import Served, model_of, served

PREAMBLE = "hello " * 40


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(model_of(byte_level(("<s>", "<|im_start|>", "<|im_end|>")), CHATML)) as made:
        yield made


@pytest.fixture(params=["engine", "http"])
def backend(request: pytest.FixtureRequest, server: Served) -> EngineBackend | RuntimeEndpoint:
    return EngineBackend(server.engine) if request.param == "engine" else RuntimeEndpoint(server.url)


@rl.function
def everything(s: ProgramState, question: str) -> None:
    """Messages, healing, stops, types, choices, nested forks and several samples."""
    s += rl.system(PREAMBLE)
    s += rl.user(question) + rl.assistant("hel" + rl.gen("answer", max_tokens=6))
    s += "free" + rl.gen("number", max_tokens=4, dtype=int) + rl.gen("stopped", max_tokens=8, stop=["e", "a"])
    outer = s.fork(2)
    for number, branch in enumerate(outer):
        branch += f" hello {number}" + rl.gen("step", max_tokens=5)
        inner = branch.fork(2)
        inner += lambda leaf: f" leaf {leaf}"
        inner += rl.gen("samples", n=2, max_tokens=4)
        inner.join()
        branch += " so" + rl.select("choice", [" he", " hello", " no"])
    outer.join()
    s += " end" + rl.gen("last", max_tokens=4)


NAMES = ("answer", "number", "stopped", "step", "samples", "choice", "last")


def results(state: ProgramState) -> tuple[object, ...]:
    scores = [meta["scores"] for meta in state.meta("choice")]
    return ([state[name] for name in NAMES], state.text(), state.messages(), scores)


def idle(engine: Engine) -> bool:
    for _ in range(2000):
        stats = engine.cache_stats()
        if not stats["running"] and not stats["waiting"]:
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"temperature": 0.8, "seed": 7}], ids=["greedy", "seeded"])
def test_results_are_the_same_on_both_backends_with_hints_and_without(
    server: Served, sampling: dict[str, float | int]
) -> None:
    runs = [
        everything.run("hello?", backend=backend, hints=hints, **sampling)
        for backend in (EngineBackend(server.engine), RuntimeEndpoint(server.url))
        for hints in (True, False)
    ]
    first = results(runs[0])
    assert all(results(run) == first for run in runs[1:])
    step = runs[0]["step"]
    assert len(step) == 2 and len(runs[0]["samples"][0][0]) == 2
    assert idle(server.engine)


def test_a_fork_of_an_empty_prompt(backend: EngineBackend | RuntimeEndpoint) -> None:
    @rl.function
    def program(s: ProgramState) -> None:
        with s.fork(3) as forks:
            forks += ["hello", "hell", "he"]
            forks += rl.gen("x", max_tokens=3, n=2)
        s += "".join(first for first, _ in s["x"]) + rl.gen("y", max_tokens=3)

    state = program.run(backend=backend, temperature=0.0)
    assert [len(samples) for samples in state["x"]] == [2, 2, 2]
    assert state.text().endswith(state["y"])


def test_what_was_generated_is_hit_to_the_token(backend: EngineBackend | RuntimeEndpoint) -> None:
    @rl.function
    def program(s: ProgramState) -> None:
        s += rl.user("hello")
        s += rl.assistant(rl.gen("x", max_tokens=20, ignore_eos=True))
        s += rl.user("hello hello")
        s += rl.assistant(rl.gen("y", max_tokens=3))

    state = program.run(backend=backend, temperature=0.0)
    first, second = state.meta("x"), state.meta("y")
    # The last output token was drawn, and nothing was computed from it.
    assert second["cached_tokens"] >= first["prompt_tokens"] + first["completion_tokens"] - 1


@pytest.mark.parametrize("heal", [True, False])
def test_a_states_tokens_spell_its_text(backend: EngineBackend | RuntimeEndpoint, heal: bool) -> None:
    """Whatever was healed, cut off inside a token by a stop, or chosen. Letters only, as half a character has no text."""

    @rl.function
    async def program(s: ProgramState) -> None:
        s += "hello hel" + rl.gen("x", max_tokens=8, regex="[a-z]{9,}", stop=["e", "lo"])
        s += rl.gen("y", max_tokens=4, regex="[a-z ]{9,}") + " wor" + rl.select("z", ["ld", "lds", "d"])
        s += " he" + rl.gen("none", max_tokens=0) + "l" + rl.gen("last", max_tokens=3, regex="[a-z]{9,}")
        await s.wait()
        tokens = await s.interpreter.prompt()
        assert await backend.decode(tokens) == s.text()

    state = program.run(backend=backend, temperature=1.0, seed=3, heal=heal)
    assert [state.meta(name)["healed_tokens"] > 0 for name in ("x", "last")] == [heal, heal]


def test_a_failing_branch(backend: EngineBackend | RuntimeEndpoint) -> None:
    @rl.function
    def program(s: ProgramState) -> None:
        s += "hello"
        forks = s.fork(2)
        forks += [rl.gen("x", max_tokens=3), rl.gen("x", max_tokens=3, regex="(")]
        with pytest.raises(rl.ProgramError, match="Refused: regex") as caught:
            forks.join()
        assert isinstance(caught.value.__cause__, rl.Refused)
        assert isinstance(forks[0]["x"], str)
        s += rl.gen("y", max_tokens=3)

    assert program.run(backend=backend)["y"] is not None


def test_a_thousand_programs(server: Served) -> None:
    @rl.function
    async def program(s: ProgramState, number: int) -> None:
        s += f"hello {number}" + rl.gen("x", max_tokens=2, ignore_eos=True)

    states = program.run_batch([{"number": number} for number in range(1000)], backend=EngineBackend(server.engine))
    assert [state.meta("x")["completion_tokens"] for state in states] == [2] * 1000
    assert [state.text()[: len(f"hello {number}")] for number, state in enumerate(states)] == [
        f"hello {number}" for number in range(1000)
    ]
    assert idle(server.engine)


def test_cancelling_aborts_what_runs(server: Served, backend: EngineBackend | RuntimeEndpoint) -> None:
    @rl.function
    async def program(s: ProgramState) -> None:
        s += PREAMBLE * 3
        forks = s.fork(4)
        forks += lambda number: f" {number}"
        forks += rl.gen("x", max_tokens=3000, ignore_eos=True)
        await forks.join()

    async def main() -> None:
        task = asyncio.create_task(program.arun(backend=backend))
        while (stats := server.engine.cache_stats())["running"] < 4:
            await asyncio.sleep(0.005)
        assert stats["holds"]["count"] == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # While the backend's connections are open: each call ends by itself.
        assert await asyncio.to_thread(idle, server.engine)
        await backend.aclose()

    asyncio.run(main())
    stats = server.engine.cache_stats()
    assert stats["holds"]["count"] == 0
    assert stats["blocks"]["evictable"] == stats["blocks"]["tree"]
