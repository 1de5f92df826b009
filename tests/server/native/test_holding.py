from __future__ import annotations

import asyncio
from typing import Any

import pytest

from radixserve.server.callers import Caller, Callers
from tests.server.fake_client import FakeClient, Script
from tests.server.harness import error_of, serve

pytestmark = pytest.mark.anyio
A = {"Authorization": "Bearer a"}
B = {"Authorization": "Bearer b"}
BOSS = {"Authorization": "Bearer boss"}


async def test_a_prefix_is_held_and_released() -> None:
    async with serve(Script(cached_tokens=2)) as server:
        body = (await server.post("/hold", {"input_ids": [1, 2, 3, 4, 5], "ttl_s": 7.5, "priority": 3})).json()
        text = (await server.post("/hold", {"text": "hello", "ttl_s": 1000, "cache_salt": "x"})).json()
        jobs = server.engine.jobs
        assert server.engine.holds == [job.rid for job in jobs]
        released = await server.post("/release", {"ids": [body["id"], body["id"], text["id"]]})
        assert released.json() == {"released": 2} and server.engine.holds == []
        again = await server.post("/release", {"ids": [body["id"]]})
        assert again.status_code == 200 and again.json() == {"released": 0}
    assert body["timings"]["total_s"] >= 0
    assert {name: value for name, value in body.items() if name not in ("id", "timings")} == {
        "held_tokens": 5,
        "prompt_tokens": 5,
        "cached_tokens": 2,
        "computed_tokens": 3,
        "expires_in_s": 7.5,
    }
    assert text["expires_in_s"] == 60.0 and text["prompt_tokens"] == 5
    assert [(job.hold_s, job.priority, job.sampling.max_tokens) for job in jobs] == [(7.5, 3, 0), (1000, 0, 0)]
    assert jobs[0].salt != jobs[1].salt


async def test_without_a_time_it_is_the_longest_that_the_engine_allows() -> None:
    async with serve() as server:
        assert (await server.post("/hold", {"text": "hello"})).json()["expires_in_s"] == 60.0


async def test_nobody_releases_what_is_anothers() -> None:
    async with serve(api_key=("a", "b"), admin_key="boss") as server:
        first = (await server.post("/hold", {"text": "hello"}, headers=A)).json()["id"]
        second = (await server.post("/hold", {"text": "hello"}, headers=A)).json()["id"]
        name = first.rpartition(".")[0]
        for guess in (first, name, f"{name}.", f"{name}.{'0' * 32}", "", ".", "nonsense", "é.ü"):
            answer = await server.post("/release", {"ids": [guess]}, headers=B)
            assert answer.json() == {"released": 0}, guess
        assert (await server.post("/release", {"ids": [first]}, headers=A)).json() == {"released": 1}
        assert (await server.post("/release", {"ids": [second]}, headers=BOSS)).json() == {"released": 1}


@pytest.mark.parametrize(
    ("path", "body", "param", "code"),
    [
        ("/hold", {}, "text", "missing_required_parameter"),
        ("/hold", {"text": "a", "input_ids": [1]}, "text", "missing_required_parameter"),
        ("/hold", {"text": ""}, "text", "empty_prompt"),
        ("/hold", {"input_ids": []}, "input_ids", "empty_prompt"),
        ("/hold", {"input_ids": [[1], [2]]}, "input_ids[0]", "invalid_type"),
        ("/hold", {"input_ids": ["a"]}, "input_ids[0]", "invalid_type"),
        ("/hold", {"input_ids": [1.5]}, "input_ids[0]", "invalid_type"),
        ("/hold", {"input_ids": [9999]}, "input_ids", "invalid_value"),
        ("/hold", {"input_ids": [1] * 600}, "input_ids", "context_length_exceeded"),
        ("/hold", {"text": "a", "ttl_s": 0}, "ttl_s", "invalid_value"),
        ("/hold", {"text": "a", "ttl_s": -1}, "ttl_s", "invalid_value"),
        ("/hold", {"text": "a", "ttl_s": "1"}, "ttl_s", "invalid_type"),
        ("/hold", {"text": "a", "ttl_s": 1e30}, "ttl_s", "invalid_value"),
        ("/hold", {"text": "a", "rid": ""}, "rid", "invalid_value"),
        ("/hold", {"text": "a", "priority": 2**40}, "priority", "invalid_type"),
        ("/hold", {"text": "a", "cache_salt": ""}, "cache_salt", "invalid_value"),
        ("/hold", {"text": "a", "sampling_params": {}}, "sampling_params", "unknown_parameter"),
        ("/release", {}, "ids", "missing_required_parameter"),
        ("/release", {"ids": "a"}, "ids", "invalid_type"),
        ("/release", {"ids": [1]}, "ids[0]", "invalid_type"),
        ("/release", {"ids": ["a"] * 10_001}, "ids", "invalid_value"),
    ],
)
async def test_what_is_wrong_is_refused_by_name(path: str, body: dict[str, Any], param: str, code: str) -> None:
    async with serve() as server:
        response = await server.post(path, body)
        assert server.engine.jobs == []
    assert response.status_code == 400, response.text
    assert (error_of(response)["param"], error_of(response)["code"]) == (param, code)


async def test_one_can_be_aborted_by_its_name() -> None:
    gate = asyncio.Event()
    async with serve(Script(gate=gate)) as server:
        waiting = asyncio.ensure_future(server.post("/hold", {"text": "hello", "rid": "mine"}))
        while not server.engine.running:
            await asyncio.sleep(0)
        assert (await server.post("/abort", {"rid": "mine"})).json() == {"found": 1}
        response = await waiting
    assert response.status_code == 400 and error_of(response)["code"] == "aborted"


async def test_holds_are_among_the_metrics() -> None:
    engine = FakeClient()
    async with serve(engine=engine) as server:
        text = (await server.client.get("/metrics")).text
    for series in ("radixserve_holds 0.0", "radixserve_kv_blocks_held 0.0", "radixserve_holds_gave_way_total 0.0"):
        assert series in text


def test_signatures_are_each_callers_own() -> None:
    callers = Callers((), None, b"secret")
    one, other = Caller("one", admin=False), Caller("other", admin=False)
    text = callers.sign(one, "name")
    assert callers.signed(one, text) == "name" and callers.signed(other, text) is None
    assert callers.signed(Caller("boss", admin=True), text) == "name"
    assert callers.signed(Caller("boss", admin=True), "name") is None
    assert callers.signed(one, callers.sign(one, "a.b")) == "a.b"
    assert Callers((), None, b"another").signed(one, text) is None
