"""A client for the application over a scripted engine, without sockets."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import msgspec

from radixserve.engine.client import Job
from radixserve.server.app import build_app
from radixserve.server.options import ServerOptions
from radixserve.server.service import Service
from tests.server.fake_client import FakeClient, Script, text_model


class Harness:
    """The application, its engine and a client that is not told of errors by exceptions."""

    def __init__(self, service: Service, engine: FakeClient, client: httpx.AsyncClient) -> None:
        self.service = service
        self.engine = engine
        self.client = client

    async def post(self, path: str, body: Any = None, **more: Any) -> httpx.Response:
        """POST ``body`` as JSON."""
        return await self.client.post(path, json=body, **more)

    async def events(self, path: str, body: Any) -> list[Any]:
        """The data of all events of a stream, which must end with [DONE]."""
        response = await self.post(path, {**body, "stream": True})
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.text.split("\n\n") if line]
        assert lines[-1] == "data: [DONE]"
        return [msgspec.json.decode(line.removeprefix("data: ")) for line in lines[:-1]]


@contextlib.asynccontextmanager
async def serve(
    script: Callable[[Job], Script] | Script | None = None, engine: FakeClient | None = None, **options: Any
) -> AsyncIterator[Harness]:
    """A running application; ``options`` are the server's."""
    engine = engine or FakeClient(script)
    await engine.start()
    service = Service(engine, text_model(), ServerOptions(**options), secret=b"secret")
    service.ready = True
    transport = httpx.ASGITransport(app=build_app(service), raise_app_exceptions=True)
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        yield Harness(service, engine, client)
    assert service.num_active == 0, "every request was forgotten when it ended"
    assert engine.running == []
    await engine.close()


def error_of(response: httpx.Response) -> dict[str, Any]:
    """The error of a refused request, in OpenAI's shape."""
    body = response.json()
    assert set(body) == {"error"} and set(body["error"]) == {"message", "type", "param", "code"}, body
    error: dict[str, Any] = body["error"]
    assert isinstance(error["message"], str) and error["message"]
    return error
