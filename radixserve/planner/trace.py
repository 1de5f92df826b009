"""What happened in an engine, call by call and step by step: what plans are made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Literal

from radixserve.messages import GenerationOutput, SamplingParams

Kind = Literal["gen", "select", "hold"]


@dataclass(frozen=True, slots=True)
class Answer:
    """An output that is known beforehand: its tokens, and each one's logprob and alternatives where they are known too."""

    token_ids: tuple[int, ...]
    logprobs: tuple[tuple[float, tuple[tuple[int, float], ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class Intent:
    """What is known of a call beside its request.

    ``name``: what its caller calls it. ``answers``: of each sample. ``base``: tokens of the prompt that ``scores`` begin
    after; ``scores`` maps the tokens between them and a token to that token's logprob.
    """

    kind: Kind = "gen"
    name: str = ""
    answers: tuple[Answer, ...] | None = None
    base: int = 0
    scores: Mapping[tuple[int, ...], Mapping[int, float]] = field(default_factory=dict)


_INTENT: ContextVar[Intent] = ContextVar("radixserve_planner_intent")
_UNKNOWN = Intent()


@contextmanager
def intended(intent: Intent) -> Iterator[None]:
    """The requests that are queued inside are those of ``intent``."""
    token = _INTENT.set(intent)
    try:
        yield
    finally:
        _INTENT.reset(token)


def current_intent() -> Intent:
    """The intent of the request that is being queued."""
    return _INTENT.get(_UNKNOWN)


@dataclass(slots=True)
class CallTrace:
    """One request. Counts are tokens.

    ``arrived``: steps that had run before it was queued; ``after``: requests that had ended by then. ``ended``: its place among the ends,
    None while it runs. ``computed``: of its prompt, what its rows computed, again after a preemption included.
    """

    number: int
    intent: Intent
    prompt: tuple[int, ...]
    sampling: SamplingParams
    salt: bytes
    priority: int
    arrived: int
    after: int
    computed: int = 0
    cached: int = 0
    outputs: tuple[tuple[int, ...], ...] = ()
    forced: int = 0
    ended: int | None = None
    finish_reason: str | None = None
    error: str | None = None

    @property
    def generated(self) -> int:
        """Output tokens of all samples."""
        return sum(map(len, self.outputs))


@dataclass(frozen=True, slots=True)
class StepTrace:
    """One step. ``held``: blocks that running requests cannot do without; ``kept``: all blocks that are not free. ``seconds``: of the
    cost model.
    """

    rows: int
    tokens: int
    held: int
    kept: int
    seconds: float


class Trace:
    """Everything that one engine did since it began. ``seconds``: of all steps, by the cost model."""

    def __init__(self) -> None:
        self.calls: list[CallTrace] = []
        self.steps: list[StepTrace] = []
        self.seconds = 0.0
        self._running: dict[str, CallTrace] = {}
        self._ends = 0

    def begin(self, rid: str, prompt: Sequence[int], sampling: SamplingParams, *, salt: bytes, priority: int) -> None:
        """A request was queued."""
        call = CallTrace(
            number=len(self.calls),
            intent=current_intent(),
            prompt=tuple(prompt),
            sampling=sampling,
            salt=salt,
            priority=priority,
            arrived=len(self.steps),
            after=self._ends,
        )
        self.calls.append(call)
        self._running[rid] = call

    def intent(self, rid: str) -> Intent:
        """That of a request that runs."""
        call = self._running.get(rid)
        return _UNKNOWN if call is None else call.intent

    def step(self, step: StepTrace) -> None:
        """A step runs."""
        self.steps.append(step)
        self.seconds += step.seconds

    def computed(self, rid: str, prompt_tokens: int) -> None:
        """A row of a request computes some more of its prompt."""
        call = self._running.get(rid)
        if call is not None:
            call.computed += prompt_tokens

    def end(self, output: GenerationOutput) -> None:
        """A request ended."""
        call = self._running.pop(output.rid, None)
        if call is None:
            return
        # Token healing may have taken tokens off its end.
        call.prompt = call.prompt[: len(call.prompt) - output.healed_tokens]
        call.cached = output.cached_tokens
        call.outputs = tuple(tuple(sample.token_ids) for sample in output.all_samples)
        call.finish_reason = None if output.finish_reason is None else str(output.finish_reason)
        call.error = output.error
        call.forced = sum(sample.forced_tokens for sample in output.all_samples)
        call.ended = self._ends
        self._ends += 1
