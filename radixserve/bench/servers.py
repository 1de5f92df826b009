"""The servers under test: how each wants its requests, and our own, started for the occasion."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

from radixserve.bench.floors import Precision
from radixserve.bench.load import Connection
from radixserve.bench.workloads import Call
from radixserve.errors import ConfigError, EngineClosed, RequestFailed

Dialect = Literal["openai", "llama.cpp"]
COMPLETIONS = "/v1/completions"


@dataclass(frozen=True, slots=True)
class Server:
    """A server of ``/v1/completions`` at ``url`` (``http://host:port``).

    ``dialect``: how it takes a schema. ``precision``: of its weights, as far as it is known; its floor is that of this one.
    """

    name: str
    url: str
    model: str
    dialect: Dialect = "openai"
    precision: Precision = "bf16"

    @property
    def port(self) -> int:
        """The port it listens on."""
        return urlsplit(self.url).port or 80

    def body(self, prompt: str | list[int], call: Call) -> dict[str, Any]:
        """The request of ``call``: greedy, streamed, and of its whole length unless a schema ends it."""
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": call.max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if call.schema is None:
            body["ignore_eos"] = True
        elif self.dialect == "llama.cpp":
            body["json_schema"] = call.schema
        else:
            body["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": "character", "schema": call.schema},
            }
        if self.dialect == "llama.cpp":
            body["cache_prompt"] = True
        return body


async def discover(name: str, url: str, *, model: str | None = None, native: bool = False) -> Server:
    """Ask the server at ``url`` what it is.

    ``model``: what to call the model; None takes the first that the server names. ``native``: its weights are in the blocks of their
    file; a server of ours tells that itself. Raises `ConfigError` where nobody answers.
    """
    if urlsplit(url).scheme != "http" or urlsplit(url).hostname is None:
        raise ConfigError("url", f"must be http://HOST:PORT, not {url!r}")
    url = url.rstrip("/").removesuffix("/v1")
    try:
        listed = await _facts(url, "/v1/models")
        facts = (await _facts(url, "/get_server_info")).get("runner", {})
    except OSError as error:
        raise ConfigError("url", f"nobody answers at {url}: {error}") from error
    models = listed.get("data") or [{}]
    dense: Precision = "fp32" if facts.get("dtype") == "float32" else "bf16"
    return Server(
        name=name,
        url=url,
        model=model or models[0].get("id") or "default",
        dialect="llama.cpp" if models[0].get("owned_by") == "llamacpp" else "openai",
        precision="native" if native or facts.get("weights") == "native" else dense,
    )


async def _facts(url: str, path: str) -> dict[str, Any]:
    """The JSON object at ``path``; empty where the server has none there."""
    async with Connection.opened(url) as connection:
        try:
            answer = await connection.get(path)
            return msgspec.json.decode(answer.events[0], type=dict[str, Any])
        except (RequestFailed, IndexError, msgspec.MsgspecError):
            return {}


@contextlib.asynccontextmanager
async def own_server(options: Mapping[str, Any]) -> AsyncIterator[str]:
    """Our server in a process of its own, as from a shell; yields its URL. ``options``: of the engine, by flat name.

    Raises `EngineClosed` with the last line that it wrote where it does not start.
    """
    flags: list[str] = []
    for name, value in options.items():
        flag = name.replace("_", "-")
        flags += [f"--{'' if value else 'no-'}{flag}"] if isinstance(value, bool) else [f"--{flag}", str(value)]
    command = [sys.executable, "-c", "from radixserve.cli.main import main; main()", "serve", "--port", "0"]
    process = subprocess.Popen(
        [*command, "--log-format", "json", *flags], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    try:
        url = await asyncio.to_thread(_ready_url, process)
        drain = asyncio.create_task(asyncio.to_thread(_drain, process))
        try:
            yield url
        finally:
            process.terminate()
            await drain
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait)


def _ready_url(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    lines: list[str] = []
    for line in process.stderr:
        lines.append(line)
        if '"url":' in line:
            return str(json.loads(line)["url"])
    raise EngineClosed(f"the server did not start: {lines[-1].strip() if lines else 'it wrote nothing'}")


def _drain(process: subprocess.Popen[str]) -> None:
    """Read on, so that the server never waits for its log to be read."""
    assert process.stderr is not None
    for _ in process.stderr:
        continue
