"""The command line that all programs share: how many inputs, on which backend, and what is printed."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from radixlang import Program, ProgramState, Runtime, RuntimeEndpoint, batch_report


def run(
    program: Program,
    inputs: Callable[..., list[dict[str, Any]]],
    answer: Callable[[ProgramState], str],
    about: str | None,
) -> None:
    """Run a program on its inputs as the command line says; print some results, and what the calls cost.

    ``inputs(count, path)``: keyword arguments of the runs. ``answer``: what to print of a run. ``about``: what ``--help`` says.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, help="items to run; by default as many as take some seconds")
    parser.add_argument("--show", type=int, default=4, help="results to print (%(default)s)")
    parser.add_argument(
        "--data", type=Path, metavar="FILE", help="inputs of your own, in the form of the program's file"
    )
    parser.add_argument("--url", help="a running server, in place of an engine in this process")
    parser.add_argument("--no-hints", action="store_true", help="tell the engine nothing in advance")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the account there")
    arguments = parser.parse_args()
    given = {} if arguments.count is None else {"count": arguments.count}
    items = inputs(**given, path=arguments.data)
    backend = RuntimeEndpoint(arguments.url) if arguments.url else Runtime("smollm2")
    try:
        states = program.run_batch(items, backend=backend, temperature=0, hints=not arguments.no_hints)
    finally:
        asyncio.run(backend.aclose())
    for number, state in enumerate(states[: arguments.show], 1):
        print(f"{number}. {answer(state)}")
    report = batch_report(states)
    print(f"\n{report}")
    if arguments.json:
        report.to_json(arguments.json)
