"""The server's process: starts the engine's, listens, and ends both in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import uvicorn

from radixserve.chat.drift import find_drift
from radixserve.config import EngineConfig
from radixserve.engine.client import EngineClient, Job
from radixserve.engine.socket_client import SocketClient
from radixserve.errors import ConfigError, EngineClosed, RadixServeError
from radixserve.messages import SamplingParams
from radixserve.model.text import load_text_model
from radixserve.server.app import build_app
from radixserve.server.callers import PUBLIC_SALT
from radixserve.server.connection import Connection
from radixserve.server.logs import set_up_logs
from radixserve.server.options import ServerOptions
from radixserve.server.screen import Screen
from radixserve.server.service import Service

logger = logging.getLogger(__name__)

ENGINE_FAILED = 70
# How long a server whose engine is gone still says so before it exits, for whoever balances its load.
_LINGER_S = 2.0
# What an abort at the end of the grace period needs to reach the clients.
_LAST_WORDS_S = 2.0
# How long an idle connection is kept. Clients and proxies pool connections for about a minute; whoever hangs up first
# should be them, or a request sent at that very moment is lost.
_KEEP_ALIVE_S = 75


def serve(engine_options: dict[str, Any], options: ServerOptions) -> int:
    """Serve until told to stop; the exit code. Raises `ConfigError` and `RadixServeError` where it cannot start."""
    set_up_logs(options)
    return asyncio.run(_serve(engine_options, options))


class _Server(uvicorn.Server):
    """Leaves signals to its caller: uvicorn's own way ends the process by the signal, whatever was left to do."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture nothing."""
        yield


async def _serve(engine_options: dict[str, Any], options: ServerOptions) -> int:
    # The port is taken first: nobody should wait for a model to hear that the address is in use.
    listener = _listen(options.host, options.port)
    screen = Screen(sys.stderr)
    model = EngineConfig.from_options(**engine_options).model.model
    client = SocketClient(engine_options, progress=screen.progress)
    try:
        prompts = _read_prompts(options.public_prompt)
        text, _ = await asyncio.gather(asyncio.to_thread(load_text_model, model), client.start())
        service = Service(client, text, options)
        if text.chat_template is not None:
            for drift in find_drift(service.chat):
                logger.warning("%s", drift)
        return await _run(service, listener, screen, prompts)
    finally:
        screen.close()
        listener.close()
        await client.close()


async def _run(service: Service, listener: socket.socket, screen: Screen, prompts: Sequence[str]) -> int:
    options = service.options
    config = uvicorn.Config(
        build_app(service),
        http=Connection,
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=max(1, round(options.grace_s + _LAST_WORDS_S)),
    )
    server = _Server(config)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.handle_exit, number, None)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    watchers = [
        asyncio.create_task(_watch_engine(service.client, server)),
        asyncio.create_task(_end_in_order(service, server)),
    ]
    try:
        screen.progress("warming up")
        await warm_up(service, prompts)
        service.ready = True
        host, port = listener.getsockname()[:2]
        url = f"http://{_printable(host)}:{port}"
        screen.show(service, url)
        logger.info("ready on %s", url, extra={"facts": {"url": url}})
        await serving
    except EngineClosed:
        await serving
    finally:
        for task in watchers:
            task.cancel()
        await asyncio.gather(*watchers, return_exceptions=True)
        if not serving.done():
            server.should_exit = True
            await serving
    failure = service.client.failure
    if failure is not None:
        logger.error("the engine is gone: %s", failure)
        return ENGINE_FAILED
    return 0


async def warm_up(service: Service, prompts: Sequence[str]) -> None:
    """Run everything once before the first caller pays for it, and compute the public prompts.

    Raises `ConfigError` for a public prompt that cannot be held.
    """
    token = service.info.eos_ids[0] if service.info.eos_ids else 0
    await _compute(service.client, [token], SamplingParams(max_tokens=2, temperature=0, ignore_eos=True), b"warm-up")
    for number, text in enumerate(prompts):
        tokens = service.text.tokenizer.encode(text, add_special=True)
        try:
            await _compute(service.client, tokens, SamplingParams(max_tokens=0, temperature=0), PUBLIC_SALT)
        except EngineClosed:
            raise
        except RadixServeError as error:
            raise ConfigError("public_prompt", f"{service.options.public_prompt[number]}: {error}") from error
        logger.info("public prompt %s: %d tokens", service.options.public_prompt[number], len(tokens))


async def _compute(client: EngineClient, tokens: list[int], sampling: SamplingParams, salt: bytes) -> None:
    job = Job(rid=uuid.uuid4().hex, token_ids=tokens, sampling=sampling, salt=salt)
    async for chunk in client.generate([job]):
        if chunk.output is not None and chunk.output.error is not None:
            raise ConfigError("model", f"a first forward pass fails: {chunk.output.error}")


async def _watch_engine(client: EngineClient, server: uvicorn.Server) -> None:
    """End the server some time after its engine is gone."""
    reason = await client.wait_failed()
    logger.error("the engine is gone: %s", reason)
    await asyncio.sleep(_LINGER_S)
    server.should_exit = True


async def _end_in_order(service: Service, server: uvicorn.Server) -> None:
    """Once the server was told to stop: let requests run on for the grace period, then abort what is left."""
    while not server.should_exit:
        await asyncio.sleep(0.1)
    service.ready = False
    deadline = time.monotonic() + service.options.grace_s
    while service.num_active and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    if service.num_active:
        logger.warning(
            "%d requests did not end within %g s and are aborted", service.num_active, service.options.grace_s
        )
        await service.abort_all()


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises `ConfigError` where the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, UnicodeError) as error:
        listener.close()
        raise ConfigError("port" if port else "host", f"cannot listen on {host}:{port}: {error}") from None
    listener.listen(2048)
    listener.setblocking(False)
    return listener


def _read_prompts(paths: Sequence[str]) -> list[str]:
    texts = []
    for path in paths:
        try:
            texts.append(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError("public_prompt", f"{path} cannot be read: {error}") from None
        if not texts[-1]:
            raise ConfigError("public_prompt", f"{path} is empty")
    return texts


def _printable(host: str) -> str:
    if host in ("0.0.0.0", "::"):
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host
