"""The whole thing: both processes, the real model, real sockets."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from radixserve import Engine, SamplingParams
from tests.server.process import MAIN, START_S, ServerProcess, command_lines, run_to_end, wait_until

pytestmark = pytest.mark.anyio
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
HELLO = [{"role": "user", "content": "Count from one to ten."}]


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess("--admin-key", "root") as running:
        yield running


async def stream_text(
    client: httpx.AsyncClient, path: str, body: dict[str, Any], leave_after: int | None = None
) -> str:
    """The text of choice 0; with ``leave_after`` the client leaves after that many events."""
    text = ""
    events = 0
    async with client.stream("POST", path, json={**body, "stream": True}) as response:
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            event = json.loads(line.removeprefix("data: "))
            assert "error" not in event, event
            for choice in event["choices"]:
                text += choice["text"] if "text" in choice else choice["delta"].get("content") or ""
            events += 1
            if events == leave_after:
                break
    return text


async def settled(client: httpx.AsyncClient) -> dict[str, Any]:
    """The engine's statistics once nothing runs."""
    headers = {"Authorization": "Bearer root"}
    for _ in range(400):
        stats: dict[str, Any] = (await client.get("/server_info", headers=headers)).json()["stats"]
        if stats["running"] == stats["waiting"] == 0:
            return stats
        await asyncio.sleep(0.05)
    raise AssertionError(f"something still runs: {stats}")


HOLDER = """
import sys, time, httpx
ids = [index % 1000 + 100 for index in range(200)]
print(httpx.post(sys.argv[1] + "/hold", json={"input_ids": ids, "ttl_s": 2.0}, timeout=60).text, flush=True)
time.sleep(600)
"""


async def test_a_client_that_is_killed_pins_nothing(server: ServerProcess) -> None:
    """Nobody releases its hold; its time ends it, while nothing runs."""
    async with server.client() as client:
        before = (await settled(client))["holds"]["expired"]
        holder = subprocess.Popen([sys.executable, "-c", HOLDER, server.url], stdout=subprocess.PIPE, text=True)
        try:
            assert holder.stdout is not None
            held = json.loads(await asyncio.to_thread(holder.stdout.readline))
            assert held["held_tokens"] == held["prompt_tokens"] == 200
        finally:
            holder.kill()
            holder.wait()

        async def ended() -> bool:
            holds = (await settled(client))["holds"]
            return bool(holds["count"] == holds["blocks"] == 0 and holds["expired"] == before + 1)

        async with asyncio.timeout(60):
            while not await ended():
                await asyncio.sleep(0.1)
        stats = await settled(client)
    assert stats["blocks"]["evictable"] == stats["blocks"]["tree"]


