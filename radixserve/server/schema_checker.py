"""Reports on JSON schemas without keeping anybody waiting."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE
from typing import Any

import msgspec

from radixserve.grammar.schema.limits import Limits
from radixserve.grammar.schema.refusal import TOO_COMPLEX
from radixserve.grammar.schema.report import Refusal, SchemaReport, check_schema

SECONDS = 10.0
# Some ten milliseconds of work, which a thread of this process may do.
_QUICK = Limits(values=2_000, characters=100_000, shapes=2_000, shapes_per_value=500, places=500, steps=2_000)


class SchemaChecker:
    """What is more than a little work is done by another process, for one schema at a time and for at most ``seconds``."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._turn = asyncio.Semaphore(1)

    async def check(self, schema: Any) -> SchemaReport:
        """The report on a parsed schema."""
        report = await asyncio.to_thread(check_schema, schema, limits=_QUICK)
        # Without an example, the search for one was too much.
        if report.example is None if report.supported else _too_complex(report):
            async with self._turn:
                return await self._elsewhere(schema)
        return report

    async def _elsewhere(self, schema: Any) -> SchemaReport:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "radixserve.grammar.report_process",
            stdin=PIPE,
            stdout=PIPE,
            stderr=DEVNULL,
            env=environment,
        )
        try:
            async with asyncio.timeout(self._seconds):
                output, _ = await process.communicate(msgspec.json.encode(schema))
            return msgspec.json.decode(output, type=SchemaReport)
        except (TimeoutError, msgspec.DecodeError):
            reason = f"checking it takes more than {self._seconds:g} s or too much memory"
            return SchemaReport(False, [], [], [], [Refusal("schema", "#", reason, TOO_COMPLEX)])
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()


def _too_complex(report: SchemaReport) -> bool:
    return any(refusal.code == TOO_COMPLEX for refusal in report.refused)
