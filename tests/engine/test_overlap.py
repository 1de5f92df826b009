"""The engine with one step planned behind the one that runs: to the bit what it is without, on every path."""

from __future__ import annotations

import dataclasses
import random
import threading
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec
import pytest
import torch
from hypothesis import given

from radixserve.cache.namespace import Namespace
from radixserve.cache.token_key import TOKEN_BYTES, encode_tokens
from radixserve.config import EngineConfig, SchedulerConfig
from radixserve.engine.client import CacheNode
from radixserve.engine.core import EngineCore
from radixserve.engine.step_line import LaunchedStep, StepLine
from radixserve.messages import FinishReason, GenerationOutput, SamplingParams
from radixserve.runtime.plan_runner import PlanRunner
from radixserve.runtime.step_runner import Runner
from radixserve.runtime.token_choice import Choices
from radixserve.runtime.token_feed import TokenFeed
from radixserve.scheduler.plan import StepPlan, StepResult
from tests.engine.schedules import Bench, Schedule, random_schedule
from tests.engine.test_cold_equals_warm import SEEDS, thorough
from tests.engine.test_native_cold_equals_warm import native_bench, tiny
from tests.scheduler.test_overlap_faults import blocks_are_freed_at_once, nobody_waits
from tests.tiny_decoder import tiny_decoder

