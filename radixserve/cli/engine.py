"""What the commands need of an engine, and how they get one.

The commands are written against these protocols; tests hand them a fake through `EngineFactory`.
"""
# ruff: noqa: D102  the properties restate fields that are described where they are defined

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal, Protocol

from radixserve.messages import FinishReason, SampleOutput, SamplingParams, Timings

if TYPE_CHECKING:
    from radixserve.messages import Explanation

Message = dict[str, Any]


class Output(Protocol):
    """A finished generation: the fields of `radixserve.messages.GenerationOutput` that the commands read."""

    @property
    def text(self) -> str: ...
    @property
    def finish_reason(self) -> FinishReason | None: ...
    @property
    def error(self) -> str | None: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def cached_tokens(self) -> int: ...
    @property
    def completion_tokens(self) -> int: ...
    @property
    def timings(self) -> Timings: ...
    @property
    def samples(self) -> list[SampleOutput]: ...
    @property
    def explanation(self) -> Explanation | None: ...


class Chunk(Protocol):
    """A piece of sample ``index`` of prompt ``prompt_index``; ``output`` comes with the last piece of the prompt."""

    @property
    def rid(self) -> str: ...
    @property
    def index(self) -> int: ...
    @property
    def prompt_index(self) -> int: ...
    @property
    def text(self) -> str: ...
    @property
    def finish_reason(self) -> FinishReason | None: ...
    @property
    def output(self) -> Output | None: ...


class CommandEngine(Protocol):
    """The part of `radixserve.Engine` that the commands use. They always stream: text appears as it is made."""

    @property
    def default_sampling(self) -> SamplingParams:
        """The model's own sampling defaults (its ``generation_config.json``), on which the flags are laid."""

    def generate(
        self,
        prompt: list[str],
        sampling: SamplingParams | None = None,
        *,
        stream: Literal[True],
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> Iterator[Chunk]:
        """Continue all prompts together."""

    def chat(
        self,
        messages: list[Message],
        sampling: SamplingParams | None = None,
        *,
        stream: Literal[True],
        priority: int = 0,
        cache_salt: str | None = None,
        explain: bool = False,
    ) -> Iterator[Chunk]:
        """Answer a conversation; with ``explain`` the output says why its prompt hit no more than it did."""

    def cache_stats(self) -> dict[str, Any]:
        """Counters of the cache."""

    def abort(self, rid: str) -> None:
        """End a request: its stream gives one last chunk."""

    def close(self) -> None:
        """Give back threads and memory."""


EngineFactory = Callable[..., CommandEngine]


def open_engine(**options: Any) -> CommandEngine:
    """The real engine. It is imported here so that ``--help`` and ``--version`` do not wait for torch."""
    from radixserve.engine.offline import Engine

    return Engine(**options)