async def test_a_conversation_is_answered(server: ServerProcess) -> None:
    async with server.client() as client:
        body = {"model": "smollm2", "messages": HELLO, "max_tokens": 16, "temperature": 0}
        first = (await client.post(CHAT, json=body)).json()
        again = (await client.post(CHAT, json=body)).json()
        streamed = await stream_text(client, CHAT, body)
    message = first["choices"][0]["message"]["content"]
    assert message and message == again["choices"][0]["message"]["content"] == streamed
    usage = again["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] - 1


async def test_many_streams_and_clients_that_leave(server: ServerProcess) -> None:
    """All who stay get what the offline engine says, and nothing is left behind."""
    chance = random.Random(3)
    bodies = [
        {
            "prompt": f"{'In the beginning there was a tree. ' * chance.randrange(0, 6)}Number {index} is",
            "max_tokens": chance.randrange(4, 24),
            "temperature": 0,
        }
        for index in range(64)
    ]
    leaving = set(chance.sample(range(64), 21))
    async with server.client() as client:
        texts = await asyncio.gather(
            *(
                stream_text(client, COMPLETIONS, body, leave_after=chance.randrange(1, 4) if index in leaving else None)
                for index, body in enumerate(bodies)
            )
        )
        stats = await settled(client)
        assert (await client.get("/health")).status_code == 200
    assert stats["blocks"]["private"] == stats["blocks"]["retired"] == 0
    assert stats["blocks"]["free"] + stats["blocks"]["tree"] == stats["blocks"]["total"]
    assert stats["blocks"]["evictable"] == stats["blocks"]["tree"], "no block is locked by anybody"
    staying = [index for index in range(64) if index not in leaving]
    with Engine("smollm2", kv_memory_mb=256) as engine:
        outputs = engine.generate(
            [str(bodies[index]["prompt"]) for index in staying],
            [SamplingParams(temperature=0, max_tokens=int(str(bodies[index]["max_tokens"]))) for index in staying],
        )
    assert [texts[index] for index in staying] == [output.text for output in outputs]


async def test_a_short_prompt_does_not_wait_for_long_ones(server: ServerProcess) -> None:
    async with server.client() as client:
        long = [
            asyncio.ensure_future(
                client.post(COMPLETIONS, json={"prompt": [first] + [token] * 5999, "max_tokens": 1, "temperature": 0})
            )
            for first, token in ((100, 200), (101, 201))
        ]
        headers = {"Authorization": "Bearer root"}
        while (await client.get("/server_info", headers=headers)).json()["stats"]["running"] < 2:
            await asyncio.sleep(0.01)
        short = (await client.post(COMPLETIONS, json={"prompt": [300], "max_tokens": 1, "temperature": 0})).json()
        assert not any(task.done() for task in long), "the long prompts were still being computed"
        assert [(await task).status_code for task in long] == [200, 200]
    assert short["timings"]["steps_waited"] <= 2


async def test_a_disconnect_without_a_stream_aborts_too(server: ServerProcess) -> None:
    async with server.client() as client:
        before = (await settled(client))["scheduler"]["finished"].get("abort", 0)
        with pytest.raises(httpx.ReadTimeout):
            await client.post(
                COMPLETIONS, json={"prompt": "Once", "max_tokens": 4000, "ignore_eos": True}, timeout=httpx.Timeout(1.0)
            )
        after = (await settled(client))["scheduler"]["finished"]["abort"]
    assert after == before + 1


async def test_keys_are_nowhere_to_be_read() -> None:
    with ServerProcess(
        environment={"RADIXSERVE_API_KEY": "sk-one,sk-two", "RADIXSERVE_ADMIN_KEY": "sk-root"}
    ) as server:
        lines = command_lines([server.process.pid, *server.children()])
        async with server.client() as client:
            body = {"messages": HELLO, "max_tokens": 2}
            assert (await client.post(CHAT, json=body)).status_code == 401
            wrong = await client.post(CHAT, json=body, headers={"Authorization": "Bearer sk-wrong"})
            right = await client.post(
                CHAT, json=body, headers={"Authorization": "Bearer sk-two", "X-Request-Id": "mine"}
            )
            info = await client.get("/server_info", headers={"Authorization": "Bearer sk-root"})
        assert (wrong.status_code, right.status_code, info.status_code) == (401, 200, 200)
        assert right.headers["x-request-id"] == "mine"
        assert server.stop() == 0
    for text in (lines, server.log, wrong.text, info.text):
        assert "sk-" not in text
    assert '"request_id":"mine"' in server.log
    assert "Count from one" not in server.log, "prompts are not logged"


async def test_a_killed_engine_is_told_at_once() -> None:
    with ServerProcess() as server:
        (engine,) = server.children()
        async with server.client() as client:
            body = {"prompt": "Once", "max_tokens": 4000, "ignore_eos": True}
            whole = asyncio.ensure_future(client.post(COMPLETIONS, json=body))
            async with client.stream("POST", COMPLETIONS, json={**body, "stream": True}) as response:
                lines = response.aiter_lines()
                assert (await anext(lines)).startswith("data: ")
                os.kill(engine, signal.SIGKILL)
                rest = [line async for line in lines if line.startswith("data: ")]
            assert json.loads(rest[-1].removeprefix("data: "))["error"]["code"] == "engine_gone"
            assert (await whole).status_code == 503
            health = await client.get("/health")
        assert health.status_code == 503 and "SIGKILL" in health.text
        assert server.wait() == 70
    assert "SIGKILL" in server.log


async def test_a_stop_lets_requests_end() -> None:
    with ServerProcess("--grace-s", "60") as server:
        async with server.client() as client:
            running = asyncio.ensure_future(
                client.post(COMPLETIONS, json={"prompt": "Once", "max_tokens": 400, "ignore_eos": True})
            )
            await _running(server, client)
            server.process.send_signal(signal.SIGTERM)
            body = (await running).json()
        assert body["choices"][0]["finish_reason"] == "length"
        assert server.wait() == 0


async def test_a_signal_to_the_group_is_an_orderly_stop_too() -> None:
    with ServerProcess("--grace-s", "60", start_new_session=True) as server:
        async with server.client() as client:
            running = asyncio.ensure_future(
                client.post(COMPLETIONS, json={"prompt": "Once", "max_tokens": 400, "ignore_eos": True})
            )
            await _running(server, client)
            os.killpg(server.process.pid, signal.SIGTERM)
            assert (await running).json()["choices"][0]["finish_reason"] == "length"
        assert server.wait() == 0


async def test_a_stop_ends_what_takes_too_long() -> None:
    with ServerProcess("--grace-s", "0.2") as server:
        async with server.client() as client:
            running = asyncio.ensure_future(
                client.post(COMPLETIONS, json={"prompt": "Once", "max_tokens": 8000, "ignore_eos": True})
            )
            await _running(server, client)
            server.process.send_signal(signal.SIGTERM)
            body = (await running).json()
        assert body["choices"][0]["finish_reason"] == "abort"
        assert server.wait() == 0


async def _running(server: ServerProcess, client: httpx.AsyncClient) -> None:
    deadline = time.monotonic() + 30
    while "radixserve_running 1.0" not in (await client.get("/metrics")).text:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


def test_what_cannot_start_says_why() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code, log = run_to_end("--port", str(taken.getsockname()[1]))
    assert code == 2 and "port" in log and "in use" in log
    code, log = run_to_end("--model", "/nowhere/model.gguf")
    assert code != 0 and "no such file" in log


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (("--max-queued-requests", "0"), "max_queued_requests"),
        (("--api-key", ""), "api_key"),
        (("--block-size", "0"), "block_size"),
        (("--config", "/nowhere.toml"), "config"),
        (("one", "--model", "two"), "model"),
    ],
)
def test_bad_options_are_named(arguments: tuple[str, ...], name: str) -> None:
    code, log = run_to_end(*arguments)
    assert code == 2 and f"error: {name}" in log


def test_an_engine_that_cannot_start_says_only_why() -> None:
    code, log = run_to_end("--kernels", "native", "--block-size", "7")
    assert code != 0 and "block_size 7 is not a multiple of 16" in log
    assert "Traceback" not in log


def test_a_server_serves_where_nothing_can_be_written() -> None:
    """Standard error on a full disk: progress, the screen and the log are lost, nothing else."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-c", MAIN, "serve", "--port", str(port), "--kv-memory-mb", "256"]
    with Path("/dev/full").open("w") as full, subprocess.Popen(command, stderr=full) as process:
        try:
            wait_until(lambda: _is_ready(port), START_S)
            process.terminate()
            assert process.wait(60) == 0
        finally:
            process.kill()


def _is_ready(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/ready", timeout=10).status_code == 200
    except httpx.TransportError:
        return False
