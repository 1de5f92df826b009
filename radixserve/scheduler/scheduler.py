"""Continuous batching: what runs in the next step, and what its result means. No I/O, no torch.

One step of a loop::

    plan = scheduler.schedule()              # None when nothing can run
    result = runner.execute(plan)
    scheduler.update(plan, result)           # or scheduler.fail(plan, error) if it raised
    updates = scheduler.take_updates()

Inside a step the decodes come first, all of them; what the budget leaves is shared among the requests that extend.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from radixserve.cache.lease import Lease
from radixserve.cache.prefix_cache import PrefixCache
from radixserve.config import SchedulerConfig
from radixserve.messages import FinishReason
from radixserve.scheduler.admission import Admission, StepForecast
from radixserve.scheduler.budget import CostModel, split_budget, step_work
from radixserve.scheduler.output import OutputLog, SchedulerStats, Update
from radixserve.scheduler.plan import RowResult, StepPlan, StepResult
from radixserve.scheduler.plan_builder import PlanBuilder
from radixserve.scheduler.request import Request, RequestState, SampleGroup
from radixserve.scheduler.waiting_queue import waiting_queue


@dataclass(slots=True)
class _InFlight:
    """A planned step's requests, and what their cache accounting was before it."""

    requests: list[Request]
    before: list[tuple[int, int]]


