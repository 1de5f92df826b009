"""An engine that plays scripts: tests of the server need no model, no thread and no waiting.

It refuses what an engine would refuse, by the same limits. Tokens are bytes: id 104 is ``h`` (`tests.tiny_model.byte_tokenizer`).
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from radixserve.engine import wire
from radixserve.engine.client import CacheView, EngineInfo, Job
from radixserve.engine.intake import check_hold, check_pooling
from radixserve.engine.stream_client import StreamClient
from radixserve.errors import RadixServeError
from radixserve.messages import (
    Explanation,
    FinishReason,
    GenerationChunk,
    GenerationOutput,
    HeldPrefix,
    SampleOutput,
    SamplingParams,
    Timings,
    TokenLogprob,
)
from radixserve.model.chat_template import ChatTemplate
from radixserve.model.generation_config import GenerationDefaults
from radixserve.model.text import TextModel
from tests.tiny_model import TEMPLATE, VOCAB_SIZE, byte_tokenizer


@dataclass(frozen=True, slots=True)
class Script:
    """What a job brings.

    ``pieces``: texts, one chunk each, the same for all samples; a step brings one piece of each. ``finish_reason`` and
    ``stop_reason`` come after them, unless ``max_tokens`` cuts them short. ``error``: the job fails after its pieces.
    ``refusal``: it is not even queued. ``delay_s``: before every step; ``gate``: the job's steps wait until it is set.
    ``healed_tokens``: where healing is asked for.
    ``vector``: where an embedding is wanted; None takes a unit vector by the prompt's length.
    """

    pieces: Sequence[str] = ("Hello", ", world")
    finish_reason: FinishReason = FinishReason.STOP
    stop_reason: str | int | None = None
    error: str | None = None
    refusal: RadixServeError | None = None
    delay_s: float = 0.0
    gate: asyncio.Event | None = None
    cached_tokens: int = 0
    healed_tokens: int = 0
    vector: Sequence[float] | None = None


def fake_info(**changes: Any) -> EngineInfo:
    """Of a small engine over the byte tokenizer."""
    values: dict[str, Any] = {
        "model": "tiny",
        "source": "made in code",
        "architecture": "llama",
        "fingerprint": "0123456789abcdef",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 2,
        "context_length": 512,
        "num_blocks": 256,
        "block_size": 16,
        "max_running": 16,
        "eos_ids": (257, 259),
        "default_sampling": SamplingParams(),
        "runner": {"kernels": "fake", "dtype": "float32", "kv_bytes": 0},
        "options": {"model": "tiny", "seed": 0},
    }
    return EngineInfo(**{**values, **changes})


def text_model() -> TextModel:
    """The text side that belongs to `fake_info`."""
    tokenizer = byte_tokenizer()
    defaults = GenerationDefaults(eos_ids=tokenizer.eos_ids)
    return TextModel("tiny", "made in code", tokenizer, ChatTemplate(TEMPLATE), defaults)


class FakeClient(StreamClient):
    """``script(job)`` says what a job brings.

    ``jobs`` and ``aborted`` (rids) are what was asked of it, ``flushed`` the salts, ``holds`` the rids that hold a
    prompt. `die` ends it as a crash would.
    ``questions``: answers by type of question, where they matter to a test.
    """

    def __init__(
        self,
        script: Callable[[Job], Script] | Script | None = None,
        *,
        info: EngineInfo | None = None,
        start_failure: str | None = None,
    ) -> None:
        super().__init__()
        self.script = script if callable(script) else lambda job: script or Script()
        self.jobs: list[Job] = []
        self.aborted: list[str] = []
        self.flushed: list[bytes | None] = []
        self.questions: dict[type, Any] = {}
        self.holds: list[str] = []
        self._facts = info or fake_info()
        self._start_failure = start_failure
        self._plays: dict[str, asyncio.Task[None]] = {}
        self._playing: dict[str, _Play] = {}

    async def start(self) -> None:
        """Be ready at once, or fail as told."""
        if self._start_failure is not None:
            self._end(self._start_failure)
            raise self._gone()
        self._info = self._facts

    async def close(self) -> None:
        """End what plays."""
        self._note_close()
        self._stop()
        self._end(None)

    def die(self, reason: str = "the engine process was killed by SIGKILL") -> None:
        """Be gone without having been closed."""
        self._stop()
        self._end(reason)

    @property
    def running(self) -> list[str]:
        """Rids of the jobs that go on."""
        return list(self._playing)

    def _stop(self) -> None:
        for task in self._plays.values():
            task.cancel()

    def _send(self, request: wire.Call) -> None:
        match request:
            case wire.Submit(number, jobs):
                self._submit(number, jobs)
            case wire.Abort(rids):
                self.aborted += rids
                for rid in rids:
                    if rid in self._playing:
                        self._playing[rid].abort()
            case wire.Ask(number, question):
                asyncio.get_running_loop().call_soon(self._answer, number, self._say(question))

    def _submit(self, number: int, jobs: Sequence[Job]) -> None:
        plays = []
        try:
            for index, job in enumerate(jobs):
                script = self.script(job)
                if script.refusal is not None:
                    raise script.refusal
                self._facts.limits.check_tokens(job.token_ids)
                sampling = self._facts.limits.check_sampling(job.sampling)
                if job.pooling is not None:
                    check_pooling(job.pooling, sampling)
                if job.hold_s is not None:
                    check_hold(job.hold_s, sampling)
                most = self._facts.limits.max_tokens(len(job.token_ids), sampling)
                plays.append(_Play(self, number + index, job, script, most))
        except RadixServeError as error:
            asyncio.get_running_loop().call_soon(self._refuse, number, error)
            return
        self.jobs += jobs
        for play in plays:
            rid = play.job.rid
            self._playing[rid] = play
            task = self._plays[rid] = asyncio.ensure_future(play.run())
            task.add_done_callback(functools.partial(self._played, rid))

    def _played(self, rid: str, task: asyncio.Task[None]) -> None:
        del self._plays[rid], self._playing[rid]

    def _say(self, question: wire.Question) -> Any:
        if type(question) in self.questions:
            return self.questions[type(question)]
        match question:
            case wire.Explain(token_ids):
                return Explanation("never_seen", 0, 0, len(token_ids), "no prompt that begins like this was cached", "")
            case wire.Flush(salt):
                self.flushed.append(salt)
                return 0
            case wire.Release(ids):
                found = [hold for hold in dict.fromkeys(ids) if hold in self.holds]
                self.holds = [hold for hold in self.holds if hold not in found]
                return len(found)
            case wire.Stats():
                return fake_stats(len(self._playing))
            case wire.View():
                return CacheView(nodes=[], num_nodes=0, num_tokens=0, num_blocks=0)
        return []

    def _step(self, number: int, chunk: GenerationChunk) -> None:
        found = self._stream_of(number)
        if found is not None:
            stream, job, index = found
            self._deliver(stream, number, msgspec.structs.replace(chunk, rid=job.rid, prompt_index=index))


class _Play:
    """One job on stage."""

    def __init__(self, client: FakeClient, number: int, job: Job, script: Script, most: int) -> None:
        self.job = job
        self._client = client
        self._number = number
        self._script = script
        self._most = most
        self._began = time.monotonic()
        self._token_ids: list[int] = []
        self._text = ""
        self._stepped = False
        self._aborted = asyncio.Event()

    def abort(self) -> None:
        self._aborted.set()

    async def run(self) -> None:
        script = self._script
        reason, stop_reason = script.finish_reason, script.stop_reason
        for piece in script.pieces if self._most else ():
            if await self._pause():
                self._finish(FinishReason.ABORT, None, None)
                return
            ids = list(piece.encode())[: self._most - len(self._token_ids)]
            text = bytes(ids).decode("utf-8", "replace")
            self._token_ids += ids
            self._text += text
            logprobs = self._logprobs(ids) if self.job.sampling.logprobs is not None else []
            for index in range(self.job.sampling.n):
                self._step(GenerationChunk(rid="", index=index, text=text, token_ids=ids, logprobs=logprobs))
            if len(self._token_ids) >= self._most:
                reason, stop_reason = FinishReason.LENGTH, None
                break
        if await self._pause():
            reason, stop_reason = FinishReason.ABORT, None
        elif self._most == 0:
            reason, stop_reason = FinishReason.LENGTH, None
        failed = script.error is not None and reason is not FinishReason.ABORT
        self._finish(FinishReason.ERROR if failed else reason, stop_reason, script.error if failed else None)

    async def _pause(self) -> bool:
        """Wait for the next step; True if the job was aborted meanwhile."""
        step = asyncio.ensure_future(self._next_step())
        aborted = asyncio.ensure_future(self._aborted.wait())
        try:
            await asyncio.wait((step, aborted), return_when=asyncio.FIRST_COMPLETED)
        finally:
            step.cancel()
            aborted.cancel()
        return self._aborted.is_set()

    async def _next_step(self) -> None:
        await asyncio.sleep(self._script.delay_s)
        if self._script.gate is not None:
            await self._script.gate.wait()

    def _logprobs(self, ids: Sequence[int]) -> list[TokenLogprob]:
        count = self.job.sampling.logprobs or 0
        return [
            TokenLogprob(
                token, -0.5, 1, tuple(zip(range(token, token + count), itertools.count(-0.5, -1), strict=False))
            )
            for token in ids
        ]

    def _finish(self, reason: FinishReason, stop_reason: str | int | None, error: str | None) -> None:
        count = self.job.sampling.n
        for index in range(count):
            output = self._output(reason, stop_reason, error) if index == count - 1 else None
            self._step(
                GenerationChunk(
                    rid="",
                    index=index,
                    finish_reason=reason,
                    stop_reason=stop_reason,
                    output=output,
                    kept_tokens=len(self._token_ids),
                    rest="",
                    forced_tokens=0,
                )
            )

    def _step(self, chunk: GenerationChunk) -> None:
        """``chunk``, with the prompt's logprobs if it is the first."""
        if not self._stepped:
            self._stepped = True
            chunk = msgspec.structs.replace(
                chunk,
                prompt_logprobs=self._prompt_logprobs(),
                cached_tokens=self._script.cached_tokens,
                healed_tokens=self._healed,
            )
        self._client._step(self._number, chunk)

    @property
    def _healed(self) -> int:
        return self._script.healed_tokens if self.job.heal else 0

    def _prompt_logprobs(self) -> list[TokenLogprob | None] | None:
        sampling, tokens = self.job.sampling, self.job.token_ids
        if sampling.prompt_logprobs is None:
            return None
        first = min(max(1, sampling.logprob_start), len(tokens))
        return [*[None] * first, *(TokenLogprob(token, -1.0, 1) for token in tokens[first:])]

    def _output(self, reason: FinishReason, stop_reason: str | int | None, error: str | None) -> GenerationOutput:
        job, sampling = self.job, self.job.sampling
        logprobs = None if sampling.logprobs is None else self._logprobs(self._token_ids)
        samples = [
            SampleOutput(
                index=index,
                text=self._text,
                token_ids=list(self._token_ids),
                finish_reason=reason,
                stop_reason=stop_reason,
                logprobs=logprobs,
                error=error,
                kept_tokens=len(self._token_ids),
            )
            for index in range(sampling.n)
        ]
        explanation = None
        if job.explain:
            explanation = Explanation("never_seen", 0, 0, len(job.token_ids), "nothing like it was cached", "")
        now = time.monotonic() - self._began
        return GenerationOutput(
            rid=job.rid,
            prompt_token_ids=job.token_ids,
            text=self._text,
            token_ids=list(self._token_ids),
            finish_reason=reason,
            stop_reason=stop_reason,
            logprobs=logprobs,
            prompt_logprobs=self._prompt_logprobs(),
            prompt_tokens=len(job.token_ids),
            cached_tokens=self._script.cached_tokens,
            completion_tokens=len(self._token_ids) * sampling.n,
            timings=Timings(first_token_s=now, total_s=now, steps_waited=1),
            samples=samples if sampling.n > 1 else [],
            error=error,
            explanation=explanation,
            embedding=self._vector() if job.pooling is not None else None,
            kept_tokens=len(self._token_ids),
            healed_tokens=self._healed,
            hold=self._hold(reason),
        )

    def _hold(self, reason: FinishReason) -> HeldPrefix | None:
        if self.job.hold_s is None or reason is not FinishReason.LENGTH:
            return None
        self._client.holds.append(self.job.rid)
        size, cached = len(self.job.token_ids), self._script.cached_tokens
        return HeldPrefix(tokens=size, expires_in_s=min(self.job.hold_s, 60.0), computed_tokens=size - cached)

    def _vector(self) -> list[float]:
        size = self._client.info.hidden_size
        axis = len(self.job.token_ids) % size
        return list(self._script.vector or (float(index == axis) for index in range(size)))


