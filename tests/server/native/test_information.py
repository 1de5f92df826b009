from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from radixserve.engine import wire
from radixserve.engine.client import CacheNode, CacheView
from radixserve.messages import FinishReason
from radixserve.server.probe import Probe
from tests.server.fake_client import FakeClient, Script, fake_stats
from tests.server.harness import error_of, serve

pytestmark = pytest.mark.anyio
ADMIN = {"Authorization": "Bearer boss"}
USER = {"Authorization": "Bearer secret-key"}


async def test_the_front_door_says_where_to_go() -> None:
    async with serve(api_key=("a",)) as server:
        body = (await server.client.get("/")).json()
        assert body["name"] == "radixserve" and body["model"] == "tiny"
        for path in body["links"].values():
            response = await server.client.get(path, headers={"Authorization": "Bearer a"})
            assert response.status_code in (200, 405), path
        version = (await server.client.get("/version", headers={"Authorization": "Bearer a"})).json()
    assert version == {"version": body["version"]}


@pytest.mark.parametrize("path", ["/get_model_info", "/model_info"])
async def test_the_model_is_described(path: str) -> None:
    async with serve(served_model_name=("nice",)) as server:
        body = (await server.client.get(path)).json()
    assert body["model_path"] == "tiny" and body["is_generation"] is True and body["served_model_name"] == "nice"
    assert body["context_length"] == 512 and body["eos_token_ids"] == [257, 259] and body["has_chat_template"] is True


@pytest.mark.parametrize("path", ["/get_server_info", "/server_info"])
async def test_the_server_is_described_without_its_keys(path: str) -> None:
    async with serve(api_key=("secret-key",), admin_key="boss", max_body_mb=3) as server:
        response = await server.client.get(path, headers=USER)
        assert "secret-key" not in response.text and "boss" not in response.text
        body = response.json()
    assert body["served_model_name"] == "tiny" and body["model_path"] == "tiny" and body["status"] == "ready"
    assert (
        body["server"]["max_body_mb"] == 3 and body["server"]["api_key"] is True and body["server"]["admin_key"] is True
    )
    assert body["engine"] == {"model": "tiny", "seed": 0} and body["runner"]["kernels"] == "fake"
    assert body["max_total_num_tokens"] == 256 * 16 and body["broken_promises"] == [] and "blocks" in body["stats"]


async def test_a_server_without_an_engine_still_describes_itself() -> None:
    async with serve() as server:
        server.engine.die("killed")
        body = (await server.client.get("/server_info")).json()
    assert (body["status"], body["failure"], body["stats"]) == ("failed", "killed", None)


# ---------------------------------------------------------------- health


async def test_health_is_of_the_engine() -> None:
    async with serve(api_key=("a",)) as server:
        server.service.ready = False
        for path in ("/health", "/ping"):
            assert (await server.client.get(path)).json() == {"status": "ok"}
            assert (await server.client.head(path)).status_code == 200
        server.engine.die("killed by SIGKILL")
        for path in ("/health", "/ping", "/ready", "/health_generate"):
            response = await server.client.get(path)
            assert response.status_code == 503 and "killed by SIGKILL" in error_of(response)["message"]


async def test_ready_waits_for_the_warm_up() -> None:
    async with serve() as server:
        server.service.ready = False
        response = await server.client.get("/ready")
        assert response.status_code == 503 and error_of(response)["code"] == "not_ready"
        assert server.engine.jobs == []
        server.service.ready = True
        assert (await server.client.get("/ready")).status_code == 200
        assert len(server.engine.jobs) == 1 and server.engine.jobs[0].sampling.max_tokens == 1


async def test_ready_makes_no_token_where_one_came_lately() -> None:
    async with serve() as server:
        await server.post("/generate", {"text": "a"})
        assert (await server.client.get("/ready")).status_code == 200
        assert len(server.engine.jobs) == 1
        assert (await server.client.get("/health_generate")).status_code == 200
        assert len(server.engine.jobs) == 2


async def test_many_that_ask_share_one_token() -> None:
    gate = asyncio.Event()
    async with serve(Script(gate=gate)) as server:
        asking = [asyncio.ensure_future(server.client.get("/ready")) for _ in range(5)]
        while not server.engine.jobs:
            await asyncio.sleep(0)
        gate.set()
        assert [(await one).status_code for one in asking] == [200] * 5
        assert len(server.engine.jobs) == 1
        # What a probe computes is nobody's request.
        assert server.service.num_active == 0


