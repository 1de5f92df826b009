"""Plays a workload against a server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from radixserve.bench.load import Connection, Timeline
from radixserve.bench.prose import Prose
from radixserve.bench.servers import COMPLETIONS, Server
from radixserve.bench.workloads import Call, OutputOf, Workload
from radixserve.errors import RequestFailed

TIMEOUT_S = 900.0


@dataclass(slots=True)
class Answer:
    """What became of a request. Times are seconds of one clock; ``pieces``: when its tokens came, some perhaps together.

    ``error``: why it failed; the rest then says nothing.
    """

    sent: float = 0.0
    pieces: list[float] = field(default_factory=list)
    done: float = 0.0
    text: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    error: str | None = None

    @property
    def first_s(self) -> float:
        """From sending to the first piece."""
        return self.pieces[0] - self.sent

    @property
    def gaps(self) -> list[tuple[float, float]]:
        """Each piece but the first, as (when the one before it came, when it came)."""
        return list(zip(self.pieces, self.pieces[1:], strict=False))


@dataclass(slots=True)
class Session:
    """One run of a workload: the answers in the order of its calls."""

    wall_s: float
    answers: list[Answer]


async def play(workload: Workload, server: Server, *, prose: Prose | None = None) -> Session:
    """Run all requests of ``workload`` as it says; a failed one counts as complete, with no output.

    ``prose``: its tokenizer makes prompts into token ids; without it they are sent as text.
    """
    stage = _Stage(workload, server, prose)
    began = time.perf_counter()
    # In the order of the calls, so that those ready at once are sent in that order.
    await asyncio.gather(*(stage.run(index) for index in range(len(workload.calls))))
    return Session(time.perf_counter() - began, stage.answers)


class _Stage:
    def __init__(self, workload: Workload, server: Server, prose: Prose | None) -> None:
        self.answers = [Answer() for _ in workload.calls]
        self._calls = workload.calls
        self._server = server
        self._prose = prose
        self._places = asyncio.Semaphore(workload.concurrency)
        self._complete = [asyncio.Event() for _ in workload.calls]
        self._heard = [_Milestones() for _ in workload.calls]

    async def run(self, index: int) -> None:
        call = self._calls[index]
        for need in call.needs:
            await self._complete[need].wait()
        for other, count in call.after:
            await self._heard[other].reached(count)
        async with self._places:
            self.answers[index] = await complete(self._server, call, self._prompt(call), self._heard[index].note)
        self._complete[index].set()
        self._heard[index].end()

    def _prompt(self, call: Call) -> str | list[int]:
        text = "".join(self.answers[part.call].text if isinstance(part, OutputOf) else part.text for part in call.parts)
        return text if self._prose is None else self._prose.ids(text)


class _Milestones:
    """Lets others wait until a stream has come so far, or has ended."""

    def __init__(self) -> None:
        self._count = 0.0
        self._waiting: list[tuple[int, asyncio.Event]] = []

    async def reached(self, count: int) -> None:
        if self._count < count:
            event = asyncio.Event()
            self._waiting.append((count, event))
            await event.wait()

    def note(self, count: float) -> None:
        self._count = count
        for wanted, event in self._waiting:
            if count >= wanted:
                event.set()

    def end(self) -> None:
        self.note(float("inf"))


async def complete(
    server: Server, call: Call, prompt: str | list[int], heard: Callable[[int], None] | None = None
) -> Answer:
    """Send one request, on a connection of its own, and wait for all of its answer, up to `TIMEOUT_S`."""
    sent = time.perf_counter()
    try:
        async with asyncio.timeout(TIMEOUT_S), Connection.opened(server.url) as connection:
            line = await connection.post(COMPLETIONS, server.body(prompt, call), keep=True, heard=heard)
            return read_answer(line, sent)
    except (OSError, RequestFailed) as error:
        reason = f"no answer within {TIMEOUT_S:g} s" if isinstance(error, TimeoutError) else str(error)
        return Answer(sent=sent, done=time.perf_counter(), error=reason)


def read_answer(line: Timeline, sent: float) -> Answer:
    """What the events of a completion say. A last event with a reason to end and no text is no piece."""
    answer = Answer(sent=sent, done=line.done)
    texts: list[str] = []
    for came, event in zip(line.pieces, line.events, strict=True):
        try:
            data: dict[str, Any] = msgspec.json.decode(event, type=dict[str, Any])
        except msgspec.MsgspecError as error:
            answer.error = f"an event that is no JSON object: {error}"
            return answer
        for choice in data.get("choices") or ():
            text = choice.get("text") or ""
            if text or not choice.get("finish_reason"):
                answer.pieces.append(came)
                texts.append(text)
        _count_tokens(answer, data)
    answer.text = "".join(texts)
    if not answer.pieces:
        answer.error = "an answer without a token"
    answer.completion_tokens = answer.completion_tokens or len(answer.pieces)
    return answer


def _count_tokens(answer: Answer, data: dict[str, Any]) -> None:
    if usage := data.get("usage"):
        answer.prompt_tokens = usage.get("prompt_tokens") or 0
        answer.completion_tokens = usage.get("completion_tokens") or 0
        answer.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or answer.cached_tokens
    # llama.cpp's server tells it here.
    if cached := (data.get("timings") or {}).get("cache_n"):
        answer.cached_tokens = cached


def failures(answers: Sequence[Answer]) -> list[str]:
    """The errors of those that failed."""
    return [answer.error for answer in answers if answer.error is not None]