def fake_stats(running: int = 0) -> dict[str, Any]:
    """Statistics with every key that an engine's have, and nothing counted."""
    histogram = {"edges": [1.0], "counts": [0, 0], "sum": 0.0}
    return {
        "blocks": dict.fromkeys(("total", "free", "tree", "evictable", "private", "retired"), 0),
        "holds": dict.fromkeys(("count", "blocks", "taken", "shortened", "released", "expired", "gave_way"), 0),
        "nodes": 0,
        "ghosts": 0,
        "hit_rate": 0.0,
        "cache": dict.fromkeys(
            ("queries", "queried_tokens", "hit_tokens", "copied_tokens", "evicted_blocks", "evictions"), 0
        )
        | {"deduplicated_blocks": 0, "repairs": 0, "failed_checks": []},
        "scheduler": dict.fromkeys(
            ("steps", "rows", "computed_tokens", "generated_tokens", "preemptions", "failed_steps"), 0
        )
        | {"finished": {}},
        "running": running,
        "waiting": 0,
        "expected_output_share": 1.0,
        "steps": dict.fromkeys(("count", "seconds", "last_seconds", "last_rows", "last_tokens"), 0)
        | dict.fromkeys(("step_seconds", "batch_rows", "batch_tokens"), histogram),
    }
