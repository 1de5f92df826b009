"""The eight workloads, as data: which requests there are, what each one's prompt is made of, and what it waits for.

A prompt is a list of parts, texts and outputs of other requests. Requests that begin with the same parts share a prefix. The same seed
gives the same workload; another seed shares nothing with it, so that a server which has seen one is cold for the next.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from radixserve.bench.character import CHARACTER_SCHEMA
from radixserve.bench.prose import Prose


@dataclass(frozen=True, slots=True)
class Text:
    """A text and its number of tokens."""

    text: str
    tokens: int


@dataclass(frozen=True, slots=True)
class OutputOf:
    """What the request of that index in its workload has generated."""

    call: int


Part = Text | OutputOf


@dataclass(frozen=True, slots=True)
class Call:
    """One request. It is ready when the outputs in ``parts`` are complete, and of each (call, pieces) in ``after`` so many have come.

    ``group``: what its figures are reported under. ``schema``: the output is a document of it.
    """

    parts: tuple[Part, ...]
    max_tokens: int
    group: str = ""
    after: tuple[tuple[int, int], ...] = ()
    schema: Mapping[str, Any] | None = None

    @property
    def needs(self) -> tuple[int, ...]:
        """The requests whose outputs are in the prompt."""
        return tuple(part.call for part in self.parts if isinstance(part, OutputOf))


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests in the order in which they become ready where nothing holds them up; at most ``concurrency`` run at once."""

    name: str
    title: str
    calls: tuple[Call, ...]
    concurrency: int


@dataclass(frozen=True, slots=True)
class Scale:
    """Makes workloads smaller, to try things out: at most so many requests, output tokens of each, and a share of the prompts' lengths.

    Results at another scale than the whole one say nothing about the workload.
    """

    requests: int | None = None
    tokens: int | None = None
    prompts: float = 1.0

    def count(self, whole: int) -> int:
        """Of so many requests."""
        return whole if self.requests is None else max(1, min(whole, self.requests))

    def output(self, whole: int) -> int:
        """Of so many output tokens."""
        return whole if self.tokens is None else max(1, min(whole, self.tokens))

    def length(self, whole: int) -> int:
        """Of so many prompt tokens."""
        return max(1, round(whole * self.prompts))


WHOLE = Scale()


class _Author:
    """Writes the texts of one workload."""

    def __init__(self, prose: Prose, name: str, seed: int, scale: Scale) -> None:
        self._prose = prose
        self.chance = random.Random(f"{name} {seed}")
        self.scale = scale

    def text(self, tokens: int) -> Text:
        """A text of its own, of so many tokens at the whole scale."""
        return self.fixed(self._prose.write(self.chance, self.scale.length(tokens)))

    def fixed(self, text: str) -> Text:
        return Text(text, self._prose.count(text))


def few_shot(author: _Author) -> tuple[list[Call], int]:
    """W1: 1,000 tokens of examples before each of 64 questions of 64 tokens; answers of 32, 16 at once."""
    examples = author.text(1000)
    return [Call((examples, author.text(64)), author.scale.output(32)) for _ in range(64)], 16


def chat(author: _Author) -> tuple[list[Call], int]:
    """W2: 16 conversations of 4 turns, 64 tokens in and 64 out each; 8 at once, so each waits for others between its turns."""
    calls: list[Call] = []
    for turn in range(4):
        for conversation in range(16):
            before: tuple[Part, ...] = ()
            if turn:
                last = (turn - 1) * 16 + conversation
                before = (*calls[last].parts, OutputOf(last))
            question = author.fixed("\nUser:" + author.text(64).text + "\nAssistant:")
            calls.append(Call((*before, question), author.scale.output(64), f"turn {turn + 1}"))
    return calls, 8


def tree_of_thought(author: _Author) -> tuple[list[Call], int]:
    """W3: a task of 300 tokens and three levels of thoughts of 48 tokens, 4 after each of the level before; 16 at once."""
    task = author.text(300)
    calls: list[Call] = []
    parents: list[tuple[Part, ...]] = [(task,)]
    for depth in range(3):
        hints = [author.fixed(f"\nOption {letter}:" + author.text(6).text) for letter in "ABCD"]
        level = [
            Call((*parent, hint), author.scale.output(48), f"depth {depth + 1}") for parent in parents for hint in hints
        ]
        parents = [(*call.parts, OutputOf(len(calls) + index)) for index, call in enumerate(level)]
        calls += level
    return calls, 16


def agents(author: _Author) -> tuple[list[Call], int]:
    """W4: 48 requests of four agents in a mixed order, its agent's 1,500 tokens before 24 to 48 of its own; 48 out, 16 at once."""
    systems = [author.text(1500) for _ in range(4)]
    calls = [
        Call(
            (systems[index % 4], author.text(author.chance.randint(24, 48))),
            author.scale.output(48),
            f"agent {index % 4 + 1}",
        )
        for index in range(48)
    ]
    author.chance.shuffle(calls)
    return calls, 16


def unrelated(author: _Author) -> tuple[list[Call], int]:
    """W5: 32 prompts of 512 tokens that share nothing; 64 out, 16 at once."""
    return [Call((author.text(512),), author.scale.output(64)) for _ in range(32)], 16


def single_stream(author: _Author) -> tuple[list[Call], int]:
    """W6: one request at a time, 128 tokens in and 128 out, three times."""
    return [Call((author.text(128),), author.scale.output(128)) for _ in range(3)], 1


def structured(author: _Author) -> tuple[list[Call], int]:
    """W7: 32 documents of one JSON schema after 500 shared tokens and 16 of their own; 96 out, 16 at once."""
    setting, ask = author.text(500), "\nCharacter as JSON:\n"
    calls = [
        Call((setting, author.fixed(author.text(16).text + ask)), author.scale.output(96), schema=CHARACTER_SCHEMA)
        for _ in range(32)
    ]
    return calls, 16


def long_beside_streams(author: _Author) -> tuple[list[Call], int]:
    """W8: 8 streams of 200 tokens; when all have had 40, a prompt of 6,000 tokens is sent beside them, and gets 16 out."""
    output = author.scale.output(200)
    count = author.scale.count(8)
    streams = [Call((author.text(64),), output, "streams") for _ in range(count)]
    trigger = tuple((index, min(40, max(1, output // 2))) for index in range(count))
    long = Call((author.text(6000),), author.scale.output(16), LONG, after=trigger)
    return [*streams, long], count + 1


LONG = "long"

_BUILDERS: dict[str, tuple[str, Callable[[_Author], tuple[list[Call], int]]]] = {
    "W1": ("few-shot", few_shot),
    "W2": ("chat", chat),
    "W3": ("tree of thought", tree_of_thought),
    "W4": ("agents", agents),
    "W5": ("no sharing", unrelated),
    "W6": ("one stream", single_stream),
    "W7": ("JSON", structured),
    "W8": ("long prompt beside streams", long_beside_streams),
}
NAMES = tuple(_BUILDERS)


def build_workload(name: str, prose: Prose, seed: int, scale: Scale = WHOLE) -> Workload:
    """The workload ``name`` (one of `NAMES`)."""
    title, builder = _BUILDERS[name]
    calls, concurrency = builder(_Author(prose, name, seed, scale))
    # What a request waits for stands before it, so any beginning of the list is a workload; W8 counts its own streams.
    kept = calls if name == "W8" else calls[: scale.count(len(calls))]
    return Workload(name, title, tuple(kept), concurrency)
