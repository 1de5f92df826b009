"""The fake keeps the contract that the real backends keep, so that a program that works on it works on them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import pytest

from radixlang.backends.base import Call, Output, Piece, Text
from radixlang.backends.fake import FakeBackend
from radixlang.errors import BackendClosed, Refused
from radixlang.sampling import Sampling

pytestmark = pytest.mark.anyio


async def pieces_of(backend: FakeBackend, ids: Sequence[int], call: Call) -> list[Piece]:
    async with contextlib.aclosing(backend.generate(ids, call)) as pieces:
        return [piece async for piece in pieces]


def output_in(pieces: Sequence[Piece]) -> Output:
    output = pieces[-1].output
    assert output is not None
    assert all(piece.output is None for piece in pieces[:-1])
    return output


async def test_parts_are_read_as_one_text() -> None:
    backend = FakeBackend()
    whole = await backend.encode([Text("one two three", "free")], first=False)
    parts = [Text("one t", "free"), Text("wo th", "content"), Text("ree", "free")]
    assert await backend.encode(parts, first=False) == whole
    assert await backend.decode(whole) == "one two three"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("count", [1, 3])
async def test_pieces_outputs_and_counts_fit_together(stream: bool, count: int) -> None:
    backend = FakeBackend()
    ids = await backend.encode([Text("some prompt", "free")], first=True)
    pieces = await pieces_of(backend, ids, Call(Sampling(max_tokens=6, n=count, seed=1), stream=stream))
    output = output_in(pieces)
    assert len(output.samples) == count
    for index, sample in enumerate(output.samples):
        if stream:
            assert "".join(piece.text for piece in pieces if piece.index == index) == sample.text
        assert await backend.decode(sample.token_ids[: sample.kept]) + sample.rest == sample.text
    usage = output.usage
    assert usage.cached is not None and usage.computed is not None
    assert usage.cached + usage.computed == usage.prompt == len(ids) - output.healed
    assert usage.generated == sum(len(sample.token_ids) for sample in output.samples)


async def test_healed_tokens_are_not_the_prompts_and_are_the_same_for_all_samples() -> None:
    """As with the engine, which takes them off the prompt before anything is computed."""
    backend = FakeBackend(lambda prompt: ("abase", " words")[prompt.sample])
    ids = await backend.encode([Text("some dat", "free")], first=True)
    output = output_in(await pieces_of(backend, ids, Call(Sampling(max_tokens=9, n=2), heal=True)))
    assert (output.healed, len(ids)) == (1, 2)
    assert (output.usage.prompt, output.usage.computed) == (1, 1)
    whole = [await backend.decode([*ids[:1], *sample.token_ids[: sample.kept]]) for sample in output.samples]
    assert whole == ["some database", "some dat words"]
    assert [sample.text for sample in output.samples] == ["abase", " words"]


async def test_an_output_of_no_tokens() -> None:
    backend = FakeBackend("abase")
    ids = await backend.encode([Text("some dat", "free")], first=True)
    output = output_in(await pieces_of(backend, ids, Call(Sampling(max_tokens=0), heal=True)))
    (sample,) = output.samples
    assert (sample.text, sample.token_ids, sample.finish_reason) == ("", (), "length")
    assert await backend.decode(ids[: len(ids) - output.healed]) + sample.rest == "some dat"


async def test_what_was_generated_is_found_again() -> None:
    backend = FakeBackend()
    ids = await backend.encode([Text("some prompt", "free")], first=True)
    (sample,) = output_in(await pieces_of(backend, ids, Call(Sampling(max_tokens=6)))).samples
    following = [*ids, *sample.token_ids[: sample.kept], *ids]
    usage = output_in(await pieces_of(backend, following, Call(Sampling(max_tokens=1)))).usage
    assert usage.cached is not None and usage.cached >= len(ids) + sample.kept - 1


async def test_scores_do_not_depend_on_order_or_company() -> None:
    backend = FakeBackend()
    ids = await backend.encode([Text("some prompt", "free")], first=True)
    items = [(1,), (1, 2), (3, 4)]
    whole = await backend.score(ids, items)
    turned = await backend.score(ids, items[::-1])
    assert whole.token_ids == tuple(items)
    assert whole.logprobs == turned.logprobs[::-1]
    assert (await backend.score(ids, items[1:2])).logprobs == whole.logprobs[1:2]


async def test_holds_and_ends() -> None:
    backend = FakeBackend()
    held = await backend.hold([1, 2, 3], seconds=5.0)
    assert held.held == 3
    await backend.release([held.id, "no such hold"])
    with pytest.raises(Refused):
        await backend.role("judge", [])
    await backend.aclose()
    await backend.aclose()
    with pytest.raises(BackendClosed):
        await pieces_of(backend, [1], Call(Sampling(max_tokens=1)))
