"""What a model answered, noted call by call, so that a plan of the same program can give the same answers.

::

    backend = recording(EngineBackend(engine))
    program.run(question="...", backend=backend)
    backend.recording.save("run.json")
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, ClassVar, cast

import msgspec

from radixlang.backends.base import Call, Continuations, Hold, Message, Output, Piece, RoleMarks, Text, TokenBackend
from radixlang.errors import InvalidProgram


class RecordedLogprob(msgspec.Struct, frozen=True, array_like=True):
    """One output token's logprob, and the (id, logprob) pairs beside it."""

    logprob: float
    top: list[tuple[int, float]] = []


class RecordedSample(msgspec.Struct, frozen=True, omit_defaults=True):
    """One output, with its logprobs where the call asked for them."""

    token_ids: list[int]
    logprobs: list[RecordedLogprob] | None = None


class RecordedCall(msgspec.Struct, frozen=True):
    """A generation: ``prompt`` and ``options`` are what was asked, ``samples`` what came of it."""

    prompt: list[int]
    options: dict[str, Any]
    samples: list[RecordedSample]


class RecordedScores(msgspec.Struct, frozen=True):
    """The logprobs of the tokens of ``continuations``, each after ``prompt`` and the tokens before it."""

    prompt: list[int]
    continuations: list[list[int]]
    logprobs: list[list[float]]


class Recording(msgspec.Struct):
    """All calls of one or more runs, in the order in which they were made.

    A plan finds an answer by the prompt's token ids and the call's options; calls that are alike in both get their answers in
    order.
    """

    calls: list[RecordedCall] = []
    scores: list[RecordedScores] = []

    def save(self, path: str | Path) -> None:
        """Write it to a JSON file."""
        Path(path).write_bytes(msgspec.json.encode(self))

    @classmethod
    def load(cls, path: str | Path) -> Recording:
        """Read what `save` wrote. Raises `InvalidProgram` naming what is wrong with the file."""
        try:
            return msgspec.json.decode(Path(path).read_bytes(), type=cls)
        except (OSError, UnicodeDecodeError, msgspec.DecodeError) as error:
            raise InvalidProgram("path", f"{path} cannot be read: {error}") from None

    def replay(self) -> Replay:
        """The answers, each to be given once."""
        return Replay(self)


class Replay:
    """The answers of a recording that were not given yet."""

    def __init__(self, recording: Recording) -> None:
        self._calls: dict[bytes, deque[RecordedCall]] = defaultdict(deque)
        self._scores: dict[bytes, RecordedScores] = {}
        for call in recording.calls:
            self._calls[_key(call.prompt, call.options)].append(call)
        for scores in recording.scores:
            self._scores[_key(scores.prompt, scores.continuations)] = scores

    def answer(self, token_ids: Sequence[int], call: Call) -> list[RecordedSample] | None:
        """The samples of the next recorded call like this one; None if there is none left."""
        waiting = self._calls.get(_key(token_ids, options_of(call)))
        return waiting.popleft().samples if waiting else None

    def score(self, token_ids: Sequence[int], continuations: Sequence[Sequence[int]]) -> list[list[float]] | None:
        """The recorded logprobs of these continuations, as often as they are asked for; None if there are none."""
        found = self._scores.get(_key(token_ids, [list(item) for item in continuations]))
        return None if found is None else found.logprobs


def options_of(call: Call) -> dict[str, Any]:
    """What of a call decides its output, as JSON: not its priority, its name or whether it is streamed."""
    options: dict[str, Any] = dict(call.sampling.given())
    if call.constraint is not None:
        options["constraint"] = {type(call.constraint).__name__: dataclasses.asdict(call.constraint)}
    if call.heal:
        options["heal"] = True
    return cast(dict[str, Any], msgspec.json.decode(msgspec.json.encode(options)))


def _key(prompt: Sequence[int], asked: object) -> bytes:
    return msgspec.json.encode([list(prompt), asked], order="deterministic")


class Recorder:
    """A token backend that notes in ``recording`` what ``backend`` answers; everything else goes through as it is.

    Generations that are ended early, or fail, are not noted.
    """

    token_exact: ClassVar[bool] = True

    def __init__(self, backend: TokenBackend) -> None:
        if not backend.token_exact:
            raise InvalidProgram("backend", f"{backend.name} gives texts; only answers in token ids can be recorded")
        self.backend = backend
        # One place for each call that was begun, so that answers stand in the order of the calls.
        self._places: list[RecordedCall | RecordedScores | None] = []

    @property
    def recording(self) -> Recording:
        """What was noted until now."""
        return Recording(
            [item for item in self._places if isinstance(item, RecordedCall)],
            [item for item in self._places if isinstance(item, RecordedScores)],
        )

    @property
    def name(self) -> str:
        """That of the backend."""
        return self.backend.name

    async def aclose(self) -> None:
        """Close the backend."""
        await self.backend.aclose()

    async def info(self) -> dict[str, Any]:
        """The backend's facts."""
        return await self.backend.info()

    async def flush(self) -> None:
        """Flush the backend's cache."""
        await self.backend.flush()

    async def encode(self, parts: Sequence[Text], *, first: bool) -> list[int]:
        """The backend's tokens."""
        return await self.backend.encode(parts, first=first)

    async def decode(self, token_ids: Sequence[int]) -> str:
        """The backend's text."""
        return await self.backend.decode(token_ids)

    async def role(self, role: str, earlier: Sequence[Message]) -> RoleMarks:
        """The backend's marks."""
        return await self.backend.role(role, earlier)

    async def generate(self, token_ids: Sequence[int], call: Call) -> AsyncGenerator[Piece, None]:
        """The backend's pieces; the output is noted."""
        place = self._begin()
        async with aclosing(self.backend.generate(token_ids, call)) as pieces:
            async for piece in pieces:
                if piece.output is not None:
                    self._places[place] = RecordedCall(list(token_ids), options_of(call), _samples(piece.output))
                yield piece

    async def score(
        self, token_ids: Sequence[int], continuations: Sequence[Sequence[int]], *, priority: int = 0
    ) -> Continuations:
        """The backend's scores, noted."""
        place = self._begin()
        scores = await self.backend.score(token_ids, continuations, priority=priority)
        self._places[place] = RecordedScores(
            list(token_ids), [list(item) for item in continuations], [list(item) for item in scores.logprobs]
        )
        return scores

    async def hold(self, token_ids: Sequence[int], *, seconds: float, priority: int = 0) -> Hold:
        """The backend's hold."""
        return await self.backend.hold(token_ids, seconds=seconds, priority=priority)

    async def release(self, holds: Sequence[str]) -> None:
        """Release holds of the backend."""
        await self.backend.release(holds)

    def _begin(self) -> int:
        self._places.append(None)
        return len(self._places) - 1


def _samples(output: Output) -> list[RecordedSample]:
    return [
        RecordedSample(
            list(sample.token_ids),
            None
            if sample.logprobs is None
            else [
                RecordedLogprob(score.logprob, [(token, logprob) for token, _, logprob in score.top])
                for score in sample.logprobs
            ],
        )
        for sample in output.samples
    ]


def recording(backend: TokenBackend) -> Recorder:
    """``backend``, with its answers noted for a plan."""
    return Recorder(backend)
