from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.server.fake_client import Script
from tests.server.harness import error_of, serve

pytestmark = pytest.mark.anyio
ADMIN = {"Authorization": "Bearer boss"}
USER = {"Authorization": "Bearer a"}


@pytest.mark.parametrize("path", ["/abort", "/abort_request"])
async def test_an_unknown_request_is_no_error(path: str) -> None:
    bodies: list[dict[str, Any]] = [{"rid": "x"}, {"rids": []}, {"rids": ["x", "y"]}, {"abort_all": True}]
    async with serve() as server:
        for body in bodies:
            response = await server.post(path, body)
            assert response.status_code == 200 and response.json() == {"found": 0}


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({}, "rid", "invalid_value"),
        ({"abort_all": False}, "rid", "invalid_value"),
        ({"rid": "x", "abort_all": True}, "abort_all", "invalid_value"),
        ({"rid": "x", "rids": ["y"]}, "rids", "invalid_value"),
        ({"rid": 1}, "rid", "invalid_type"),
        ({"rids": [1]}, "rids[0]", "invalid_type"),
        ({"rids": ["x"] * 10_001}, "rids", "invalid_value"),
        ({"nonsense": 1}, "nonsense", "unknown_parameter"),
    ],
)
async def test_what_to_abort_is_said_once(body: dict[str, Any], param: str, code: str) -> None:
    async with serve() as server:
        response = await server.post("/abort", body)
    assert response.status_code == 400
    assert (error_of(response)["param"], error_of(response)["code"]) == (param, code)


async def test_a_flush_is_of_the_callers_own_namespace() -> None:
    async with serve(api_key=("a", "b")) as server:
        for headers, salt in ((USER, None), (USER, "x"), ({"Authorization": "Bearer b"}, None)):
            response = await server.post("/flush_cache", {"cache_salt": salt}, headers=headers)
            assert response.json() == {"blocks": 0}
        flushed = server.engine.flushed
        callers = server.service.callers
        mine = callers.identify("Bearer a")
    assert flushed[:2] == [callers.salt(mine, None), callers.salt(mine, "x")]
    assert None not in flushed and len(set(flushed)) == 3


@pytest.mark.parametrize(
    ("method", "url", "body"),
    [
        ("POST", "/flush_cache", b""),
        ("POST", "/flush_cache", b"{}"),
        ("POST", "/flush_cache", b"null"),
        ("GET", "/flush_cache", b""),
    ],
)
async def test_a_flush_needs_no_body(method: str, url: str, body: bytes) -> None:
    """SGLang's client sends an empty one that it declares to be JSON."""
    async with serve() as server:
        response = await server.client.request(
            method, url, content=body, headers={"Content-Type": "application/json; charset=utf-8"}
        )
        caller = server.service.callers.identify(None)
        expected = [] if body == b"null" else [server.service.callers.salt(caller, None)]
        assert server.engine.flushed == expected
    assert response.status_code == (400 if body == b"null" else 200)


@pytest.mark.parametrize("url", ["/flush_cache?all", "/flush_cache?all=true"])
async def test_to_flush_everything_takes_the_admin_key(url: str) -> None:
    async with serve(api_key=("a",), admin_key="boss") as server:
        for method in ("GET", "POST"):
            refused = await server.client.request(method, url, headers=USER)
            assert refused.status_code == 403 and error_of(refused)["code"] == "admin_key_required"
        assert (await server.post("/flush_cache", {"all": True}, headers=USER)).status_code == 403
        assert server.engine.flushed == []
        assert (await server.client.get(url, headers=ADMIN)).status_code == 200
        assert (await server.post("/flush_cache", {"all": True}, headers=ADMIN)).status_code == 200
        assert server.engine.flushed == [None, None]


@pytest.mark.parametrize(
    ("url", "param"),
    [
        ("/flush_cache?nonsense=1", "nonsense"),
        ("/flush_cache?all=2", "all"),
        ("/flush_cache?all&all", "all"),
        ("/flush_cache?cache_salt=", "cache_salt"),
    ],
)
async def test_parameters_are_checked(url: str, param: str) -> None:
    async with serve() as server:
        for method in ("GET", "POST"):
            response = await server.client.request(method, url)
            assert response.status_code == 400 and error_of(response)["param"] == param
        assert server.engine.flushed == []


async def test_an_admin_ends_what_others_run() -> None:
    async with serve(Script(gate=asyncio.Event()), api_key=("a", "b"), admin_key="boss") as server:
        running = asyncio.ensure_future(server.post("/generate", {"text": "p", "rid": "theirs"}, headers=USER))
        while not server.engine.jobs:
            await asyncio.sleep(0)
        other = {"Authorization": "Bearer b"}
        for body in ({"rid": "theirs"}, {"abort_all": True}):
            assert (await server.post("/abort", body, headers=other)).json() == {"found": 0}
        assert (await server.post("/abort", {"rid": "theirs"}, headers=ADMIN)).json() == {"found": 1}
        assert (await running).json()["meta_info"]["finish_reason"]["type"] == "abort"
