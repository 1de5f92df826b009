"""Random schedules for the real engine core, and the obvious reference: every request alone on an empty cache."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import numpy as np

from radixserve.cache.block_pool import BlockState
from radixserve.config import CacheConfig, EngineConfig, ModelOptions, SchedulerConfig
from radixserve.engine.core import EngineCore
from radixserve.engine.detokenizer import TokenBytes
from radixserve.engine.token_index import TokenIndex
from radixserve.grammar.compiler import ConstraintCompiler
from radixserve.messages import FinishReason, GenerationOutput, SampleOutput, SamplingParams
from radixserve.runtime.model_runner import ModelRunner
from radixserve.runtime.plan_runner import PlanRunner, RunnableModel
from radixserve.runtime.step_runner import Runner


@dataclass(frozen=True)
class Arrival:
    """A request that comes before step ``at``, and is aborted before step ``abort_at`` if that is set."""

    at: int
    prompt: tuple[int, ...]
    sampling: SamplingParams
    abort_at: int | None = None
    priority: int = 0
    heal: bool = False


@dataclass(frozen=True)
class Schedule:
    """Requests, and how the engine treats them."""

    arrivals: tuple[Arrival, ...]
    num_blocks: int
    scheduler: SchedulerConfig
    prefix_cache: str = "on"


class LetterTokenizer:
    """Every token is one ASCII character, where the text does not matter."""

    special_ids: frozenset[int] = frozenset()

    def token_bytes(self, token_id: int, /) -> bytes:
        """A printable character."""
        return bytes([32 + token_id % 95])


def torch_runner(model: RunnableModel, num_blocks: int, block_size: int) -> PlanRunner:
    """The torch path on one thread."""
    return ModelRunner(model, num_blocks=num_blocks, block_size=block_size, threads=1)


@dataclass
class Bench:
    """One runner (weights packed once) that many engine cores use one after another."""

    model: RunnableModel
    block_size: int
    num_blocks: int
    tokenizer: TokenBytes = field(default_factory=LetterTokenizer)
    make_runner: Callable[[RunnableModel, int, int], PlanRunner] = torch_runner
    serve: Callable[[PlanRunner], Runner] = lambda runner: runner
    runner: PlanRunner = field(init=False)
    alone: dict[tuple[tuple[int, ...], bytes, bool], GenerationOutput] = field(default_factory=dict)
    token_index: TokenIndex | None = None
    compiler: ConstraintCompiler | None = None

    def __post_init__(self) -> None:
        self.runner = self.make_runner(self.model, self.num_blocks, self.block_size)

    def core(
        self,
        scheduler: SchedulerConfig,
        num_blocks: int,
        prefix_cache: str = "on",
        clock: Callable[[], float] = time.monotonic,
    ) -> EngineCore:
        """A fresh engine core; all KV is poisoned, so nothing can come from an earlier one."""
        self.runner.kv.poison(np.arange(self.num_blocks))
        config = EngineConfig(
            model=ModelOptions(),
            cache=CacheConfig(
                block_size=self.block_size,
                num_blocks=num_blocks,
                prefix_cache=prefix_cache,  # type: ignore[arg-type]
                check_every_step=True,
            ),
            scheduler=scheduler,
        ).resolve(context_length=self.model.config.context_length, num_blocks=num_blocks)
        return EngineCore(
            config,
            self.serve(self.runner),
            self.tokenizer,
            vocab_size=self.model.config.vocab_size,
            eos_ids=self.model.generation.eos_ids,
            fingerprint="model",
            compiler=self.compiler,
            token_index=self.token_index,
            clock=clock,
        )

    def reference(self, arrival: Arrival) -> GenerationOutput:
        """The request alone, whole prompt in one step, nothing cached."""
        key = (arrival.prompt, msgspec.json.encode(arrival.sampling), arrival.heal)
        if key not in self.alone:
            core = self.core(SchedulerConfig(max_batch_tokens=4096), self.num_blocks)
            core.add("alone", list(arrival.prompt), arrival.sampling, heal=arrival.heal)
            outputs: dict[str, GenerationOutput] = {}
            while core.has_work:
                self.step(core, outputs)
            self.alone[key] = outputs["alone"]
        return self.alone[key]

    def step(self, core: EngineCore, outputs: dict[str, GenerationOutput]) -> None:
        """One step; blocks that are free after it are poisoned, so a later read of one would show."""
        for chunk in core.step():
            if chunk.output is not None:
                outputs[chunk.rid] = chunk.output
        pool = core.cache.pool
        free = [block for block in range(pool.total) if pool.state(block) is BlockState.FREE]
        self.runner.kv.poison(np.array(free, np.int32))

    def run(self, schedule: Schedule) -> dict[str, GenerationOutput]:
        """All outputs by index of arrival; checks the books after every step and the baseline at the end."""
        core = self.core(schedule.scheduler, schedule.num_blocks, schedule.prefix_cache)
        outputs: dict[str, GenerationOutput] = {}
        todo = sorted(enumerate(schedule.arrivals), key=lambda item: item[1].at)
        for step in range(10_000):
            while todo and todo[0][1].at <= step:
                index, arrival = todo.pop(0)
                core.add(
                    str(index), list(arrival.prompt), arrival.sampling, priority=arrival.priority, heal=arrival.heal
                )
            for index, arrival in enumerate(schedule.arrivals):
                if arrival.abort_at == step:
                    core.abort(str(index))
            if not (core.has_work or core.has_news or todo):
                break
            self.step(core, outputs)
        else:
            raise AssertionError("the schedule did not end")
        core.close()
        core.cache.check()
        assert not core.cache.leases and core.cache.pool.num_private == 0 and core.cache.pool.num_retired == 0
        return outputs

    def differences(self, schedule: Schedule) -> list[str]:
        """In what the schedule's outputs differ from the same requests alone, bit for bit; aborted ones as far as they came."""
        found = []
        outputs = self.run(schedule)
        assert len(outputs) == len(schedule.arrivals), "every request ends exactly once"
        for index, arrival in enumerate(schedule.arrivals):
            output, alone = outputs[str(index)], self.reference(arrival)
            if output.error is not None:
                found.append(f"request {index} failed: {output.error}")
            cut = output.finish_reason is FinishReason.ABORT
            if not cut and output.prompt_logprobs != alone.prompt_logprobs:
                found.append(f"request {index}: prompt logprobs")
            for one, other in zip(samples(output), samples(alone), strict=True):
                count = len(one.token_ids) if one.finish_reason is FinishReason.ABORT else None
                if one.token_ids != other.token_ids[:count]:
                    found.append(f"request {index}: tokens {one.token_ids} alone {other.token_ids[:count]}")
                elif (one.logprobs or [])[:count] != (other.logprobs or [])[:count]:
                    found.append(f"request {index}: logprobs")
        return found