# Enough of them for outputs of random tokens to end in the middle.
STOPS = ("a", "b", "k", "z", "Q", "7", "qu", "!", "%", "N", "m", "0")


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> list[StepPlan]:
    """The plans that were made while the step before them was in flight."""
    plans: list[StepPlan] = []
    launch = StepLine.launch

    def watched(self: StepLine, plan: StepPlan, *args: object) -> LaunchedStep:
        if args[-1] is not None:
            plans.append(plan)
        return launch(self, plan, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(StepLine, "launch", watched)
    return plans


def overlapped(seed: int, bench: Bench, *, plain: bool = False, max_prompt: int = 60) -> Schedule:
    """A schedule with overlap, in which few wait for their tokens and many outputs end before their limit.

    ``plain``: the host draws for none of them.
    """
    schedule = random_schedule(seed, bench, max_prompt=max_prompt, max_output=14)
    rng = random.Random(seed)
    arrivals = []
    for arrival in schedule.arrivals:
        changes: dict[str, object] = {"n": rng.choice([1, 1, 1, arrival.sampling.n])}
        if rng.random() < 0.85:
            changes["repetition_penalty"] = 1.0
        if rng.random() < 0.6:
            changes |= {"stop": STOPS, "min_tokens": min(arrival.sampling.max_tokens or 0, rng.randint(0, 3))}
        if plain:
            changes |= {"logprobs": None, "prompt_logprobs": None, "min_tokens": 0, "repetition_penalty": 1.0}
        arrivals.append(dataclasses.replace(arrival, sampling=msgspec.structs.replace(arrival.sampling, **changes)))
    scheduler = dataclasses.replace(schedule.scheduler, overlap="on")
    return dataclasses.replace(schedule, arrivals=tuple(arrivals), scheduler=scheduler)


def account(output: GenerationOutput) -> object:
    """All that is told of a request but times and cache hits."""
    told = msgspec.structs.asdict(output)
    del told["timings"], told["cached_tokens"]
    return told


def check(bench: Bench, schedule: Schedule) -> None:
    """Like each request alone, and like the same schedule without overlap."""
    assert bench.differences(schedule) == []
    plain = dataclasses.replace(schedule, scheduler=dataclasses.replace(schedule.scheduler, overlap="off"))
    with_overlap, without = bench.run(schedule), bench.run(plain)
    assert with_overlap.keys() == without.keys()
    for rid, output in with_overlap.items():
        if FinishReason.ABORT not in (output.finish_reason, without[rid].finish_reason):
            assert account(output) == account(without[rid])


def test_the_torch_path(ahead: list[StepPlan]) -> None:
    bench = Bench(tiny_decoder("qwen3", torch.bfloat16), 4, 1500 // 4)

    @thorough(6)
    @given(seed=SEEDS)
    def run(seed: int) -> None:
        check(bench, overlapped(seed, bench))

    run()
    assert sum(plan.is_open for plan in ahead) > 25


@pytest.mark.parametrize("block_size", [16, 48])
def test_the_native_path(ahead: list[StepPlan], block_size: int) -> None:
    bench = native_bench(tiny("llama", torch.bfloat16), block_size, 1500 // block_size)

    @thorough(7)
    @given(seed=SEEDS)
    def run(seed: int) -> None:
        check(bench, overlapped(seed, bench, max_prompt=330 if seed % 3 == 0 else 60))

    run()
    assert sum(plan.is_open for plan in ahead) > 25


def test_tokens_that_never_leave_the_device(ahead: list[StepPlan]) -> None:
    """Steps are fed from one to the next, greedy rows and drawn ones; one with a row that the host draws in between waits for it."""
    feeds: list[TokenFeed] = []

    def serve(runner: PlanRunner) -> Runner:
        feeds.append(TokenFeed(runner))
        return feeds[-1]

    bench = Bench(tiny_decoder("llama", torch.float32), 16, 1500 // 16, serve=serve)

    @thorough(6)
    @given(seed=SEEDS)
    def run(seed: int) -> None:
        check(bench, overlapped(seed, bench, plain=seed % 4 != 0))

    run()
    fed = sum(feed.fed for feed in feeds)
    assert fed > 20 and sum(plan.is_open for plan in ahead) > fed


@pytest.mark.parametrize("plant", [blocks_are_freed_at_once, nobody_waits])
def test_planted_faults_are_found(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    bench = native_bench(tiny("llama", torch.bfloat16), 16, 1500 // 16)
    found = 0
    for seed in range(60):
        try:
            check(bench, overlapped(seed, bench))
        except Exception:
            found = seed + 1
            break
    assert found


# ---------------------------------------------------------------- what runs when


class SlowRunner:
    """Runs steps of ``runner`` when it is told to; ``fails``: steps that raise. ``asked``: the plans it was given."""

    def __init__(self, runner: PlanRunner) -> None:
        self.runner = runner
        self.asked: list[StepPlan] = []
        self.threads: set[int] = set()
        self.fails: set[int] = set()
        self.go = threading.Semaphore(0)

    def execute(self, plan: StepPlan, choices: Choices | None = None) -> StepResult:
        self.asked.append(plan)
        self.threads.add(threading.get_ident())
        assert self.go.acquire(timeout=30)
        if plan.step in self.fails:
            raise RuntimeError("injected")
        return self.runner.execute(plan, choices)


def slow_core(scheduler: SchedulerConfig | None = None) -> tuple[EngineCore, SlowRunner]:
    made: list[SlowRunner] = []

    def serve(runner: PlanRunner) -> Runner:
        made.append(SlowRunner(runner))
        return made[-1]

    bench = Bench(tiny_decoder("llama", torch.float32), 16, 64, serve=serve)
    return bench.core(scheduler or SchedulerConfig(overlap="on"), 64), made[0]


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)


def test_a_step_runs_while_the_tokens_of_the_one_before_are_handed_out() -> None:
    core, runner = slow_core()
    core.add("a", [1, 2, 3], greedy(5))
    for count in range(1, 4):
        runner.go.release()
        [chunk] = core.step()
        assert len(chunk.token_ids) == 1
        # The next one has begun, or begins without anybody's doing anything for it.
        assert core.scheduler.step == count + 1 and core.has_work
        assert core.scheduler.requests["a"].in_flight == 1
    runner.go.release(2)
    outputs = [chunk.output for _ in range(2) for chunk in core.step() if chunk.output is not None]
    assert len(outputs[0].token_ids) == 5 and len(runner.asked) == 5
    assert not core.has_work and threading.get_ident() not in runner.threads and len(runner.threads) == 1
    core.close()


def test_a_step_behind_one_that_fails_is_not_run() -> None:
    core, runner = slow_core()
    for rid in ("a", "b"):
        core.add(rid, [*range(1, 40), ord(rid)], greedy(6))
    runner.fails = {3}
    runner.go.release(100)
    outputs: dict[str, GenerationOutput | None] = {}
    while core.has_work or core.has_news:
        outputs |= {chunk.rid: chunk.output for chunk in core.step() if chunk.output is not None}
    assert all(output is not None and output.error is None for output in outputs.values())
    assert [len(output.token_ids) for output in outputs.values() if output is not None] == [6, 6]
    # Step 4 was planned behind step 3 and taken back; the suspects run alone, one after the other.
    assert [plan.step for plan in runner.asked][2:5] == [3, 5, 6]
    assert [len(plan.rows) for plan in runner.asked][2:5] == [2, 1, 1]
    assert core.stats()["scheduler"]["steps"] == len(runner.asked)
    core.close()


def test_the_token_after_a_stop_string_is_nobodys() -> None:
    plain, runner = slow_core(SchedulerConfig(overlap="off"))
    core, slow = slow_core()
    outputs = []
    for each, its in ((plain, runner), (core, slow)):
        its.go.release(100)
        # The text begins 9@I>e@6I3.
        each.add("a", [5, 6, 7], msgspec.structs.replace(greedy(12), stop=("I>", "6")))
        outputs.append(run_one(each))
    assert account(outputs[0]) == account(outputs[1]) and outputs[0].finish_reason is FinishReason.STOP
    # One step more was run than the output has tokens, and nothing of it is left anywhere.
    assert len(slow.asked) == len(runner.asked) + 1
    assert core.cache.tree.num_blocks == plain.cache.tree.num_blocks
    whole = encode_tokens([5, 6, 7, *outputs[0].token_ids])
    held = [
        each.cache.match(Namespace("model", "", b""), whole, len(whole) // TOKEN_BYTES).total for each in (plain, core)
    ]
    assert held[0] == held[1] == 3 + len(outputs[0].token_ids) - 1
    assert core.stats()["scheduler"]["generated_tokens"] == plain.stats()["scheduler"]["generated_tokens"]
    core.close()


def test_nor_is_one_that_a_stop_string_is_found_in_after_the_next_step_was_launched() -> None:
    """A row that waits for its tokens goes on before their text is looked at; in blocks of one token each would be shared at once."""
    sampling = msgspec.structs.replace(greedy(12), repetition_penalty=1.2, stop=("~e",))
    outputs, held, blocks = [], [], []
    choices: tuple[Literal["off", "on"], ...] = ("off", "on")
    for overlap in choices:
        bench = Bench(tiny_decoder("llama", torch.float32), 1, 64)
        core = bench.core(SchedulerConfig(overlap=overlap), 64)
        core.add("a", [5, 6, 7], sampling)
        outputs.append(run_one(core))
        whole = encode_tokens([5, 6, 7, *outputs[-1].token_ids])
        held.append(core.cache.match(Namespace("model", "", b""), whole, len(whole) // TOKEN_BYTES).total)
        blocks.append(core.cache.tree.num_blocks)
        assert core.cache.tree.num_nodes == 1, "what was private until its text was known is no node of its own"
        core.close()
    assert account(outputs[0]) == account(outputs[1]) and outputs[0].stop_reason == "~e"
    assert held == blocks == [3 + len(outputs[0].token_ids) - 1] * 2


def test_a_name_that_is_used_again_shares_nothing_where_nothing_is_shared() -> None:
    """The request that had it before has ended, but a step in flight still has a row of it."""
    bench = Bench(tiny_decoder("llama", torch.float32), 4, 64)
    core = bench.core(SchedulerConfig(overlap="on"), 64, prefix_cache="off")
    prompt = list(range(1, 40))
    core.add("a", prompt, msgspec.structs.replace(greedy(9), stop=STOPS))
    outputs: list[GenerationOutput] = []
    while core.has_work or core.has_news:
        for chunk in core.step():
            if chunk.output is not None:
                outputs.append(chunk.output)
                if len(outputs) == 1:
                    assert core.has_work, "a step has a row of it"
                    core.add("a", prompt, greedy(9))
    assert [output.finish_reason for output in outputs] == [FinishReason.STOP, FinishReason.LENGTH]
    assert [output.cached_tokens for output in outputs] == [0, 0]
    core.close()


def one_by_one(core: EngineCore, schedule: Schedule) -> list[object]:
    """What is told of each request, its hits and misses included, and what can be found in the cache after it."""
    told: list[object] = []
    for index, arrival in enumerate(schedule.arrivals):
        core.add(str(index), list(arrival.prompt), arrival.sampling, explain=True)
        output = run_one(core)
        told.append((account(output), output.cached_tokens, leaves(core)))
    core.close()
    return told


def leaves(core: EngineCore) -> list[list[int]]:
    """The token ids of every path in the tree."""
    found: list[list[int]] = []

    def walk(nodes: Sequence[CacheNode], path: list[int]) -> None:
        for node in nodes:
            here = path + node.token_ids
            walk(node.children, here)
            if not node.children:
                found.append(here)

    walk(core.cache_view(None, max_nodes=10_000, max_tokens=10_000).nodes, [])
    return sorted(found)


@pytest.mark.parametrize("serve", [lambda runner: runner, TokenFeed], ids=["executed", "fed"])
def test_one_after_the_other_even_the_cache_is_the_same(serve: Callable[[PlanRunner], Runner]) -> None:
    """To the token, in blocks of one; in a pool that is never full, since there the row after an end may take a block."""
    bench = Bench(tiny_decoder("llama", torch.float32), 1, 900, serve=serve)
    plain = Bench(bench.model, 1, 900)
    for seed in (1, 15, 23):
        schedule = overlapped(seed, bench, plain=seed == 1)
        scheduler = dataclasses.replace(schedule.scheduler, watermark=0.0)
        found = one_by_one(bench.core(scheduler, 900), schedule)
        assert found == one_by_one(plain.core(dataclasses.replace(scheduler, overlap="off"), 900), schedule)


def run_one(core: EngineCore) -> GenerationOutput:
    found = []
    while core.has_work or core.has_news:
        found += [chunk.output for chunk in core.step() if chunk.output is not None]
    [output] = found
    return output


def test_closing_waits_for_what_runs() -> None:
    core, runner = slow_core()
    core.add("a", [1, 2, 3], greedy(50))
    runner.go.release()
    core.step()
    runner.go.release(5)
    core.close()
    assert len(runner.asked) == 2
    assert not runner.threads & {thread.ident for thread in threading.enumerate()}


def test_auto_is_for_a_gpu() -> None:
    found = {
        device: EngineConfig.from_options(device=device).resolve(context_length=64, num_blocks=8).scheduler.overlap
        for device in ("cpu", "cuda")
    }
    assert found == {"cpu": "off", "cuda": "on"}
