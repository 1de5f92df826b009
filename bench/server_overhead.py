"""What HTTP and the second process add to the engine: per request, per streamed token, and in throughput.

    python bench/server_overhead.py [--rounds 5] [--kernels auto] [--out FILE.json]

Three ways to the same engine, in turns: called in this process; in a process of its own, through its sockets; and through
the HTTP server in front of that. Each has its own engine and cache; prompts are new in every round.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import statistics
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from radixserve import Engine, SamplingParams
from radixserve.bench.load import Connection
from radixserve.bench.servers import own_server
from radixserve.engine.client import Job
from radixserve.engine.socket_client import SocketClient

PROMPT = 64
VOCABULARY = 40_000
# Runs prompts of given output length at once, as streams; returns when all are complete.
Way = Callable[[list[list[int]], int], Awaitable[None]]


@contextlib.asynccontextmanager
async def in_process(options: dict[str, Any]) -> AsyncIterator[Way]:
    """The offline engine's own streams."""
    with Engine("smollm2", **options) as engine:

        async def run(prompts: list[list[int]], tokens: int) -> None:
            sampling = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)

            async def one(prompt: list[int]) -> None:
                async for _ in engine.astream(prompt, sampling):
                    pass

            await asyncio.gather(*map(one, prompts))

        yield run


@contextlib.asynccontextmanager
async def by_socket(options: dict[str, Any]) -> AsyncIterator[Way]:
    """The engine's process without HTTP."""
    client = SocketClient({"model": "smollm2", **options})
    await client.start()

    async def run(prompts: list[list[int]], tokens: int) -> None:
        sampling = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)

        async def one(prompt: list[int]) -> None:
            async for _ in client.generate([Job(rid=uuid.uuid4().hex, token_ids=prompt, sampling=sampling)]):
                pass

        await asyncio.gather(*map(one, prompts))

    try:
        yield run
    finally:
        await client.close()


@contextlib.asynccontextmanager
async def by_http(options: dict[str, Any]) -> AsyncIterator[Way]:
    """The server as it is started from a shell."""
    async with own_server(options) as url:
        connections = [await Connection.open(url) for _ in range(64)]

        async def run(prompts: list[list[int]], tokens: int) -> None:
            bodies = [
                {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True}
                for prompt in prompts
            ]
            for connection in connections[: len(bodies)]:
                await connection.renew()
            await asyncio.gather(
                *(
                    connection.post("/v1/completions", body)
                    for connection, body in zip(connections, bodies, strict=False)
                )
            )

        try:
            yield run
        finally:
            for connection in connections:
                await connection.close()


async def measure(rounds: int, options: dict[str, Any]) -> dict[str, Any]:
    """Seconds of each case by each way, in turns."""
    chance = random.Random(1)
    cases = {"one token": (1, 1), "16 streams": (16, 64), "64 streams": (64, 32)}
    seconds: dict[str, dict[str, list[float]]] = {case: {} for case in cases}
    async with in_process(options) as local, by_socket(options) as socket, by_http(options) as http:
        ways = {"in process": local, "socket": socket, "http": http}
        for number in range(rounds + 1):
            for case, (count, tokens) in cases.items():
                repeats = 20 if count == 1 else 1
                for _ in range(repeats):
                    prompts = [[chance.randrange(VOCABULARY) for _ in range(PROMPT)] for _ in range(count)]
                    for name, run in ways.items():
                        began = time.perf_counter()
                        await run(prompts, tokens)
                        if number:  # the first round warms up
                            seconds[case].setdefault(name, []).append(time.perf_counter() - began)
    return report(seconds, cases)


def report(seconds: dict[str, dict[str, list[float]]], cases: dict[str, tuple[int, int]]) -> dict[str, Any]:
    """Medians, and what each way adds to the call in this process."""
    rows: dict[str, Any] = {}
    for case, by_way in seconds.items():
        count, tokens = cases[case]
        base = by_way["in process"]
        for name, values in by_way.items():
            added = statistics.median(value - own for value, own in zip(values, base, strict=True))
            row = {"seconds": round(statistics.median(values), 5)}
            if name != "in process":
                row["added ms a request"] = round(1e3 * added / count, 3)
                row["added ms a token"] = round(1e3 * added / (count * tokens), 4)
                ratio = statistics.median(own / value for value, own in zip(values, base, strict=True))
                row["throughput"] = round(ratio, 3)
            rows[f"{case}, {name}"] = row
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kernels", default="auto")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    options = {"kernels": arguments.kernels, "kv_memory_mb": 256}
    cases = asyncio.run(measure(arguments.rounds, options))
    result = {
        "kernels": arguments.kernels,
        "rounds": arguments.rounds,
        "load": round(os.getloadavg()[0], 2),
        "cases": cases,
    }
    print(json.dumps(result, indent=1))
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
