"""Recordings: what is noted, in which order it is given again, and files of them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from radixlang.backends.base import (
    Call,
    Continuations,
    Hold,
    Message,
    Output,
    Piece,
    RoleMarks,
    Sample,
    Text,
    TokenScore,
    Usage,
)
from radixlang.constraints import Regex
from radixlang.errors import InvalidProgram
from radixlang.recording import Recorder, Recording, recording
from radixlang.sampling import Sampling

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Counting:
    """Answers with a number that goes up, in the prompt's length."""

    token_exact: ClassVar[bool] = True
    name = "counting"

    def __init__(self) -> None:
        self.answers = 0

    async def aclose(self) -> None: ...

    async def info(self) -> dict[str, Any]:
        return {"model": "counting", "context_length": None}

    async def flush(self) -> None: ...

    async def encode(self, parts: Sequence[Text], *, first: bool) -> list[int]:
        return [len(part.text) for part in parts]

    async def decode(self, token_ids: Sequence[int]) -> str:
        return str(list(token_ids))

    async def role(self, role: str, earlier: Sequence[Message]) -> RoleMarks:
        return RoleMarks(role, "end")

    async def generate(self, token_ids: Sequence[int], call: Call) -> AsyncGenerator[Piece, None]:
        self.answers += 1
        scores = (
            (TokenScore(self.answers, "x", -0.5, ((7, "y", -1.5),)),) if call.sampling.logprobs is not None else None
        )
        samples = tuple(
            Sample("x", "stop", (self.answers, index), 2, "", None, scores) for index in range(call.sampling.n or 1)
        )
        yield Piece(0, "x")
        yield Piece(0, "", Output(samples, Usage()))

    async def score(
        self, token_ids: Sequence[int], continuations: Sequence[Sequence[int]], *, priority: int = 0
    ) -> Continuations:
        ids = tuple(map(tuple, continuations))
        return Continuations(ids, tuple(tuple(-float(token) for token in tokens) for tokens in ids), Usage())

    async def hold(self, token_ids: Sequence[int], *, seconds: float, priority: int = 0) -> Hold:
        return Hold("h", len(token_ids))

    async def release(self, holds: Sequence[str]) -> None: ...


async def ask(backend: Recorder, prompt: list[int], **fields: Any) -> Output:
    heal, constraint = fields.pop("heal", False), fields.pop("constraint", None)
    call = Call(Sampling(**fields), constraint, heal=heal)
    async for piece in backend.generate(prompt, call):
        if piece.output is not None:
            return piece.output
    raise AssertionError("no output")


async def recorded() -> Recording:
    backend = recording(Counting())
    await ask(backend, [1, 2], max_tokens=3)
    await ask(backend, [1, 2], max_tokens=3)
    await ask(backend, [1, 2], max_tokens=4, n=2, logprobs=1)
    await ask(backend, [1, 2], max_tokens=3, heal=True, constraint=Regex("a+"))
    await backend.score([5], [[1, 2], [3]])
    return backend.recording


async def test_calls_of_one_kind_are_answered_in_order() -> None:
    replay = (await recorded()).replay()
    plain = Call(Sampling(max_tokens=3))
    first, second = replay.answer([1, 2], plain), replay.answer([1, 2], plain)
    assert first is not None and second is not None
    assert (first[0].token_ids, second[0].token_ids) == ([1, 0], [2, 0])
    assert replay.answer([1, 2], plain) is None


async def test_prompt_and_options_tell_calls_apart_and_priorities_do_not() -> None:
    replay = (await recorded()).replay()
    assert replay.answer([1], Call(Sampling(max_tokens=3))) is None
    assert replay.answer([1, 2], Call(Sampling(max_tokens=3), Regex("a+"))) is None
    healed = replay.answer(
        [1, 2], Call(Sampling(max_tokens=3), Regex("a+"), heal=True, priority=9, tag="x", stream=True)
    )
    assert healed is not None and healed[0].token_ids == [4, 0]
    several = replay.answer((1, 2), Call(Sampling(max_tokens=4, n=2, logprobs=1)))
    assert several is not None
    assert [sample.token_ids for sample in several] == [[3, 0], [3, 1]]
    assert several[0].logprobs is not None
    assert (several[0].logprobs[0].logprob, several[0].logprobs[0].top) == (-0.5, [(7, -1.5)])


async def test_scores_are_given_as_often_as_they_are_asked_for() -> None:
    replay = (await recorded()).replay()
    for _ in range(2):
        assert replay.score([5], [(1, 2), (3,)]) == [[-1.0, -2.0], [-3.0]]
    assert replay.score([5], [(1, 2)]) is None


async def test_a_file_holds_all_of_it(tmp_path: Path) -> None:
    whole = await recorded()
    whole.save(tmp_path / "run.json")
    assert Recording.load(tmp_path / "run.json") == whole


def test_a_file_that_is_none_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text('{"calls": 3}')
    for name in ("bad.json", "missing.json"):
        with pytest.raises(InvalidProgram, match=f"path: .*{name} cannot be read"):
            Recording.load(tmp_path / name)


async def test_what_is_ended_early_is_not_noted() -> None:
    backend = recording(Counting())
    pieces = backend.generate([1], Call(Sampling()))
    await anext(pieces)
    await pieces.aclose()
    assert backend.recording.calls == []


def test_text_backends_are_refused() -> None:
    class Texts(Counting):
        token_exact = False

    with pytest.raises(InvalidProgram, match="backend: counting gives texts"):
        recording(Texts())
