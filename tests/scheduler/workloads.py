"""Random workloads: what arrives when, what is aborted, what fails, and under which configuration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from hypothesis import strategies as st

from radixserve.cache.token_key import decode_tokens
from radixserve.messages import FinishReason, SamplingParams
from radixserve.scheduler.plan import PlanRow, StepPlan
from tests.scheduler.fake_runner import StepFailed
from tests.scheduler.machine import Machine, describe
from tests.scheduler.naive import alone
from tests.scheduler.scripted import Scripted

VOCAB = 4
EOS = (3,)
MAX_ROWS = 6


@dataclass(frozen=True)
class Arrival:
    """``abort``: (steps after it came, whether a step is in flight). ``spoils``: its row that draws that token fails."""

    at: int
    prompt: tuple[int, ...]
    max_tokens: int
    sampling: dict[str, Any]
    seed: int = 1
    priority: int = 0
    salt: bytes = b""
    abort: tuple[int, bool] | None = None
    spoils: int | None = None
    script: int | None = None
    script_length: int | None = None

    @property
    def continuation(self) -> Scripted | None:
        """Its forced tokens, anew."""
        return None if self.script is None else Scripted(self.script, VOCAB, length=self.script_length)


@dataclass(frozen=True)
class Holding:
    """Before step ``at`` the first ``tokens`` of an arrival's prompt are held, for ``steps`` steps or until ``release``."""

    at: int
    arrival: int
    tokens: int
    steps: int
    release: int