async def test_a_token_that_does_not_come_is_not_waited_for_forever() -> None:
    async with serve(Script(gate=asyncio.Event())) as server:
        server.service.probe.wait_s = 0.01
        response = await server.client.get("/ready")
        assert response.status_code == 503 and "0.01 s" in error_of(response)["message"]
        assert server.engine.aborted == [server.engine.jobs[0].rid]
        while server.engine.running:
            await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (Script((), error="non-finite logits"), "non-finite logits"),
        (Script((), finish_reason=FinishReason.ABORT), "aborted"),
    ],
)
async def test_a_token_that_cannot_be_made_says_why(script: Script, reason: str) -> None:
    async with serve(script) as server:
        response = await server.client.get("/health_generate")
    assert response.status_code == 503 and reason in error_of(response)["message"]


async def test_a_probe_outlives_the_caller_that_leaves() -> None:
    gate = asyncio.Event()
    engine = FakeClient(Script(gate=gate))
    await engine.start()
    probe = Probe(engine)
    first, second = asyncio.ensure_future(probe.run()), asyncio.ensure_future(probe.run())
    while not engine.jobs:
        await asyncio.sleep(0)
    first.cancel()
    gate.set()
    assert await second is None and len(engine.jobs) == 1
    await engine.close()


# ---------------------------------------------------------------- metrics


async def _metrics(server: Any) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    response = await server.client.get("/metrics")
    assert response.status_code == 200 and response.headers["content-type"].startswith("text/plain")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


async def test_metrics_count_what_happens() -> None:
    stats = fake_stats()
    stats["blocks"] = {"total": 10, "free": 4, "tree": 3, "evictable": 2, "private": 2, "retired": 1}
    stats["scheduler"] |= {"preemptions": 7, "finished": {"stop": 3}}
    stats["steps"]["step_seconds"] = {"edges": [0.1, 1.0], "counts": [1, 3, 4], "sum": 2.5}
    async with serve(Script(("ab", "c"), cached_tokens=2)) as server:
        server.engine.questions[wire.Stats] = stats
        await server.post("/generate", {"text": "abcd", "sampling_params": {"n": 2}})
        await server.post("/generate", {"text": 1})
        shown = await _metrics(server)
    assert shown["radixserve_kv_blocks", (("state", "free"),)] == 4
    states = [value for (name, _), value in shown.items() if name == "radixserve_kv_blocks"]
    assert sum(states) == shown["radixserve_kv_blocks_capacity", ()] == 10
    assert shown["radixserve_kv_blocks_evictable", ()] == 2
    assert shown["radixserve_preemptions_total", ()] == 7
    assert shown["radixserve_finished_samples_total", (("finish_reason", "stop"),)] == 3
    assert shown["radixserve_step_seconds_bucket", (("le", "1.0"),)] == 3
    assert shown["radixserve_step_seconds_count", ()] == 4 and shown["radixserve_step_seconds_sum", ()] == 2.5
    assert shown["radixserve_batch_rows_count", ()] == 0 and shown["radixserve_batch_tokens_count", ()] == 0
    assert shown["radixserve_prompt_tokens_total", ()] == 4 and shown["radixserve_prompt_cached_tokens_total", ()] == 2
    assert shown["radixserve_output_tokens_total", ()] == 6
    assert shown["radixserve_time_to_first_token_seconds_count", ()] == 2
    assert shown["radixserve_inter_token_seconds_count", ()] == 2 and shown["radixserve_request_seconds_count", ()] == 1
    assert shown["radixserve_http_responses_total", (("path", "/generate"), ("status", "200"))] == 1
    assert shown["radixserve_http_responses_total", (("path", "/generate"), ("status", "400"))] == 1
    assert shown["radixserve_engine_up", ()] == 1


async def test_metrics_outlive_the_engine() -> None:
    async with serve() as server:
        server.engine.die()
        shown = await _metrics(server)
    assert shown["radixserve_engine_up", ()] == 0
    assert ("radixserve_running", ()) not in shown and ("radixserve_request_seconds_count", ()) in shown


# ---------------------------------------------------------------- cache


