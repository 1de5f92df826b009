from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
from starlette.requests import Request
from starlette.types import Message

from radixserve.errors import InvalidRequest
from radixserve.server.bodies import ClientGone, decode, read, read_body


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    size: int


class Body(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    count: int | None = None
    parts: list[Inner] = []


def request(*pieces: bytes, headers: Sequence[tuple[str, str]] = (), gone: bool = False) -> Request:
    messages: list[Message] = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
    if gone:
        messages.append({"type": "http.disconnect"})
    else:
        messages[-1]["more_body"] = False

    async def receive() -> Message:
        return messages.pop(0)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/",
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers],
    }
    return Request(scope, receive)


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ('{"count": 1}', "name", "missing_required_parameter"),
        ('{"name": 1}', "name", "invalid_type"),
        ('{"name": "a", "count": "1"}', "count", "invalid_type"),
        ('{"name": "a", "count": true}', "count", "invalid_type"),
        ('{"name": "a", "count": 1.5}', "count", "invalid_type"),
        ('{"name": "a", "cuont": 1}', "cuont", "unknown_parameter"),
        ('{"name": "a", "parts": [{"size": 1}, {"size": "x"}]}', "parts[1].size", "invalid_type"),
        ('{"name": "a", "parts": [{"size": 1, "sise": 2}]}', "parts[0].sise", "unknown_parameter"),
        ('{"name": "a", "parts": [{}]}', "parts[0].size", "missing_required_parameter"),
        ("[]", None, "invalid_type"),
        ("", None, "invalid_json"),
        ('{"name": "a"', None, "invalid_json"),
        ('{"name": NaN}', None, "invalid_json"),
        ('{"name": "\\ud800"}', None, "invalid_json"),
        ('{"name": ' + "[" * 100_000, "name", "invalid_type"),
    ],
)
def test_what_is_wrong_is_named(body: str, param: str | None, code: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        decode(body.encode(), Body)
    assert (refused.value.param, refused.value.code) == (param, code)


def test_nesting_beyond_the_stack_is_refused() -> None:
    with pytest.raises(InvalidRequest) as refused:
        decode(b"[" * 1_000_000, list[Any])
    assert refused.value.code == "invalid_json"


def test_bytes_that_are_not_utf_8_are_refused() -> None:
    with pytest.raises(InvalidRequest) as refused:
        decode(b'{"name": "\xff\xfe"}', Body)
    assert refused.value.code in ("invalid_json", "invalid_type")


async def _read(made: Request, limit: int = 100) -> bytes:
    return await read_body(made, limit)


PACKERS: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "deflate": zlib.compress}


@pytest.mark.anyio
@pytest.mark.parametrize("encoding", PACKERS)
async def test_packed_bodies_are_unpacked_however_they_arrive(encoding: str) -> None:
    packed = PACKERS[encoding](b'{"name": "a"}')
    for size in (1, 5, len(packed)):
        pieces = [packed[at : at + size] for at in range(0, len(packed), size)]
        assert await _read(request(*pieces, headers=[("Content-Encoding", encoding)])) == b'{"name": "a"}'


@pytest.mark.anyio
@pytest.mark.parametrize("encoding", PACKERS)
async def test_a_bomb_is_refused_before_it_grows(encoding: str) -> None:
    packed = PACKERS[encoding](bytes(50_000_000))
    with pytest.raises(InvalidRequest) as refused:
        await _read(request(packed, headers=[("Content-Encoding", encoding)]), limit=1000)
    assert refused.value.code == "request_too_large"


@pytest.mark.anyio
@pytest.mark.parametrize(
    "body",
    [b"not gzip at all", gzip.compress(b"x" * 50)[:-3], gzip.compress(b"{}") + b"more"],
    ids=["not packed", "cut short", "too long"],
)
async def test_broken_packing_is_refused(body: bytes) -> None:
    half = len(body) // 2
    with pytest.raises(InvalidRequest) as refused:
        await _read(request(body[:half], body[half:], headers=[("Content-Encoding", "gzip")]))
    assert refused.value.code == "invalid_encoding"


@pytest.mark.anyio
async def test_an_unknown_packing_is_refused() -> None:
    with pytest.raises(InvalidRequest) as refused:
        await _read(request(b"{}", headers=[("Content-Encoding", "br")]))
    assert refused.value.code == "unsupported_media_type"


@pytest.mark.anyio
async def test_a_body_may_have_the_limit_and_no_byte_more() -> None:
    assert await _read(request(b"a" * 60, b"b" * 40)) == b"a" * 60 + b"b" * 40
    for made in (request(b"a" * 60, b"b" * 41), request(b"", headers=[("Content-Length", "101")])):
        with pytest.raises(InvalidRequest) as refused:
            await _read(made)
        assert refused.value.code == "request_too_large"


@pytest.mark.anyio
async def test_a_client_that_leaves_midway_is_noticed() -> None:
    with pytest.raises(ClientGone):
        await _read(request(b'{"na', gone=True))


@pytest.mark.anyio
async def test_only_json_is_taken() -> None:
    for declared in ("application/json", "Application/JSON; charset=utf-8", "application/vnd.api+json"):
        assert (await read(request(b'{"name": "a"}', headers=[("Content-Type", declared)]), Body, 100)).name == "a"
    with pytest.raises(InvalidRequest) as refused:
        await read(request(b"name=a", headers=[("Content-Type", "application/x-www-form-urlencoded")]), Body, 100)
    assert refused.value.code == "unsupported_media_type"
