"""The eleven programs of examples/programs on the embedded model, with and without what the engine and the language do for them.

    python -m bench.programs [--rounds 3] [--programs react rag] [--ways tree fcfs] [--count 4] [--out FILE.json]

The ways, in turns; each begins with an empty cache:

- ``tree``: as an example runs; all programs of a batch at once.
- ``no cache``: an engine that shares nothing between requests.
- ``fcfs``: an engine whose queue is first come, first served.
- ``one at a time``: each program has at most one call under way, so branches of a fork run one after the other.
- ``no hints``: nothing is announced, held or given priority.
- ``scarce``, ``scarce fcfs``: a pool of 2,560 tokens and four requests at a time, so that the queue's order decides what is still
  in the cache.

All must bring the same texts, or this fails. Seconds are medians; tokens are of the first round.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import json
import os
import statistics
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

from bench import program_lines
from examples.programs import NAMES
from radixlang import ProgramState, Report, batch_report
from radixlang.backends.base import Call, Continuations, Hold, Piece
from radixlang.backends.engine import EngineBackend
from radixserve import Engine
from radixserve.model.loader import load_model

# Way -> options of its engine; ways with the same ones share it.
WAYS: dict[str, dict[str, Any]] = {
    "tree": {},
    "no cache": {"prefix_cache": "off"},
    "fcfs": {"policy": "fcfs"},
    "one at a time": {},
    "no hints": {},
    "scarce": {"num_blocks": 160, "max_running": 4},
    "scarce fcfs": {"num_blocks": 160, "max_running": 4, "policy": "fcfs"},
}
TEMPERATURE = 0.0


class OneAtATime:
    """A backend for one program: its calls wait for each other."""

    token_exact = True

    def __init__(self, backend: EngineBackend) -> None:
        self._backend = backend
        self._free = asyncio.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    async def generate(self, token_ids: Sequence[int], call: Call) -> AsyncGenerator[Piece, None]:
        """One generation, once the one before has ended."""
        async with self._free, contextlib.aclosing(self._backend.generate(token_ids, call)) as pieces:
            async for piece in pieces:
                yield piece

    async def score(
        self, token_ids: Sequence[int], continuations: Sequence[Sequence[int]], *, priority: int = 0
    ) -> Continuations:
        """One scoring, likewise."""
        async with self._free:
            return await self._backend.score(token_ids, continuations, priority=priority)

    async def hold(self, token_ids: Sequence[int], *, seconds: float, priority: int = 0) -> Hold:
        """One hold, likewise."""
        async with self._free:
            return await self._backend.hold(token_ids, seconds=seconds, priority=priority)


class Engines:
    """The engines of all ways, on one copy of the weights."""

    def __init__(self, memory_mb: int) -> None:
        self._model = load_model("smollm2")
        self._memory_mb = memory_mb
        self._engines: dict[str, Engine] = {}

    def backend(self, way: str) -> EngineBackend:
        """The engine of a way, made at first use."""
        options = {"kv_memory_mb": self._memory_mb} | WAYS[way]
        if "num_blocks" in options:
            del options["kv_memory_mb"]
        key = repr(options)
        if key not in self._engines:
            self._engines[key] = Engine.from_model(self._model, **options)
        return EngineBackend(self._engines[key])

    def close(self) -> None:
        """End them all."""
        for engine in self._engines.values():
            engine.close()


async def run(module: ModuleType, items: list[dict[str, Any]], way: str, engines: Engines) -> tuple[float, Any]:
    """Run all items in a way, from an empty cache: seconds, and the states."""
    backend = engines.backend(way)
    await backend.flush()
    options: dict[str, Any] = {"temperature": TEMPERATURE, "hints": way != "no hints"}
    began = time.perf_counter()
    states: list[ProgramState]
    if way == "one at a time":
        runs = (module.program.arun(**item, backend=OneAtATime(backend), **options) for item in items)
        states = await asyncio.gather(*runs)
    else:
        states = await module.program.arun_batch(items, backend=backend, concurrency=len(items), **options)
    return time.perf_counter() - began, states


async def measure(name: str, count: int | None, rounds: int, ways: list[str], engines: Engines) -> dict[str, Any]:
    """One program in all of ``ways``."""
    module = importlib.import_module(f"examples.programs.{name}")
    items = module.inputs() if count is None else module.inputs(count)
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    reports: dict[str, Report] = {}
    texts: list[str] = []
    for number in range(rounds):
        # Who is first changes, since the machine's mood does.
        for way in (*ways[number % len(ways) :], *ways[: number % len(ways)]):
            wall, states = await run(module, items, way, engines)
            seconds[way].append(wall)
            reports.setdefault(way, batch_report(states))
            found = [state.text() for state in states]
            texts = texts or found
            if found != texts:
                raise RuntimeError(f"{name}: {way} brought other texts")
    return {
        "items": len(items),
        "ways": {way: figures(reports[way], seconds[way]) for way in ways},
        "lines": asdict(program_lines.count(name)),
    }


def figures(report: Report, seconds: list[float]) -> dict[str, Any]:
    """What is kept of a way."""
    total = report.total
    assert report.reused is not None and report.reusable is not None
    return {
        "seconds": round(statistics.median(seconds), 3),
        "calls": total.calls,
        "prompt": total.prompt,
        "computed": total.computed,
        "needed": total.needed,
        "generated": total.generated,
        "forced": total.forced,
        "hit_rate": round(report.reused / total.prompt, 4),
        "optimal_hit_rate": round(report.reusable / total.prompt, 4),
        "of_optimum": round(report.share or 0.0, 4),
    }


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--programs", nargs="+", choices=NAMES, default=NAMES, metavar="NAME")
    parser.add_argument("--ways", nargs="+", choices=[*WAYS], default=[*WAYS], metavar="WAY")
    parser.add_argument("--count", type=int, help="items of each program; all by default")
    parser.add_argument("--memory-mb", type=int, default=768, help="KV pool of each engine")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    engines = Engines(arguments.memory_mb)
    result: dict[str, Any] = {
        "rounds": arguments.rounds,
        "cores": os.cpu_count(),
        "memory_mb": arguments.memory_mb,
        "programs": {},
    }
    try:
        for name in arguments.programs:
            row = await measure(name, arguments.count, arguments.rounds, arguments.ways, engines)
            result["programs"][name] = row
            print(name, {way: figures["seconds"] for way, figures in row["ways"].items()}, file=sys.stderr, flush=True)
    finally:
        engines.close()
    result["load"] = round(os.getloadavg()[0], 2)
    text = json.dumps(result, indent=1)
    if arguments.out:
        arguments.out.write_text(text + "\n")
    else:
        print(text)


if __name__ == "__main__":
    asyncio.run(main())
