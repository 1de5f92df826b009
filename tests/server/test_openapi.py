"""The OpenAPI document, and requests made from it: whatever a client sends, nothing is a 5xx."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
import schemathesis
import uvicorn

from radixserve.server.app import build_app
from radixserve.server.openapi import document
from radixserve.server.options import ServerOptions
from radixserve.server.routes import ENDPOINTS
from radixserve.server.service import Service
from tests.server.fake_client import FakeClient, Script, text_model

EXAMPLES = 15


class _Background:
    """The application over a scripted engine, on a thread and a port of its own."""

    def __init__(self) -> None:
        self.url = ""
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._server: uvicorn.Server | None = None

    def __enter__(self) -> _Background:
        self._thread.start()
        assert self._ready.wait(30)
        return self

    def __exit__(self, *error: object) -> None:
        assert self._server is not None
        self._server.should_exit = True
        self._thread.join(30)

    async def _serve(self) -> None:
        engine = FakeClient(Script(("Hello", " there")))
        await engine.start()
        service = Service(engine, text_model(), ServerOptions(admin_key="root"))
        service.ready = True
        config = uvicorn.Config(build_app(service), port=0, log_config=None, lifespan="off")
        self._server = server = uvicorn.Server(config)
        serving = asyncio.ensure_future(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._ready.set()
        await serving
        assert service.num_active == 0
        await engine.close()


@pytest.fixture(scope="module")
def background() -> Iterator[_Background]:
    with _Background() as running:
        yield running


def test_the_document_names_every_endpoint_and_every_field() -> None:
    made = document(ENDPOINTS)
    listed = {(method.upper(), path) for path, methods in made["paths"].items() for method in methods}
    assert {(endpoint.method, endpoint.path.replace(":path", "")) for endpoint in ENDPOINTS} == listed
    chat = made["components"]["schemas"]["ChatRequest"]
    assert chat["required"] == ["messages"] and chat["additionalProperties"] is False
    assert {"temperature", "tools", "cache_salt", "explain_cache"} <= set(chat["properties"])
    operations = [operation["operationId"] for methods in made["paths"].values() for operation in methods.values()]
    assert len(operations) == len(set(operations))


def test_everything_that_the_document_refers_to_is_in_it() -> None:
    made = document(ENDPOINTS)

    def references(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            yield from ([value["$ref"]] if isinstance(value.get("$ref"), str) else [])
            for item in value.values():
                yield from references(item)
        elif isinstance(value, list):
            for item in value:
                yield from references(item)

    for reference in references(made):
        assert reference.removeprefix("#/components/schemas/") in made["components"]["schemas"], reference


@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode), ids=lambda mode: mode.name.lower())
def test_no_request_is_a_server_error(background: _Background, mode: schemathesis.GenerationMode) -> None:
    """Random requests, such as the document allows and such as it does not, to every endpoint."""
    schema = schemathesis.openapi.from_url(f"{background.url}/openapi.json")
    schema.config.generation.update(modes=list(schemathesis.GenerationMode))
    tried = 0
    for result in schema.get_all_operations():
        assert not isinstance(result, schemathesis.core.result.Err), result
        operation = result.ok()

        @hypothesis.settings(
            max_examples=EXAMPLES,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
        def check(case: schemathesis.Case[Any]) -> None:
            nonlocal tried
            tried += 1
            response = case.call()
            assert response.status_code < 500, (case.as_curl_command(), response.text)
            if response.status_code >= 400:
                assert "error" in response.json(), (case.as_curl_command(), response.text)

        try:
            check()
        except hypothesis.errors.Unsatisfiable:
            # An endpoint that takes nothing can be asked nothing wrong.
            continue
    assert tried > 10 * EXAMPLES