@dataclass(frozen=True)
class Workload:
    """``failing``: executed steps that raise; ``poison``: the arrival whose every row makes its step raise."""

    arrivals: tuple[Arrival, ...]
    block_size: int
    spare_blocks: int
    prefix_cache: Literal["on", "off", "force_miss"]
    options: dict[str, Any]
    failing: frozenset[int] = frozenset()
    poison: int | None = None
    holds: tuple[Holding, ...] = ()
    hold_share: float = 0.25

    @property
    def num_blocks(self) -> int:
        """The least that is allowed, and a few more."""
        size = self.block_size
        needs = [-(-(len(arrival.prompt) + arrival.max_tokens) // size) for arrival in self.arrivals]
        return max(2, *needs) + self.spare_blocks

    @property
    def max_steps(self) -> int:
        """Far more steps than anything but a standstill takes."""
        work: int = sum(
            len(arrival.prompt) + arrival.sampling.get("n", 1) * (arrival.max_tokens + 1) for arrival in self.arrivals
        )
        return 50 + max((arrival.at for arrival in self.arrivals), default=0) + 8 * work


STEMS: Sequence[tuple[int, ...]] = ((0, 1, 1, 0, 2) * 8, (0, 1, 1, 0, 0, 1, 2) * 6)


@st.composite
def prompts(draw: st.DrawFn) -> tuple[int, ...]:
    """Beginnings of two stems that share their own beginning, and a few tokens more."""
    stem = draw(st.sampled_from(STEMS))[: draw(st.integers(0, 30))]
    own = draw(st.lists(st.integers(0, VOCAB - 1), min_size=0 if stem else 1, max_size=5))
    return (*stem, *own)


@st.composite
def arrivals(draw: st.DrawFn, *, faults: bool, guided: bool) -> Arrival:
    """One request; not ``guided``: most need not wait for their last token to have the next one planned."""
    prompt = draw(prompts())
    max_tokens = draw(st.sampled_from([0, 1, 2, 5, 9, 14, 25]))
    sampling: dict[str, Any] = {
        "n": draw(st.sampled_from([1, 1, 1, 2, 3])),
        "temperature": draw(st.sampled_from([0.0, 1.0])),
        "logprobs": draw(st.sampled_from([None, 0])),
        "ignore_eos": draw(st.sampled_from([True, True, False])),
        "min_tokens": draw(st.integers(0, min(3, max_tokens))),
        "stop_token_ids": draw(st.sampled_from([(), (), (2,)])),
        "repetition_penalty": draw(st.sampled_from([1.0, 1.0, 1.1] if guided else [1.0] * 15 + [1.1])),
    }
    if draw(st.integers(0, 4)) == 0:
        sampling |= {"prompt_logprobs": 0, "logprob_start": draw(st.integers(0, len(prompt)))}
    return Arrival(
        at=draw(st.sampled_from([0, 0, 0, 0, 1, 2, 5, 11])),
        prompt=prompt,
        max_tokens=max_tokens,
        sampling=sampling,
        seed=draw(st.integers(0, 2)),
        priority=draw(st.integers(0, 2)),
        salt=draw(st.sampled_from([b"", b"", b"", b"a"])),
        abort=draw(st.none() | st.tuples(st.integers(0, 12), st.booleans())) if faults else None,
        spoils=draw(st.sampled_from([None] * 9 + [0, 2])) if faults else None,
        script=draw(st.none() | st.integers(0, 20)) if guided else draw(st.sampled_from([None] * 9 + [7])),
        script_length=None if guided else 3,
    )


@st.composite
def workloads(draw: st.DrawFn, *, faults: bool = True, guided: bool = True) -> Workload:
    """Any configuration, often with a pool that is too small for all."""
    rows = draw(st.integers(3, MAX_ROWS))
    budget = draw(st.one_of(st.integers(1, 12), st.sampled_from([20, 40, 1000])))
    options: dict[str, Any] = {
        "max_running": rows,
        "max_batch_tokens": max(rows, budget),
        "policy": draw(st.sampled_from(["lpm", "fcfs", "dfs-weight", "priority"])),
        "age_weight": draw(st.sampled_from([0.5, 8.0])),
        "chunked_prefill": draw(st.sampled_from([True, True, True, False])),
        "admission": draw(st.sampled_from(["adaptive", "adaptive", "reserve_max"])),
        "batching": draw(st.sampled_from(["continuous"] * 4 + ["static"])),
        "watermark": draw(st.sampled_from([0.0, 0.01, 0.2])),
        "itl_target_ms": draw(st.sampled_from([None, None, 5.0])),
        "fast_forward": draw(st.sampled_from([True, True, False])),
    }
    items = draw(st.lists(arrivals(faults=faults, guided=guided), min_size=1, max_size=9))
    return Workload(
        tuple(items),
        block_size=draw(st.sampled_from([1, 3, 4, 16])),
        spare_blocks=draw(st.sampled_from([0, 0, 1, 2, 4, 60])),
        prefix_cache=draw(st.sampled_from(["on", "on", "on", "on", "off", "force_miss"])),
        options=options,
        failing=draw(st.frozensets(st.integers(1, 12), max_size=2)) if faults else frozenset(),
        poison=draw(st.none() | st.integers(0, len(items) - 1)) if faults else None,
        holds=tuple(draw(st.lists(holdings(len(items)), max_size=4))),
        hold_share=draw(st.sampled_from([0.3, 1.0])),
    )


def holdings(arrivals: int) -> st.SearchStrategy[Holding]:
    """Of any of so many arrivals' prompts."""
    return st.builds(
        Holding,
        at=st.integers(0, 15),
        arrival=st.integers(0, arrivals - 1),
        tokens=st.integers(1, 40),
        steps=st.sampled_from([1, 5, 1000]),
        release=st.sampled_from([3, 12, 1000]),
    )


def rid_of(row: PlanRow) -> str:
    """The caller's name of a row's request."""
    return row.rid.split("#")[0]


@dataclass
class Run:
    """A workload that was run to its end, and every plan on the way."""

    workload: Workload
    machine: Machine = field(init=False)
    plans: list[list[tuple[object, ...]]] = field(default_factory=list)
    spoiled: set[str] = field(default_factory=set)
    held: int = 0

    machine_type = Machine

    def __post_init__(self) -> None:
        load = self.workload
        machine = self.machine = self.machine_type(
            num_blocks=load.num_blocks,
            block_size=load.block_size,
            prefix_cache=load.prefix_cache,
            context_length=64,
            vocab_size=VOCAB,
            eos_ids=EOS,
            hold_share=load.hold_share,
            **load.options,
        )
        machine.runner.fault = self._fault
        machine.runner.error = self._error
        machine.runner.seconds = lambda plan: 1e-3 + 1e-4 * plan.num_tokens
        todo = sorted(range(len(load.arrivals)), key=lambda index: load.arrivals[index].at)
        for now in range(load.max_steps):
            while todo and load.arrivals[todo[0]].at <= now:
                self._add(todo.pop(0))
            self._hold(now)
            self._abort(now, in_flight=False)
            self.step(now)
            if not todo and not self.busy:
                break
        else:
            raise AssertionError(f"no end after {load.max_steps} steps: {sorted(machine.scheduler.requests)}")
        self.check_held_tokens()
        machine.check_idle()

    def step(self, now: int) -> None:
        """Plan, execute and collect a step."""
        machine = self.machine
        plan = machine.plan()
        self._abort(now, in_flight=True)
        if plan is not None:
            self.plans.append(describe(plan))
            machine.complete(plan)
        machine.collect()

    @property
    def busy(self) -> bool:
        """Whether anything is left to do."""
        return self.machine.scheduler.has_work

    def check_held_tokens(self) -> None:
        """The tree holds nothing but what requests leave: no output's last token, and nothing after it.

        Where tokens are forced, some are computed that were never told.
        """
        if any(arrival.script is not None for arrival in self.workload.arrivals):
            return
        allowed: set[tuple[int, ...]] = set()
        for index, arrival in enumerate(self.workload.arrivals):
            for number in range(arrival.sampling.get("n", 1)):
                sample = self.machine.samples[f"r{index}", number]
                tokens = sample.token_ids
                ended = sample.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
                whole = (*arrival.prompt, *(tokens[:-1] if ended else tokens))
                allowed |= {whole[:end] for end in range(len(whole) + 1)}
        for node in self.machine.cache.tree.nodes():
            path = b"".join(step.data for step in node.path())
            assert tuple(decode_tokens(path).tolist()) in allowed, "the tree holds tokens that nobody had"

    def _add(self, index: int) -> None:
        arrival = self.workload.arrivals[index]
        self.machine.add(
            f"r{index}",
            arrival.prompt,
            arrival.max_tokens,
            priority=arrival.priority,
            salt=arrival.salt,
            seed=arrival.seed,
            continuation=arrival.continuation,
            **arrival.sampling,
        )

    def _hold(self, now: int) -> None:
        cache = self.machine.cache
        cache.holds.expire(now)
        for index, holding in enumerate(self.workload.holds):
            if holding.release == now:
                cache.holds.release([f"h{index}"])
            if holding.at == now:
                arrival = self.workload.arrivals[holding.arrival]
                tokens = arrival.prompt[: holding.tokens]
                if self.machine.hold(f"h{index}", tokens, now + holding.steps, salt=arrival.salt):
                    self.held += 1
        cache.check()

    def _abort(self, now: int, *, in_flight: bool) -> None:
        for index, arrival in enumerate(self.workload.arrivals):
            if arrival.abort is not None and (arrival.at + arrival.abort[0], arrival.abort[1]) == (now, in_flight):
                self.machine.scheduler.abort(f"r{index}")

    def _fault(self, plan: StepPlan) -> None:
        if plan.step in self.workload.failing or any(rid_of(row) == f"r{self.workload.poison}" for row in plan.rows):
            raise StepFailed("injected")

    def _error(self, row: PlanRow) -> str | None:
        arrival = self.workload.arrivals[int(rid_of(row)[1:])]
        if row.end - row.num_prompt != arrival.spoils:
            return None
        self.spoiled.add(row.rid)
        return "spoiled"

    def check_outcomes(self) -> None:
        """Every sample brought what its request brings alone, as far as it came, and only those to blame failed."""
        for index, arrival in enumerate(self.workload.arrivals):
            rid = f"r{index}"
            params = SamplingParams(max_tokens=arrival.max_tokens, **arrival.sampling)
            expected, prompt_logprobs = alone(
                arrival.prompt, params, arrival.max_tokens, arrival.seed, VOCAB, EOS, arrival.continuation
            )
            request = self.machine.requests[rid]
            whole = False
            for number, sample in enumerate(expected):
                found = self.machine.samples[rid, number]
                count = len(found.token_ids)
                assert found.token_ids == sample.token_ids[:count]
                assert found.logprobs == sample.logprobs[:count]
                own = rid if number == 0 or not request.forked else f"{rid}#{number}"
                if found.finish_reason is FinishReason.ERROR:
                    assert own in self.machine.blamed, f"{own} failed and is not to blame: {found.error}"
                elif found.finish_reason is FinishReason.ABORT:
                    assert arrival.abort is not None
                else:
                    whole = True
                    assert found == sample, f"{rid} sample {number}: {found} is not {sample}"
                    assert own not in self.machine.blamed
            if whole:
                assert request.group.prompt_logprobs == prompt_logprobs
            assert request.group.prompt_logprobs == prompt_logprobs[: len(request.group.prompt_logprobs)]
