"""A backend without a model, for tests of programs: scripted answers, true counts of a cache, and a record of it all."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from radixlang.backends.base import (
    Call,
    Continuations,
    Hold,
    Message,
    Output,
    Piece,
    RoleMarks,
    Sample,
    Text,
    Usage,
)
from radixlang.backends.fake_output import Draft, drafts, sample_of
from radixlang.backends.scripts import Prompt, Script, answer
from radixlang.backends.toy_tokenizer import BOS, ToyTokenizer
from radixlang.errors import BackendClosed, Refused

ROLES = ("system", "user", "assistant", "tool")


@dataclass(slots=True)
class FakeCall:
    """One call as it went. ``text``: of its prompt. ``output``, for generations: what it brought, once it has."""

    kind: Literal["gen", "score", "hold"]
    prompt: tuple[int, ...]
    text: str
    priority: int = 0
    call: Call | None = None
    state: Literal["running", "done", "aborted", "failed"] = "running"
    output: Output | None = None
    usage: Usage = field(default_factory=Usage)


class Gate:
    """Keeps calls waiting until it is opened, from whatever thread; give it as ``before``, or await it in one."""

    def __init__(self) -> None:
        self._opened: Future[None] = Future()
        self.waiting = 0

    def open(self) -> None:
        """Let all go, those that come later too."""
        if not self._opened.done():
            self._opened.set_result(None)

    async def __call__(self, call: FakeCall) -> None:
        """Wait for it."""
        self.waiting += 1
        try:
            await asyncio.shield(asyncio.wrap_future(self._opened))
        finally:
            self.waiting -= 1


class FakeBackend:
    """A `TokenBackend` that answers by ``script`` (`radixlang.backends.scripts`).

    ``likelihood``: the logprob of a token's text after a prompt's text; by default a number that depends on both. ``before``: awaited by
    each call before it does anything, to block or to fail it. ``token_s``: seconds that each output token takes. ``bos``:
    sequences begin with a begin token. ``hold_quota``: tokens that one hold may have.

    Nothing of its cache is ever lost except by `flush`; a prompt is in it from the moment in which its call begins.
    """

    token_exact: ClassVar[bool] = True

    def __init__(
        self,
        script: Script | None = None,
        *,
        likelihood: Callable[[str, str], float] | None = None,
        before: Callable[[FakeCall], Awaitable[None]] | None = None,
        token_s: float = 0.0,
        bos: bool = False,
        hold_quota: int | None = None,
    ) -> None:
        self.script = script
        self.before = before
        self.calls: list[FakeCall] = []
        self.held: dict[str, int] = {}
        self.released: list[str] = []
        self.closed = False
        self.active = self.peak = 0
        self.tokenizer = ToyTokenizer()
        self.likelihood = likelihood or _likelihood
        self._token_s = token_s
        self._bos = bos
        self._hold_quota = hold_quota
        self._hold_numbers = itertools.count(1)
        self._cache: dict[int, Any] = {}

    @property
    def name(self) -> str:
        """See `Backend`."""
        return "fake"

    def of_kind(self, kind: Literal["gen", "score", "hold"]) -> list[FakeCall]:
        """The calls of one kind, in the order in which they came."""
        return [call for call in self.calls if call.kind == kind]

    async def aclose(self) -> None:
        """Everything fails from now on."""
        self.closed = True

    async def info(self) -> dict[str, Any]:
        """See `Backend`."""
        return {"model": "fake", "context_length": None}

    async def flush(self) -> None:
        """Empty the cache."""
        self._cache.clear()

    async def encode(self, parts: Sequence[Text], *, first: bool) -> list[int]:
        """See `TokenBackend`."""
        return self.tokenizer.encode(parts, bos=first and self._bos)

    async def decode(self, token_ids: Sequence[int]) -> str:
        """See `TokenBackend`."""
        return self.tokenizer.decode(token_ids)

    async def role(self, role: str, earlier: Sequence[Message]) -> RoleMarks:
        """The marks of ChatML."""
        if role not in ROLES:
            raise Refused("role", f"the template has no {role!r}")
        return RoleMarks(f"<|im_start|>{role}\n", "<|im_end|>\n")

    async def generate(self, token_ids: Sequence[int], call: Call) -> AsyncGenerator[Piece, None]:
        """The scripted answer, token by token."""
        entry = FakeCall("gen", tuple(token_ids), self._text(token_ids), call.priority, call)
        number = len(self.calls)
        with _Running(self, entry):
            start = time.perf_counter()
            await self._begin(entry)
            samples = range(call.sampling.n or 1)
            answers = [answer(self.script, Prompt(entry.text, index, call, number)) for index in samples]
            made = drafts(self.tokenizer, token_ids, answers, call)
            healed = made[0].healed
            prompt = tuple(token_ids[: len(token_ids) - healed])
            cached = min(self._insert(prompt), max(len(prompt) - 1, 0))
            for step in range(max(len(one.token_ids) for one in made)):
                await asyncio.sleep(self._token_s)
                for index, one in enumerate(made):
                    if call.stream and step < len(one.pieces) and one.pieces[step]:
                        yield Piece(index, one.pieces[step])
            for one in made:
                self._insert((*prompt, *one.token_ids[:-1]))
            entry.usage = Usage(
                prompt=len(prompt),
                cached=cached,
                computed=len(prompt) - cached,
                generated=sum(len(one.token_ids) for one in made),
                forced=0,
                wall_s=time.perf_counter() - start,
                queue_s=0.0,
                first_token_s=0.0,
            )
            texts = tuple(self._sample(one, entry.text.removesuffix(one.before), call) for one in made)
            entry.output = Output(texts, entry.usage, healed)
            yield Piece(0, "", entry.output)

    def _sample(self, one: Draft, prompt: str, call: Call) -> Sample:
        logprobs = None if call.sampling.logprobs is None else self._logprobs(prompt, one.token_ids)
        return sample_of(self.tokenizer, one, logprobs)

    def _logprobs(self, before: str, token_ids: Sequence[int]) -> tuple[float, ...]:
        scores = []
        for token in token_ids:
            text = self.tokenizer.text_of(token)
            scores.append(self.likelihood(before, text))
            before += text
        return tuple(scores)

    async def score(
        self, token_ids: Sequence[int], continuations: Sequence[Sequence[int]], *, priority: int = 0
    ) -> Continuations:
        """See `TokenBackend`."""
        entry = FakeCall("score", tuple(token_ids), self._text(token_ids), priority)
        if not continuations or not all(continuations):
            raise Refused("continuations", "is empty, or has an empty one")
        with _Running(self, entry):
            await self._begin(entry)
            sequences = [(*token_ids, *continuation[:-1]) for continuation in continuations]
            distinct = len({sequence[:end] for sequence in sequences for end in range(1, len(sequence) + 1)})
            new = sum(len(sequence) - self._insert(sequence) for sequence in sequences)
            computed = min(max(new, 1), distinct)
            entry.usage = Usage(prompt=distinct, cached=distinct - computed, computed=computed, queue_s=0.0)
            return Continuations(
                tuple(tuple(continuation) for continuation in continuations),
                tuple(self._logprobs(entry.text, continuation) for continuation in continuations),
                entry.usage,
            )

    async def hold(self, token_ids: Sequence[int], *, seconds: float, priority: int = 0) -> Hold:
        """Put a prefix in the cache, where it stays anyway; `held` and `released` tell what was asked for."""
        entry = FakeCall("hold", tuple(token_ids), self._text(token_ids), priority)
        with _Running(self, entry):
            await self._begin(entry)
            held = tuple(token_ids[: self._hold_quota])
            cached = self._insert(held)
            entry.usage = Usage(prompt=len(held), cached=cached, computed=len(held) - cached, queue_s=0.0)
            name = f"hold-{next(self._hold_numbers)}"
            if held:
                self.held[name] = len(held)
            return Hold(name, len(held), entry.usage, seconds)

    async def release(self, holds: Sequence[str]) -> None:
        """See `TokenBackend`."""
        for name in holds:
            if self.held.pop(name, None) is not None:
                self.released.append(name)

    def _text(self, token_ids: Sequence[int]) -> str:
        """What a script sees of a prompt: its text, without the begin token's."""
        return self.tokenizer.decode(token for token in token_ids if token != BOS)

    async def _begin(self, entry: FakeCall) -> None:
        if self.closed:
            raise BackendClosed("the backend was closed")
        if self.before is not None:
            await self.before(entry)
        # A call takes at least one turn of the loop, as a real one does.
        await asyncio.sleep(0)

    def _insert(self, token_ids: Sequence[int]) -> int:
        """Put a sequence in the cache; how many of its tokens were there."""
        node, known = self._cache, 0
        for token in token_ids:
            known += token in node
            node = node.setdefault(token, {})
        return known


class _Running:
    """Counts a call and notes how it ended."""

    def __init__(self, backend: FakeBackend, entry: FakeCall) -> None:
        self._backend = backend
        self._entry = entry

    def __enter__(self) -> None:
        backend = self._backend
        backend.calls.append(self._entry)
        backend.active += 1
        backend.peak = max(backend.peak, backend.active)

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        self._backend.active -= 1
        if self._entry.output is not None or kind is None:
            self._entry.state = "done"
        elif issubclass(kind, asyncio.CancelledError | GeneratorExit):
            self._entry.state = "aborted"
        else:
            self._entry.state = "failed"


def _likelihood(before: str, token: str) -> float:
    """A number for each pair of texts: the logarithm of something between 0 and 0.1, so that ten alternatives leave something over."""
    drawn = int.from_bytes(hashlib.sha256(f"{before}\0{token}".encode()).digest()[:6], "big")
    return math.log((drawn + 1) / 2**48 / 10)
