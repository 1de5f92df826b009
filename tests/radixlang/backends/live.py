"""The real application over a real engine on a real socket, in a thread of the tests' process."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from radixserve import Engine
from radixserve.model.generation_config import GenerationDefaults
from radixserve.model.text import TextModel
from radixserve.server.app import build_app
from radixserve.server.connection import Connection
from radixserve.server.options import ServerOptions
from radixserve.server.service import Service

START_S = 30.0


@contextlib.contextmanager
def serve(engine: Engine, **options: object) -> Iterator[str]:
    """The URL of a server of ``engine``, which it closes in the end; ``options`` are the server's."""
    text = TextModel(
        name=engine.info.model,
        source=engine.info.source,
        tokenizer=engine.tokenizer,
        chat_template=engine.chat_format.template,
        generation=GenerationDefaults(eos_ids=engine.info.eos_ids),
    )

    async def application() -> ASGIApp:
        client = engine.client()
        await client.start()
        service = Service(client, text, ServerOptions(**options), secret=b"secret")  # type: ignore[arg-type]
        service.ready = True
        return build_app(service)

    with _thread(application) as url:
        yield url
    engine.close()


@contextlib.contextmanager
def serve_app(app: ASGIApp) -> Iterator[str]:
    """The URL of a server of any application."""

    async def application() -> ASGIApp:
        return app

    with _thread(application) as url:
        yield url


@contextlib.contextmanager
def _thread(application: object) -> Iterator[str]:
    assert callable(application)
    listener = socket.create_server(("127.0.0.1", 0))
    started = threading.Event()
    servers: list[uvicorn.Server] = []

    async def run() -> None:
        config = uvicorn.Config(await application(), http=Connection, log_config=None, access_log=False, lifespan="off")
        servers.append(uvicorn.Server(config))
        started.set()
        await servers[0].serve(sockets=[listener])

    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    assert started.wait(START_S)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        servers[0].should_exit = servers[0].force_exit = True
        thread.join(START_S)
        listener.close()