def _view(salt: bytes | None) -> CacheView:
    def node(text: bytes, children: list[CacheNode], salt: bytes | None) -> CacheNode:
        return CacheNode(
            token_ids=list(text),
            num_tokens=32,
            num_blocks=2,
            locks=1,
            idle_s=0.5,
            hits=3,
            salt=salt,
            children=children,
        )

    child = node("wörld".encode(), [], salt)
    top = node(b"hello ", [child], b"" if salt is not None else None)
    return CacheView(nodes=[top], num_nodes=2, num_tokens=64, num_blocks=4, left_out=5)


async def test_the_tree_is_shown_with_its_text() -> None:
    async with serve() as server:
        server.engine.questions[wire.View] = _view(None)
        body = (await server.client.get("/cache")).json()
    assert (body["num_nodes"], body["num_tokens"], body["num_blocks"], body["left_out"]) == (2, 64, 4, 5)
    (top,) = body["nodes"]
    assert top["text"] == "hello " and top["token_ids"] == list(b"hello ") and "namespace" not in top
    assert top["children"][0]["text"] == "wörld" and top["children"][0]["hits"] == 3 and top["locks"] == 1


async def test_the_operator_sees_namespaces_and_no_salts() -> None:
    salt = bytes(range(32))
    async with serve(api_key=("secret-key",), admin_key="boss") as server:
        server.engine.questions[wire.View] = _view(salt)
        refused = await server.client.get("/cache?all=true", headers=USER)
        assert refused.status_code == 403
        response = await server.client.get("/cache?all=true&max_nodes=7&max_tokens=0", headers=ADMIN)
    top = response.json()["nodes"][0]
    assert top["namespace"] == "public" and top["children"][0]["namespace"] == salt.hex()[:16]
    assert salt.hex() not in response.text


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("max_nodes=0", "max_nodes"),
        ("max_nodes=10001", "max_nodes"),
        ("max_nodes=x", "max_nodes"),
        ("max_nodes=1.5", "max_nodes"),
        ("max_nodes=", "max_nodes"),
        ("max_nodes=1&max_nodes=2", "max_nodes"),
        ("max_tokens=-1", "max_tokens"),
        ("max_tokens=99999", "max_tokens"),
        ("all=perhaps", "all"),
        ("cache_salt=", "cache_salt"),
        ("depth=3", "depth"),
    ],
)
async def test_bounds_of_the_view_are_checked(query: str, param: str) -> None:
    async with serve() as server:
        response = await server.client.get(f"/cache?{query}")
    assert response.status_code == 400 and error_of(response)["param"] == param


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "hi"},
        {"prompt": ["hi"]},
        {"prompt": [104, 105]},
        {"prompt": "hi", "cache_salt": "x"},
    ],
)
async def test_a_prompt_is_explained(body: dict[str, Any]) -> None:
    async with serve() as server:
        response = await server.post("/cache/explain", body)
        shown = response.json()
    assert shown["reason"] == "never_seen" and shown["prompt_tokens"] == 2 and shown["token_ids"] == [104]


async def test_a_conversation_is_explained_as_it_would_be_sent() -> None:
    async with serve() as server:
        messages = [{"role": "user", "content": "hi"}]
        explained = (await server.post("/cache/explain", {"messages": messages})).json()
        tokens = (await server.post("/tokenize", {"messages": messages})).json()
    assert explained["prompt_tokens"] == tokens["count"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": "a", "messages": []}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": [999]}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"prompt": "a" * 600}, "prompt"),
        ({"prompt": "a", "tools": []}, "tools"),
        ({"messages": [{"role": "user", "content": "a" * 600}]}, "messages"),
        ({"messages": []}, "messages"),
        ({"prompt": "a", "cache_salt": ""}, "cache_salt"),
    ],
)
async def test_what_cannot_be_explained_is_refused_by_name(body: dict[str, Any], param: str) -> None:
    async with serve() as server:
        response = await server.post("/cache/explain", body)
    assert response.status_code == 400 and error_of(response)["param"] == param, response.text


def test_metric_names_are_those_of_a_real_engine() -> None:
    """The fake's statistics have the keys that the engine's have: else these tests would prove nothing."""
    from radixserve.engine.step_stats import StepStats

    report = StepStats().report()
    assert set(report) == set(fake_stats()["steps"])
    assert set(report["step_seconds"]) == {"edges", "counts", "sum"}
    json.dumps(report)
