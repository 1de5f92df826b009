"""The backend of a plan: a real one over the plan's engine, with what is known of each call said beside it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, ClassVar

from radixlang.backends.base import Call, Continuations, Hold, Message, Piece, RoleMarks, Text, TokenBackend
from radixlang.recording import RecordedSample, Replay
from radixserve.planner.trace import Answer, Intent, intended


class PlannedBackend:
    """``backend`` with the answers of ``replay``, where there are any. ``unknown``: calls of which no answer was recorded."""

    token_exact: ClassVar[bool] = True

    def __init__(self, backend: TokenBackend, replay: Replay | None) -> None:
        self.unknown = 0
        self._backend = backend
        self._replay = replay

    @property
    def name(self) -> str:
        """What errors and reports call it."""
        return f"plan of {self._backend.name}"

    async def aclose(self) -> None:
        """Nothing here is of its own."""

    async def info(self) -> dict[str, Any]:
        """The backend's facts."""
        return await self._backend.info()

    async def flush(self) -> None:
        """Drop what is cached and not in use."""
        await self._backend.flush()

    async def encode(self, parts: Sequence[Text], *, first: bool) -> list[int]:
        """The backend's tokens."""
        return await self._backend.encode(parts, first=first)

    async def decode(self, token_ids: Sequence[int]) -> str:
        """The backend's text."""
        return await self._backend.decode(token_ids)

    async def role(self, role: str, earlier: Sequence[Message]) -> RoleMarks:
        """The backend's marks."""
        return await self._backend.role(role, earlier)

    async def generate(self, token_ids: Sequence[int], call: Call) -> AsyncGenerator[Piece, None]:
        """Continue ``token_ids`` as recorded, or with words."""
        found = self._replay.answer(token_ids, call) if self._replay is not None else None
        self.unknown += found is None
        name = call.tag.partition(":")[2]
        intent = Intent("gen", name, None if found is None else tuple(map(_answer, found)))
        async with aclosing(self._backend.generate(token_ids, call)) as pieces:
            # The request is queued when the first piece is asked for.
            with intended(intent):
                first = await anext(pieces, None)
            if first is not None:
                yield first
            async for piece in pieces:
                yield piece

    async def score(
        self, token_ids: Sequence[int], continuations: Sequence[Sequence[int]], *, priority: int = 0
    ) -> Continuations:
        """The recorded logprobs, or ones that are made up."""
        found = self._replay.score(token_ids, continuations) if self._replay is not None else None
        self.unknown += found is None
        scores: dict[tuple[int, ...], dict[int, float]] = defaultdict(dict)
        for continuation, logprobs in zip(continuations, found or (), strict=False):
            for place, logprob in enumerate(logprobs):
                scores[tuple(continuation[:place])][continuation[place]] = logprob
        # Without a prompt it is the model's begin token that they come after.
        with intended(Intent("select", base=len(token_ids) or 1, scores=scores)):
            return await self._backend.score(token_ids, continuations, priority=priority)

    async def hold(self, token_ids: Sequence[int], *, seconds: float, priority: int = 0) -> Hold:
        """Hold a prefix in the plan's cache."""
        with intended(Intent("hold")):
            return await self._backend.hold(token_ids, seconds=seconds, priority=priority)

    async def release(self, holds: Sequence[str]) -> None:
        """Release holds."""
        await self._backend.release(holds)


def _answer(sample: RecordedSample) -> Answer:
    logprobs = tuple((entry.logprob, tuple(entry.top)) for entry in sample.logprobs or ())
    return Answer(tuple(sample.token_ids), logprobs)
