"""What the programs have in common: a client of the server at OPENAI_BASE_URL, inputs run all at once, results printed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from openai import AsyncOpenAI

MODEL = os.environ.get("OPENAI_MODEL", "smollm2")
CONCURRENCY = 64
Program = Callable[..., Awaitable[Any]]


async def run_batch(program: Program, items: Sequence[dict[str, Any]]) -> list[Any]:
    """The results of all items, in their order."""
    free = asyncio.Semaphore(CONCURRENCY)
    base = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
    async with AsyncOpenAI(base_url=base, api_key=os.environ.get("OPENAI_API_KEY", "none"), max_retries=0) as client:

        async def one(item: dict[str, Any]) -> Any:
            async with free:
                return await program(client, **item)

        return await asyncio.gather(*map(one, items))


def run(program: Program, items: Sequence[dict[str, Any]]) -> None:
    """Run ``program`` on all items and print a line for each."""
    for result in asyncio.run(run_batch(program, items)):
        print(str(result).replace("\n", " "))
