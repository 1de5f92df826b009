"""Whole programs give the same on the engine in this process and on a server of it: texts, tokens, scores and counts of tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

import radixlang as rl
from tests.chat.models import byte_level
from tests.chat.templates import CHATML
from tests.radixlang.backends.models import Served, both, model_of, served

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(model_of(byte_level(("<s>", "<|im_start|>", "<|im_end|>")), CHATML)) as made:
        yield made


@dataclass
class Answer:
    good: bool
    stars: list[int]


@rl.function
async def everything(s: rl.ProgramState, subject: str) -> None:
    s += f"hello {subject}, hel"
    s += rl.gen("healed", max_tokens=6, stop="\n")
    s += " and " + rl.select("choice", ["llo", "he", "hello", "hello im"])
    forks = s.fork(3)
    for number, branch in enumerate(forks):
        branch += f" branch {number} he" + rl.gen("part", max_tokens=5, n=2 if number else None)
        inner = branch.fork(2)
        inner += rl.gen("leaf", max_tokens=3, logprobs=1)
        await inner.join("concatenate")
    await forks.join()
    s += rl.gen("number", dtype=int, max_tokens=4) + rl.gen("word", regex="(ab|cd)e?", max_tokens=5)
    s += rl.gen("record", dtype=Answer, max_tokens=40, finish_json=True)
    s += rl.select("greedy", ["a", "ab", "abc"], choices_method=rl.greedy_token_selection)
    s += rl.select("alone", ["he", "im"], choices_method=rl.unconditional_likelihood_normalized)


@rl.function
async def conversation(s: rl.ProgramState, subject: str) -> None:
    s += rl.system("hello")
    s += rl.user("hi")
    s += rl.assistant("hello")
    for number in range(2):
        s += rl.user(f"{subject} {number} <|im_end|>")
        s += rl.assistant(rl.gen(f"answer {number}", max_tokens=6))


def facts(state: rl.ProgramState) -> dict[str, Any]:
    """All that a program brought, but for times and what was in the cache."""
    times = {"wall_s", "queue_s", "first_token_s", "cached_tokens", "computed_tokens"}

    def timeless(meta: Any) -> Any:
        if isinstance(meta, list):
            return [timeless(item) for item in meta]
        return {key: value for key, value in meta.items() if key not in times}

    variables = {name: (state[name], timeless(state.meta(name))) for name in state.variables}
    return {"text": state.text(), "messages": state.messages(), "variables": variables}


@pytest.mark.parametrize(
    "sampling", [{"temperature": 0}, {"temperature": 0.9, "seed": 11, "top_k": 40}], ids=["greedy", "seeded"]
)
@pytest.mark.parametrize("program", [everything, conversation], ids=lambda program: program.body.__name__)
async def test_results_are_the_same(server: Served, program: rl.Program, sampling: dict[str, Any]) -> None:
    async with both(server) as pair:
        states = [
            await program.arun("world", backend=backend, hints=hints, **sampling)
            for hints in (True, False)
            for backend in (pair.local, pair.remote)
        ]
    first, *others = [facts(state) for state in states]
    assert first["variables"]
    for other in others:
        assert other == first


@pytest.mark.parametrize("kind", ["engine", "http"])
async def test_a_programs_end_leaves_nothing_behind(server: Served, kind: str) -> None:
    async with both(server) as pair:
        await everything.arun("moon", backend=pair.of(kind), temperature=0)
        stats = server.engine.cache_stats()
    assert (stats["running"], stats["waiting"]) == (0, 0)
    server.engine.check()


async def test_batches_on_both(server: Served) -> None:
    items = [{"subject": f"number {number}"} for number in range(12)]
    async with both(server) as pair:
        runs = [
            await conversation.arun_batch(items, backend=backend, temperature=0, concurrency=4)
            for backend in (pair.local, pair.remote)
        ]
    here, there = [[facts(state) for state in states] for states in runs]
    assert here == there
