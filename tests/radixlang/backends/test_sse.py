"""Events come out whole, wherever their bytes are cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from radixlang.backends.sse import event_data


def read(pieces: Sequence[bytes]) -> list[bytes]:
    async def source() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    async def collect() -> list[bytes]:
        return [data async for data in event_data(source())]

    return asyncio.run(collect())


STREAM = (
    b': comment\n\ndata: {"a": 1}\n\nevent: named\nid: 7\ndata:{"b":2}\n\n'
    b"data: two\ndata: lines\n\n" + 'data: "\u2028\x85"\r\n\r\n'.encode() + b"data: [DONE]\n\ndata: late\n\n"
)
DATA = [b'{"a": 1}', b'{"b":2}', b"two\nlines", '"\u2028\x85"'.encode()]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_pieces_may_be_cut_anywhere(size: int) -> None:
    assert read([STREAM[at : at + size] for at in range(0, len(STREAM), size)]) == DATA


def test_an_event_without_its_end_is_dropped() -> None:
    assert read([b"data: whole\n\ndata: cut off\n"]) == [b"whole"]


def test_a_stream_may_end_without_done() -> None:
    assert read([b"data: whole\n\n"]) == [b"whole"]
