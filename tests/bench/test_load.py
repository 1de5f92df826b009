from __future__ import annotations

import asyncio

import pytest

from radixserve.bench.load import Connection, Timeline
from radixserve.errors import RequestFailed
from tests.bench.stub_server import StubServer

BODY = {"prompt": "x", "max_tokens": 3}


async def post(stub: StubServer, *, keep: bool = True) -> tuple[Timeline, list[int]]:
    heard: list[int] = []
    async with stub.serving(), Connection.opened(stub.url) as connection:
        return await connection.post("/v1/completions", BODY, keep=keep, heard=heard.append), heard


@pytest.mark.parametrize("split", [None, 1, 7, 50])
@pytest.mark.parametrize("close_ends", [False, True])
def test_events_are_found_wherever_chunks_end(split: int | None, close_ends: bool) -> None:
    line, heard = asyncio.run(post(StubServer(split=split, close_ends=close_ends)))
    assert heard == [1, 2, 3, 4, 5]
    assert len(line.pieces) == len(line.events) == 5
    assert all(event.strip().startswith(b"{") and event.endswith(b"}") for event in line.events)
    assert [line.sent, *line.pieces, line.done] == sorted([line.sent, *line.pieces, line.done])


def test_events_are_only_kept_where_they_are_wanted() -> None:
    line, _ = asyncio.run(post(StubServer(), keep=False))
    assert (len(line.pieces), line.events) == (5, [])


def test_a_refusal_is_an_error_with_its_text() -> None:
    with pytest.raises(RequestFailed, match="refused"):
        asyncio.run(post(StubServer(fail_at=0)))


def test_a_refusal_without_a_body_is_not_waited_for() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")

    async def run() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server, Connection.opened(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}") as connection:
            async with asyncio.timeout(10):
                await connection.get("/v1/models")

    with pytest.raises(RequestFailed, match="404"):
        asyncio.run(run())


def test_a_connection_is_used_again() -> None:
    async def run() -> list[int]:
        stub = StubServer()
        async with stub.serving(), Connection.opened(stub.url) as connection:
            lines = [await connection.post("/v1/completions", BODY) for _ in range(3)]
            page = await connection.get("/v1/models")
            await connection.renew()
        assert b"stub-model" in page.events[0]
        return [len(line.pieces) for line in lines]

    assert asyncio.run(run()) == [5, 5, 5]


@pytest.mark.parametrize(
    "answer",
    [
        b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1c\r\ndata: {"error": "it broke"}\n\r\n1\r\n\n\r\n0\r\n\r\n',
        b"HTTP/1.1 200 OK\r\n\r\nerror: it broke\n\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n20\r\ndata: it broke",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nno size\r\n",
        b"",
    ],
)
def test_an_error_inside_a_stream_and_a_stream_cut_off_are_errors(answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server, Connection.opened(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}") as connection:
            await connection.post("/v1/completions", BODY)

    with pytest.raises(RequestFailed):
        asyncio.run(run())
