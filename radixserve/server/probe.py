"""Makes one token, to see whether tokens can be had."""

from __future__ import annotations

import asyncio
import contextlib
import time

from radixserve.engine.client import EngineClient, Job
from radixserve.errors import EngineClosed, RadixServeError
from radixserve.messages import SamplingParams

WAIT_S = 10.0
# Its own namespace: what a probe computes is seen by no request.
_SALT = b"probe"


class Probe:
    """Any number of callers share one attempt, so that asking often costs the engine nothing.

    ``wait_s``: how long an attempt may take. ``last_token``: when an attempt last brought a token (`time.perf_counter`).
    """

    def __init__(self, client: EngineClient, wait_s: float = WAIT_S) -> None:
        self.wait_s = wait_s
        self.last_token = 0.0
        self._client = client
        self._attempts = 0
        self._attempt: asyncio.Task[str | None] | None = None

    async def run(self) -> str | None:
        """Why no token can be had; None once one was made. Raises `EngineClosed`."""
        attempt = self._attempt
        if attempt is None or attempt.done():
            attempt = self._attempt = asyncio.create_task(self._try())
        # A caller that leaves takes nobody else's answer away.
        return await asyncio.shield(attempt)

    async def _try(self) -> str | None:
        self._attempts += 1
        eos_ids = self._client.info.eos_ids
        job = Job(
            rid=f"probe-{self._attempts}",
            token_ids=[eos_ids[0] if eos_ids else 0],
            sampling=SamplingParams(max_tokens=1, temperature=0, ignore_eos=True),
            salt=_SALT,
        )
        made = False
        try:
            async with asyncio.timeout(self.wait_s), contextlib.aclosing(self._client.generate([job])) as chunks:
                async for chunk in chunks:
                    if chunk.token_ids:
                        made, self.last_token = True, time.perf_counter()
                    if chunk.output is not None and chunk.output.error is not None:
                        return f"a token cannot be generated: {chunk.output.error}"
        except TimeoutError:
            return f"no token was generated within {self.wait_s:g} s"
        except EngineClosed:
            raise
        except RadixServeError as error:
            return f"a token cannot be generated: {error}"
        return None if made else "the attempt to generate a token was aborted"
