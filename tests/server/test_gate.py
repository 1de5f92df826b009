from __future__ import annotations

import json
import logging

import pytest

from radixserve.server.gate import OPEN_PATHS
from radixserve.server.logs import JSONFormatter, TextFormatter
from radixserve.server.routes import ENDPOINTS
from tests.server.fake_client import Script
from tests.server.harness import error_of, serve

pytestmark = pytest.mark.anyio
COMPLETION = {"prompt": "secret prompt", "max_tokens": 3}


async def test_every_endpoint_but_the_open_ones_needs_a_key() -> None:
    async with serve(api_key=("one",)) as server:
        for endpoint in ENDPOINTS:
            path = endpoint.path.replace("{model:path}", "tiny").replace("{id}", "x")
            response = await server.client.request(endpoint.method, path)
            if endpoint.path in OPEN_PATHS:
                assert response.status_code not in (401, 403), path
            else:
                assert response.status_code == 401, path
                assert error_of(response)["code"] == "invalid_api_key"
                assert response.headers["www-authenticate"] == "Bearer"
        assert all(job.salt == b"probe" for job in server.engine.jobs), "nothing ran but the probe of /ready"


async def test_a_request_id_is_echoed_or_made() -> None:
    async with serve() as server:
        given = await server.client.get("/health", headers={"X-Request-Id": "mine-1"})
        made = [(await server.client.get("/health")).headers["x-request-id"] for _ in range(2)]
        long = await server.client.get("/health", headers={"X-Request-Id": "x" * 500})
        failed = await server.client.get("/nowhere", headers={"X-Request-Id": "mine-2"})
    assert given.headers["x-request-id"] == "mine-1" and failed.headers["x-request-id"] == "mine-2"
    assert made[0] != made[1] and made[0].startswith("req-")
    assert long.headers["x-request-id"].startswith("req-")


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "not_found"),
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("DELETE", "/v1/completions", 405, "method_not_allowed"),
        ("POST", "/v1/models", 405, "method_not_allowed"),
        ("GET", "/v1/models/other", 404, "model_not_found"),
    ],
)
async def test_what_is_not_there_is_an_error_of_the_usual_shape(method: str, path: str, status: int, code: str) -> None:
    async with serve() as server:
        response = await server.client.request(method, path)
    assert response.status_code == status and error_of(response)["code"] == code
    if status == 405:
        assert response.headers["allow"]


async def test_the_log_line_has_facts_and_no_texts(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "radixserve.access"):
        async with serve(Script(("secret output",)), api_key=("one",)) as server:
            headers = {"Authorization": "Bearer one", "X-Request-Id": "mine"}
            await server.post("/v1/completions", COMPLETION, headers=headers)
    (record,) = caplog.records
    line = json.loads(JSONFormatter().format(record))
    assert line["request_id"] == "mine" and line["status"] == 200 and line["path"] == "/v1/completions"
    assert (line["prompt_tokens"], line["cached_tokens"], line["completion_tokens"]) == (13, 0, 3)
    assert line["key"].startswith("key-") and line["ms"] > 0
    for text in (json.dumps(line), TextFormatter().format(record)):
        assert "secret" not in text and "Bearer" not in text


async def test_texts_are_logged_where_the_operator_wants_it(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "radixserve.access"):
        async with serve(Script(("secret output",)), log_prompts=True) as server:
            await server.post("/v1/completions", COMPLETION)
    line = json.loads(JSONFormatter().format(caplog.records[0]))
    assert line["prompts"] == ["secret prompt"] and line["outputs"] == [["sec"]]
    assert "secret prompt" in TextFormatter().format(caplog.records[0])


async def test_browsers_may_call_from_the_given_origins() -> None:
    preflight = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
    async with serve(cors=("https://a.example",), api_key=("one",)) as server:
        allowed = await server.client.options("/v1/completions", headers=preflight)
        refused = await server.client.options("/v1/completions", headers={**preflight, "Origin": "https://b.example"})
        # An answer without a key must be readable by the page too.
        answer = await server.post("/v1/completions", COMPLETION, headers={"Origin": "https://a.example"})
    assert allowed.status_code == 200 and allowed.headers["access-control-allow-origin"] == "https://a.example"
    assert refused.status_code == 400
    assert answer.status_code == 401 and answer.headers["access-control-allow-origin"] == "https://a.example"
    async with serve() as server:
        closed = await server.client.options("/v1/completions", headers=preflight)
    assert "access-control-allow-origin" not in closed.headers


async def test_responses_are_counted_by_known_paths() -> None:
    async with serve() as server:
        await server.client.get("/health")
        await server.client.get("/made/up/1")
        await server.client.get("/made/up/2")
        text = server.service.metrics.render({}).decode()
    assert 'radixserve_http_responses_total{path="/health",status="200"} 1.0' in text
    assert 'radixserve_http_responses_total{path="other",status="404"} 2.0' in text
    assert "/made/up" not in text


async def test_a_bug_in_a_handler_is_a_500_that_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve() as server:
        monkeypatch.setattr(server.service, "check_model", lambda name: 1 / 0)
        response = await server.post("/v1/completions", COMPLETION)
    assert response.status_code == 500
    error = error_of(response)
    assert error["code"] == "internal" and "division" not in error["message"]
