"""What an ideal engine would need for a workload: the floor that measured times are compared with.

It starts every request the moment it is ready, runs all requests in one batch, computes every distinct prefix once and never again, and
takes for each step exactly its floor (`radixserve.bench.floors`). Scheduling, sockets and text cost it nothing. Outputs are taken to be as
long as they may be. No schedule of a real engine follows it step by step, but prompts at peak speed, weights read once a step and shared
keys and values read once are what there is to reach.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from radixserve.bench.floors import Floor, ModelCost, StepWork, attended_pairs
from radixserve.bench.machine import Limits
from radixserve.bench.workloads import Call, OutputOf, Part, Workload


@dataclass(frozen=True, slots=True)
class Ideal:
    """``sent_s``, ``first_s``, ``done_s``: when each request began, had its first token and all of them, from the start of the workload.

    ``cached_tokens``: of all prompts, those that an earlier request had computed.
    """

    floor: Floor
    steps: int
    computed_tokens: int
    cached_tokens: int
    sent_s: tuple[float, ...]
    first_s: tuple[float, ...]
    done_s: tuple[float, ...]

    @property
    def seconds(self) -> float:
        """The floor of the wall time."""
        return self.floor.seconds


def ideal_run(workload: Workload, cost: ModelCost, limits: Limits) -> Ideal:
    """Play ``workload`` on the ideal engine."""
    return _Play(workload, cost, limits).run()


def longest_context(workload: Workload) -> int:
    """Tokens of the longest prompt with its output."""
    return max(_prompt_tokens(workload, call) + call.max_tokens for call in workload.calls)


def _part_tokens(workload: Workload, part: Part) -> int:
    return workload.calls[part.call].max_tokens if isinstance(part, OutputOf) else part.tokens


def _prompt_tokens(workload: Workload, call: Call) -> int:
    return sum(_part_tokens(workload, part) for part in call.parts)


@dataclass(slots=True)
class _Running:
    """``context``: tokens whose keys and values are in place; ``new``: tokens of the next step; ``generated`` so far."""

    index: int
    path: tuple[Part, ...]
    context: int
    new: int
    generated: int = 0


@dataclass(slots=True)
class _Play:
    workload: Workload
    cost: ModelCost
    limits: Limits
    now: float = 0.0
    steps: int = 0
    computed: int = 0
    cached: int = 0
    floor: Floor = field(default_factory=Floor)

    def run(self) -> Ideal:
        calls = self.workload.calls
        sent, first, done = ([0.0] * len(calls) for _ in range(3))
        generated = [0] * len(calls)
        waiting = list(range(len(calls)))
        running: list[_Running] = []
        # Prefixes, as tuples of parts, whose keys and values are in place.
        known: set[tuple[Part, ...]] = set()
        while waiting or running:
            for index in list(waiting):
                if len(running) == self.workload.concurrency:
                    break
                if self._ready(calls[index], generated):
                    waiting.remove(index)
                    sent[index] = self.now
                    running.append(self._start(index, known))
            assert running, "a request waits for one that never comes"
            self._step(running)
            for row in list(running):
                row.context, row.new, row.generated = row.context + row.new, 1, row.generated + 1
                generated[row.index] = row.generated
                if row.generated == 1:
                    first[row.index] = self.now
                if row.generated == calls[row.index].max_tokens:
                    done[row.index] = self.now
                    running.remove(row)
                    known.add((*row.path, OutputOf(row.index)))
        return Ideal(self.floor, self.steps, self.computed, self.cached, tuple(sent), tuple(first), tuple(done))

    def _ready(self, call: Call, generated: list[int]) -> bool:
        complete = all(generated[need] == self.workload.calls[need].max_tokens for need in call.needs)
        return complete and all(generated[other] >= min(count, self._output(other)) for other, count in call.after)

    def _output(self, index: int) -> int:
        return self.workload.calls[index].max_tokens

    def _start(self, index: int, known: set[tuple[Part, ...]]) -> _Running:
        """A request with what it needs not compute; its prefixes count as known from the step that computes them on."""
        parts = self.workload.calls[index].parts
        total = _prompt_tokens(self.workload, self.workload.calls[index])
        cached = length = 0
        for end, part in enumerate(parts, 1):
            length += _part_tokens(self.workload, part)
            if parts[:end] in known:
                # The last token of an output was drawn and not computed.
                cached = length - isinstance(part, OutputOf)
            known.add(parts[:end])
        # The last token of a prompt is always computed: its logits are needed.
        cached = min(cached, total - 1)
        self.cached += cached
        return _Running(index, parts, cached, total - cached)

    def _step(self, running: list[_Running]) -> None:
        read: dict[tuple[Part, ...], int] = {}
        for row in running:
            end = 0
            for count in range(1, len(row.path) + 1):
                size = _part_tokens(self.workload, row.path[count - 1])
                read[row.path[:count]] = size
                end += size
            read[(*row.path, OutputOf(row.index))] = row.context + row.new - end
        work = StepWork(
            tokens=sum(row.new for row in running),
            sampled=len(running),
            pairs=sum(attended_pairs(row.context, row.new) for row in running),
            kv_tokens=sum(read.values()),
        )
        step = self.cost.step(work, self.limits)
        self.floor += step
        self.now += step.seconds
        self.steps += 1
        self.computed += work.tokens
