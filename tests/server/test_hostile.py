from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import pytest

from radixserve import Engine
from radixserve.model.text import TextModel
from radixserve.server.app import build_app
from radixserve.server.options import ServerOptions
from radixserve.server.service import Service
from tests.server.harness import error_of
from tests.server.hostile import BODY_LIMIT, CONTEXT, HONEST, Hostile, corpus, with_body
from tests.tiny_model import tiny_model

BLOCKS = 64


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    model = tiny_model()
    options = {
        "num_blocks": BLOCKS,
        "context_length": CONTEXT,
        "kernels": "torch",
        "check_every_step": True,
        "hold_max_s": 600.0,
    }
    with Engine.from_model(model, **options, threads=1) as engine:
        yield engine


async def _play(engine: Engine, requests: Sequence[Hostile]) -> tuple[list[tuple[Hostile, httpx.Response]], Any, Any]:
    """What ``requests`` are answered, and the statistics before and after them."""
    model = tiny_model()
    text = TextModel(model.name, model.source, model.tokenizer, model.chat_template, model.generation)
    client = engine.client()
    await client.start()
    service = Service(client, text, ServerOptions(max_body_mb=BODY_LIMIT >> 20), secret=b"secret")
    service.ready = True
    transport = httpx.ASGITransport(app=build_app(service), raise_app_exceptions=True)
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as http:
        for path, body in HONEST.items():
            if any(endpoint.path == path for endpoint in with_body()):
                response = await http.post(path, json=body)
                assert response.status_code == 200, (path, response.text)
        before = await client.stats()
        answers = []
        for request in requests:
            response = await http.request(request.method, request.path, content=request.body, headers=request.headers)
            answers.append((request, response))
        after = await client.stats()
        assert service.num_active == 0
        assert await client.check() == []
        for path, body in HONEST.items():
            if any(endpoint.path == path for endpoint in with_body()):
                assert (await http.post(path, json=body)).status_code == 200, path
        await client.flush()
        assert (await client.stats())["blocks"]["free"] == BLOCKS
    return answers, before, after


def test_every_endpoint_that_reads_a_body_is_in_the_corpus() -> None:
    assert {endpoint.path for endpoint in with_body()} <= set(HONEST)
    requests = corpus()
    assert len(requests) >= 150
    twice = [key for key, count in Counter(map(str, requests)).items() if count > 1]
    assert len(twice) < 20, twice


def test_hostile_requests_are_refused_and_leave_no_trace(engine: Engine) -> None:
    answers, before, after = asyncio.run(_play(engine, corpus()))
    failures = []
    for request, response in answers:
        try:
            assert 400 <= response.status_code < 500, response.text[:200]
            error = error_of(response)
            assert len(error["message"]) < 2000, f"a message of {len(error['message'])} characters"
            assert error["param"] is None or len(error["param"]) <= 1000
            assert error["type"].endswith("_error")
        except (AssertionError, ValueError) as failure:
            failures.append(f"{request}: {response.status_code} {failure}"[:400])
    assert failures == [], "\n".join([f"{len(failures)} of {len(answers)}", *failures])
    assert after["blocks"] == before["blocks"]
    assert after["scheduler"]["steps"] == before["scheduler"]["steps"], "nothing hostile was computed"


def test_what_is_wrong_with_a_stream_is_told_before_it_begins(engine: Engine) -> None:
    paths = {endpoint.path for endpoint in with_body() if endpoint.stream is not None}
    kinds = ("temperature", "the schema", "the pattern", "the prompt", "messages are")
    requests = [
        Hostile(request.name, request.path, json.dumps({**json.loads(request.body), "stream": True}).encode())
        for request in corpus()
        if request.path in paths and request.name.startswith(kinds)
    ]
    assert {request.path for request in requests} == paths
    answers, before, after = asyncio.run(_play(engine, requests))
    failures = [
        f"{request}: {response.status_code}" for request, response in answers if not 400 <= response.status_code < 500
    ]
    assert failures == [] and after["blocks"] == before["blocks"]