def samples(output: GenerationOutput) -> list[SampleOutput]:
    """The samples of a generation, also where it has only one."""
    return output.samples or [
        SampleOutput(index=0, token_ids=output.token_ids, logprobs=output.logprobs, finish_reason=output.finish_reason)
    ]


def random_schedule(
    seed: int, bench: Bench, *, max_prompt: int = 60, max_output: int = 10, requests: int = 7
) -> Schedule:
    """Arrivals that share prefixes at all lengths, under a random configuration, often with too small a pool."""
    rng = random.Random(seed)
    size = bench.block_size
    vocab = bench.model.config.vocab_size
    stems = [[rng.randrange(vocab) for _ in range(max_prompt)] for _ in range(2)]
    arrivals: list[Arrival] = []
    for _ in range(rng.randint(2, requests)):
        if arrivals and rng.random() < 0.2:
            prompt = list(rng.choice(arrivals).prompt)
        else:
            prompt = rng.choice(stems)[: rng.randint(0, max_prompt)]
            prompt = prompt + [rng.randrange(vocab) for _ in range(rng.randint(0 if prompt else 1, 6))]
        wants = rng.random()
        sampling = SamplingParams(
            max_tokens=rng.randint(0 if wants < 0.3 else 1, max_output),
            temperature=rng.choice([0.0, 0.7, 1.3]),
            top_p=rng.choice([1.0, 0.9]),
            top_k=rng.choice([0, 0, 20]),
            seed=rng.randrange(1000),
            n=rng.choice([1, 1, 1, 2, 3]),
            logprobs=rng.choice([None, 0, 3]),
            prompt_logprobs=2 if wants < 0.3 else None,
            logprob_start=rng.randint(0, len(prompt)) if wants < 0.3 else 0,
            repetition_penalty=rng.choice([1.0, 1.0, 1.3]),
            ignore_eos=rng.random() < 0.5,
        )
        at = rng.choice([0, 0, rng.randint(0, 12)])
        abort_at = at + rng.randint(0, 10) if rng.random() < 0.15 else None
        arrivals.append(Arrival(at, tuple(prompt), sampling, abort_at, rng.randrange(3)))
    largest = max(-(-(len(arrival.prompt) + (arrival.sampling.max_tokens or 0)) // size) for arrival in arrivals)
    max_running = rng.randint(3, 8)
    chunk = rng.choice([rng.randint(1, 8), rng.randint(8, 40), 1000])
    return Schedule(
        tuple(arrivals),
        num_blocks=min(bench.num_blocks, max(2, largest + rng.choice([0, 1, 4, 30]))),
        scheduler=SchedulerConfig(
            max_batch_tokens=max(max_running, chunk),
            max_running=max_running,
            policy=rng.choice(["lpm", "fcfs", "dfs-weight", "priority"]),
            batching="static" if rng.random() < 0.15 else "continuous",
            chunked_prefill=rng.random() < 0.85,
            admission=rng.choice(["adaptive", "reserve_max"]),
            watermark=rng.choice([0.0, 0.01, 0.1]),
        ),
        prefix_cache=rng.choice(["on"] * 6 + ["off", "force_miss"]),
    )
