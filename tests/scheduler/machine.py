"""Scheduler, cache and fake runner as one machine that holds every promise that must hold after every step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from radixserve.cache.namespace import Namespace
from radixserve.cache.prefix_cache import PrefixCache
from radixserve.cache.token_key import decode_tokens, encode_tokens
from radixserve.config import CacheConfig, SchedulerConfig
from radixserve.messages import SamplingParams
from radixserve.scheduler.plan import UNKNOWN, StepPlan
from radixserve.scheduler.request import Continuation, Request, RequestState
from radixserve.scheduler.scheduler import Scheduler
from tests.cache.fake_kv import PoisoningPool
from tests.scheduler.fake_runner import FakeRunner, StepFailed
from tests.scheduler.naive import Sample


class Machine:
    """``options`` are those of `SchedulerConfig`. ``samples`` holds what came out, by (rid, sample index)."""

    def __init__(
        self,
        *,
        num_blocks: int = 600,
        block_size: int = 16,
        prefix_cache: Literal["on", "off", "force_miss"] = "on",
        context_length: int = 8192,
        vocab_size: int = 50,
        eos_ids: Sequence[int] = (),
        check: bool = True,
        hold_share: float = 0.25,
        **options: Any,
    ) -> None:
        self.config = SchedulerConfig(**options)
        self.runner = FakeRunner(num_blocks, block_size, vocab_size, eos_ids)
        self.cache = PrefixCache(
            CacheConfig(block_size=block_size, num_blocks=num_blocks, prefix_cache=prefix_cache, hold_share=hold_share),
            PoisoningPool(num_blocks, self.runner.poison),
        )
        self.scheduler = Scheduler(self.config, self.cache, context_length=context_length, eos_ids=eos_ids)
        self.prompts: dict[str, list[int]] = {}
        self.requests: dict[str, Request] = {}
        self.samples: dict[tuple[str, int], Sample] = {}
        self.blamed: set[str] = set()
        self.checks = check

    # ---------------------------------------------------------------- requests

    def add(
        self,
        rid: str,
        prompt: Sequence[int],
        max_tokens: int = 8,
        *,
        priority: int = 0,
        salt: bytes = b"",
        seed: int = 1,
        continuation: Continuation | None = None,
        **sampling: Any,
    ) -> Request:
        """Queue a request; ``sampling`` are fields of `SamplingParams`."""
        params = SamplingParams(max_tokens=max_tokens, **sampling)
        request = Request(
            rid,
            encode_tokens(prompt),
            params,
            Namespace("m", "", salt),
            max_tokens=max_tokens,
            seed=seed,
            priority=priority,
            continuation=continuation,
        )
        self.prompts[rid] = list(prompt)
        self.requests[rid] = request
        for index in range(params.n):
            self.samples[rid, index] = Sample()
        self.scheduler.add(request)
        # What it begins with, if that is forced.
        self.collect()
        return request

    def tokens(self, rid: str, index: int = 0) -> list[int]:
        """What a sample has drawn so far."""
        return self.samples[rid, index].token_ids

    def hold(self, hold_id: str, tokens: Sequence[int], expires: float = 1e9, *, salt: bytes = b"") -> int:
        """Hold what is in place of ``tokens``; returns how many are held."""
        return self.cache.hold(hold_id, Namespace("m", "", salt), encode_tokens(tokens), expires)

    # ---------------------------------------------------------------- steps

    def step(self, in_flight: Callable[[], object] = lambda: None) -> StepPlan | None:
        """Plan, let ``in_flight`` happen, and only then execute and update."""
        plan = self.plan()
        in_flight()
        if plan is not None:
            self.complete(plan)
        self.collect()
        return plan

    def run(self, max_steps: int = 10_000) -> list[StepPlan]:
        """Steps until nothing is left to do; fails if that takes more than ``max_steps``."""
        plans: list[StepPlan] = []
        idle = 0
        for _ in range(max_steps):
            if not self.scheduler.has_work:
                return plans
            plan = self.step()
            idle = 0 if plan is not None else idle + 1
            assert idle < 10, f"a standstill of {sorted(self.scheduler.requests)}"
            if plan is not None:
                plans.append(plan)
        raise AssertionError(f"not done after {max_steps} steps: {sorted(self.scheduler.requests)}")

    def plan(self) -> StepPlan | None:
        """The next step's plan, checked."""
        decodes = [r for r in self.scheduler.running if r.remaining == 1 and r.lease and not r.ends_in_flight]
        settled = self.scheduler.stats.failed_steps == 0
        plan = self.scheduler.schedule()
        self.check()
        if plan is not None:
            self._check_plan(plan, [r for r in decodes if settled and r.state is RequestState.RUNNING])
        return plan

    def complete(self, plan: StepPlan) -> None:
        """Execute ``plan`` now and take its result, or its failure, in."""
        try:
            result = self.runner.execute(plan)
        except StepFailed as error:
            if len(plan.rows) == 1:
                self.blamed.add(plan.rows[0].rid)
            self.scheduler.fail(plan, error)
        else:
            self.blamed |= {row.rid for row, brought in zip(plan.rows, result.rows, strict=True) if brought.error}
            self.scheduler.update(plan, result)
        self.check()

    def collect(self) -> None:
        """Take the news in; a sample ends once, and nothing comes after its end."""
        for update in self.scheduler.take_updates():
            request = update.request
            # What happens before its samples part happens to all of them.
            indices = range(request.sampling.n) if update.shared else [request.sample_index]
            for index in indices:
                sample = self.samples[request.group.rid, index]
                assert sample.finish_reason is None, f"{request.rid}: news after its end"
                sample.token_ids += update.token_ids
                sample.logprobs += update.logprobs
                if not update.token_ids:
                    assert request.finish_reason is not None, f"{request.rid}: empty news"
                    sample.finish_reason = request.finish_reason
                    sample.stop_reason, sample.error = request.stop_reason, request.error

    def check(self) -> None:
        """The books of the cache, and the number of rows."""
        if self.checks:
            self.cache.check()
        assert len(self.scheduler.running) <= self.config.max_running

    def check_idle(self) -> None:
        """All is over: every sample ended, nothing is held, nothing is remembered, and the pool is at its baseline."""
        scheduler, pool = self.scheduler, self.cache.pool
        assert not (scheduler.has_work or scheduler.has_updates or scheduler.running or scheduler.requests)
        assert all(sample.finish_reason is not None for sample in self.samples.values())
        assert len(scheduler.waiting) == 0 and not list(scheduler.waiting)
        assert not self.cache.leases and pool.num_private == 0 and pool.num_retired == 0
        assert self.cache.holds.num_blocks <= self.cache.holds.max_blocks
        self.cache.holds.release_namespace(None)
        assert self.cache.tree.evictable_blocks == pool.num_tree
        self.cache.flush()
        self.cache.check()
        assert pool.num_free == pool.total
        ended = sum(scheduler.stats.finished.values())
        assert len(self.prompts) <= ended <= len(self.samples)

    def _check_plan(self, plan: StepPlan, decodes: list[Request]) -> None:
        rids = [row.rid for row in plan.rows]
        assert len(rids) == len(set(rids)) <= self.config.max_running
        if self.config.chunked_prefill:
            assert plan.num_tokens <= self.config.max_batch_tokens
        assert {request.rid for request in decodes} <= set(rids), "a decode was skipped"
        for request in self.scheduler.requests.values():
            if request.lease is not None:
                written = max((node.pending for node in request.lease.node.path()), default=0)
                vouches = request.last_row[0] if request.in_flight else 0
                assert written <= vouches, f"{request.rid} holds what a step writes that may fail without it"
        for row in plan.rows:
            rid = row.rid.split("#")[0]
            request = self.scheduler.requests[row.rid]
            known = decode_tokens(request.key).tolist()
            told = self.prompts[rid] + self.tokens(rid, row.first_sample)
            assert known[: len(told)] == told
            assert len(known) - len(told) == request.unscored, f"{row.rid} keeps tokens back"
            assert row.num_prompt == len(self.prompts[rid])
            # One token more than is known, where a step in flight draws it.
            whole = len(known) + (row.token_from is not None)
            assert 0 <= row.start < row.end <= whole
            assert row.tokens.tolist() == [*known, UNKNOWN][row.start : row.end], (
                f"{row.rid} is to compute tokens that are not its own"
            )
            complete = row.end == whole and request.max_tokens > 0 and not request.forced and request.ending is None
            wanted = 0 if not complete else (1 if request.forked else row.sampling.n)
            assert row.num_samples == wanted, f"{row.rid} draws {row.num_samples} tokens, {wanted} are due"
            if row.history is not None:
                assert row.history.tolist() == known[: row.end]


def describe(plan: StepPlan) -> list[tuple[object, ...]]:
    """Everything a plan says, in a form that can be compared."""
    rows = [
        (row.rid, row.start, row.tokens.tolist(), row.table.tolist(), row.num_samples, row.first_sample, row.seed)
        for row in plan.rows
    ]
    return [(plan.step, plan.copies.tolist()), *rows]