class Scheduler:
    """Owns all requests between `add` and their last `Update`.

    ``eos_ids`` end a sequence unless its sampling ignores them. ``context_length`` bounds the ageing of ``lpm``.
    """

    def __init__(
        self, config: SchedulerConfig, cache: PrefixCache, *, context_length: int, eos_ids: Sequence[int] = ()
    ) -> None:
        self.config = config
        self.cache = cache
        self.waiting = waiting_queue(config, cache, context_length)
        self.running: list[Request] = []
        self.cost = CostModel()
        self.stats = SchedulerStats()
        self.step = 0
        self.requests: dict[str, Request] = {}
        self._admission = Admission(config, cache, self.waiting, self.cost)
        self._groups: dict[str, SampleGroup] = {}
        self._suspects: deque[Request] = deque()
        self._output = OutputLog(self.stats, self.finish, eos_ids, fast_forward=config.fast_forward)
        self._in_flight: dict[int, _InFlight] = {}
        self._arrivals = 0

    # ---------------------------------------------------------------- requests

    @property
    def has_work(self) -> bool:
        """Whether a step can be planned."""
        return bool(self.running or self._suspects or len(self.waiting))

    @property
    def has_updates(self) -> bool:
        """Whether `take_updates` would return anything."""
        return bool(self._output.updates)

    @property
    def estimate(self) -> float:
        """The share of ``max_tokens`` that admission reserves."""
        return self._admission.estimate.share

    def add(self, request: Request) -> None:
        """Queue a validated request."""
        assert request.rid not in self.requests, "request ids are unique while they live"
        request.namespace = self.cache.namespace_of(request.namespace, request.rid)
        request.arrival = self._arrivals
        request.queued_step = self.step
        self._arrivals += 1
        self.requests[request.rid] = request
        self._groups[request.rid] = request.group
        self._output.begin(request)
        if request.state is RequestState.WAITING:
            self.waiting.add(request)

    def abort(self, rid: str) -> None:
        """End all samples of generation ``rid``; unknown and finished ones are none of its business.

        Samples in a step in flight let go of their blocks when that step is collected.
        """
        request = self._groups.get(rid)
        for sample in list(request.samples) if request is not None else ():
            self.finish(sample, FinishReason.ABORT)

    def take_updates(self) -> list[Update]:
        """All news since the last call, in order."""
        return self._output.take()

    def finish(
        self,
        request: Request,
        reason: FinishReason,
        stop_reason: str | int | None = None,
        error: str | None = None,
    ) -> None:
        """End ``request`` (from outside: a stop string, an abort). What it computed stays in the tree.

        The first reason stands.
        """
        if request.state is RequestState.FINISHED:
            return
        self._leave_queues(request)
        request.finish(reason, stop_reason, error)
        self.stats.finished[reason.value] += 1
        del self.requests[request.rid]
        if all(sample.state is RequestState.FINISHED for sample in request.group.samples):
            del self._groups[request.group.rid]
            # No cycle is left for the garbage collector: its full runs walk the whole radix tree.
            request.group.samples = []
        if reason in (FinishReason.STOP, FinishReason.LENGTH):
            self._admission.estimate.finished(request.num_output, request.max_tokens)
        if request.in_flight == 0:
            self._release(request)
        self._output.ended(request)

    def _leave_queues(self, request: Request) -> None:
        if request in self.running:
            self.running.remove(request)
        elif not self.waiting.remove(request) and request in self._suspects:
            self._suspects.remove(request)

    def _release(self, request: Request, *, keep_tail: bool = True) -> None:
        if request.lease is not None:
            self.cache.release(request.lease, request.key, request.num_computed, keep_tail=keep_tail)
            request.lease = None

    # ---------------------------------------------------------------- plan

    def schedule(self) -> StepPlan | None:
        """Plan the next step, or None if nothing can run. Counts (``num_computed``) advance now.

        `fail` takes them back.
        """
        if not self.has_work:
            return None
        self.step += 1
        builder = PlanBuilder(self.cache, self.step)
        if self._suspects:
            self._plan_suspect(builder)
        else:
            self._plan_batch(builder)
        if not builder.requests:
            return None
        plan = builder.build()
        self.cache.begin(self.step)
        self._in_flight[self.step] = _InFlight(builder.requests, builder.before)
        self.stats.steps += 1
        self.stats.rows += len(plan.rows)
        self.stats.computed_tokens += plan.num_tokens
        return plan

    def _plan_batch(self, builder: PlanBuilder) -> None:
        preempted = self._secure_decodes()
        for request in [request for request in self.running if request.remaining == 1]:
            builder.extend(request, 1)
        extends = [request for request in self.running if request.remaining > 1]
        forecast = StepForecast(self.cache)
        for request in extends:
            forecast.accept(request, forecast.look(request))
        admitted = [] if preempted else self._admission.admit(builder, self.running, extends, forecast)
        if extends or admitted:
            budget = self._admission.budget(builder, forecast.longest_start)
            self._plan_extends(builder, extends + admitted, forecast.spans, budget)
        if not builder.requests and self.running:
            # Every running request needs blocks and none can have any: the last in line gives way, the others go on.
            self._give_way()
            self._plan_batch(builder)

    def _plan_suspect(self, builder: PlanBuilder) -> None:
        """A step failed: its requests are run one at a time until each has shown that it is not the one."""
        request = self._suspects[0]
        while not builder.extend(request, self.config.max_batch_tokens, cut=True):
            if not self.running:
                self.finish(request, FinishReason.ERROR, error="out of KV blocks")
                return
            self._preempt(self._victim())

    def _secure_decodes(self) -> bool:
        """Preempt until every decode can have the block it needs, before any row is planned.

        True if any was preempted.
        """
        preempted = False
        while True:
            needed = sum(
                self.cache.missing_blocks(request.lease, request.num_tokens)
                for request in self.running
                if request.lease is not None and request.remaining == 1
            )
            # Holds give way before anybody is preempted.
            if needed <= self.cache.secure(needed):
                return preempted
            self._give_way()
            preempted = True

    def _give_way(self) -> None:
        """Blocks ran out: preempt one.

        A request that is alone and still finds none can go on only if it can do without a copy, whose source takes up
        a block as well.
        """
        victim = self._victim()
        if len(self.running) == 1 and (victim.lease is None or victim.lease.copy is None):
            self.finish(victim, FinishReason.ERROR, error="out of KV blocks")
        else:
            self._preempt(victim)

    def _victim(self) -> Request:
        """Who gives way: the lowest priority, among equals the latest arrival."""
        return max(self.running, key=lambda request: (-request.priority, request.order))

    def _preempt(self, request: Request) -> None:
        """Give a running request's private blocks back and queue it again; it keeps its tokens and re-emits nothing."""
        self.running.remove(request)
        self._release(request, keep_tail=False)
        request.num_computed = 0
        request.num_preemptions += 1
        request.state = RequestState.WAITING
        self.stats.preemptions += 1
        self._admission.estimate.preempted()
        self.waiting.add(request)

    def _plan_extends(
        self, builder: PlanBuilder, candidates: list[Request], spans: list[tuple[int, int]], budget: int
    ) -> None:
        cut = self.config.chunked_prefill
        grants = [request.num_tokens for request in candidates]
        if cut:
            seniority = sorted(range(len(candidates)), key=lambda index: candidates[index].order)
            grants = split_budget(spans, budget, self.cache.block_size, seniority)
        surplus = 0
        closed = False
        for request, grant in zip(candidates, grants, strict=True):
            planned = 0
            if not (closed and request.state is RequestState.WAITING):
                planned = builder.extend(request, grant + surplus, cut=cut)
            if cut:
                surplus += grant - planned
            if request.state is RequestState.WAITING:
                if planned:
                    self._start(request)
                else:
                    # Nothing behind it may start in its place.
                    closed = True
                    self.waiting.add(request)

    def _start(self, request: Request) -> None:
        request.state = RequestState.RUNNING
        self.running.append(request)

    # ---------------------------------------------------------------- update

    def update(self, plan: StepPlan, result: StepResult) -> None:
        """Take a step's result in: commit its KV, append tokens, fork samples, end what is complete."""
        assert plan.step == result.step and len(plan.rows) == len(result.rows), "the result belongs to the plan"
        flight = self._in_flight.pop(plan.step)
        self.cache.collect(plan.step)
        if result.seconds > 0:
            self.cost.observe(*step_work(plan), result.seconds)
        for outcome, request in zip(result.rows, flight.requests, strict=True):
            request.in_flight -= 1
            if outcome.error is not None:
                # Also of one that was aborted meanwhile: nobody else must find such KV.
                self._fail_request(request, outcome.error, outcome.error_param)
            elif request.state is RequestState.FINISHED:
                self._release(request)
            else:
                self._acquit(request)
                self._take(request, outcome)

    def _acquit(self, request: Request) -> None:
        """A suspect ran alone and did not fail."""
        if request in self._suspects:
            self._suspects.remove(request)
            request.state = RequestState.RUNNING
            self.running.append(request)

    def _take(self, request: Request, outcome: RowResult) -> None:
        assert request.lease is not None, "a request in flight holds a lease"
        self.cache.settle(request.lease, request.key, request.num_computed)
        if outcome.prompt_logprobs:
            request.group.prompt_logprobs += outcome.prompt_logprobs
            request.logprob_next += len(outcome.prompt_logprobs)
        if outcome.states is not None and request.pool is not None:
            request.pool.add(outcome.states)
        if request.unscored and outcome.forced_logprobs:
            self._output.score(request, outcome.forced_logprobs)
        if request.remaining:
            return
        if request.ending is not None and not request.forced:
            self.finish(request, request.ending.reason, request.ending.stop_reason)
            return
        samples = [request]
        if not request.forked:
            samples = self._fork(request, request.lease)
        for index, sample in enumerate(samples):
            if sample.forced:
                self._output.append_forced(sample, outcome.forced_logprobs)
            elif outcome.token_ids:
                self._output.draw(sample, outcome.token_ids[index], outcome.logprobs[index : index + 1])
            else:
                self.finish(sample, FinishReason.LENGTH)

    def _fork(self, request: Request, lease: Lease) -> list[Request]:
        """The prompt of ``n`` samples is computed: each goes on from it, with a lease of its own on all of it."""
        request.forked = True
        samples = [request, *(request.sample(index) for index in range(1, request.sampling.n))]
        request.group.samples = samples
        leases = self.cache.fork(lease, request.key, request.num_tokens, len(samples))
        self.cache.discard(lease)
        for sample, own in zip(samples, leases, strict=True):
            sample.lease, sample.num_computed = own, own.leased_tokens
        for sample in samples[1:]:
            self.requests[sample.rid] = sample
            self._start(sample)
        return samples

    # ---------------------------------------------------------------- failure

    def fail(self, plan: StepPlan, error: BaseException) -> None:
        """The forward pass of ``plan`` raised: take its counts back and run its requests one at a time.

        Only a request that fails alone gets the error.
        """
        flight = self._in_flight.pop(plan.step)
        self.stats.failed_steps += 1
        for request, (cached, frontier) in reversed(list(zip(flight.requests, flight.before, strict=True))):
            request.in_flight -= 1
            request.group.cached_tokens, request.frontier = cached, frontier
            assert request.lease is not None, "a request in flight holds a lease"
            self.cache.discard(request.lease)
            request.lease, request.num_computed = None, 0
        self.cache.roll_back(plan.step)
        alive = [request for request in flight.requests if request.state is not RequestState.FINISHED]
        if len(flight.requests) == 1:
            for request in alive:
                self._fail_request(request, str(error))
            return
        for request in alive:
            if request in self.running:
                self.running.remove(request)
            request.state = RequestState.WAITING
        self._suspects.extend(sorted(alive, key=lambda request: request.order))

    def _fail_request(self, request: Request, error: str, param: str | None = None) -> None:
        """``request`` alone is at fault: it ends. Where no field ``param`` explains that, KV that only it vouches for leaves the cache."""
        request.error_param = param
        if request.lease is not None and param is None:
            self.cache.disown(request.lease)
            request.lease = None
        if request.state is RequestState.FINISHED:
            self._release(request)
        self.finish(request, FinishReason.ERROR, error=error)
