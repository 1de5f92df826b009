"""Continuous batching: what runs in the next step, and what its result means. No I/O, no torch.

One step of a loop::

    plan = scheduler.schedule()              # None when nothing can run
    result = runner.execute(plan)
    scheduler.update(plan, result)           # or scheduler.fail(plan, error) if it raised
    updates = scheduler.take_updates()

Inside a step the decodes come first, all of them; what the budget leaves is shared among the requests that extend.

`schedule` may be called once more before the result of its last plan is there. The next plan then counts on that result: rows
whose next token it draws name the row that draws it. Plans are executed and collected in their order.
"""

from __future__ import annotations

from collections.abc import Sequence

from radixserve.cache.lease import Lease
from radixserve.cache.prefix_cache import PrefixCache
from radixserve.config import SchedulerConfig
from radixserve.messages import FinishReason
from radixserve.scheduler.budget import CostModel, step_work
from radixserve.scheduler.output import OutputLog, SchedulerStats, Update
from radixserve.scheduler.plan import PlanRow, RowResult, StepPlan, StepResult
from radixserve.scheduler.plan_builder import PlanBuilder
from radixserve.scheduler.request import Request, RequestState, SampleGroup
from radixserve.scheduler.step_planner import StepPlanner
from radixserve.scheduler.steps_in_flight import MOST_IN_FLIGHT, StepsInFlight
from radixserve.scheduler.waiting_queue import waiting_queue


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
        self.cost = CostModel()
        self.stats = SchedulerStats()
        self.step = 0
        self.requests: dict[str, Request] = {}
        self._planner = StepPlanner(config, cache, self.waiting, self.cost, self.stats, self.finish)
        self._groups: dict[str, SampleGroup] = {}
        self._output = OutputLog(self.stats, self.finish, eos_ids, fast_forward=config.fast_forward)
        self._in_flight = StepsInFlight(cache, self.stats)
        self._arrivals = 0

    # ---------------------------------------------------------------- requests

    @property
    def has_work(self) -> bool:
        """Whether a step can be planned."""
        return self._planner.has_work

    @property
    def running(self) -> list[Request]:
        """Requests that have rows in steps, in the order in which they started."""
        return self._planner.running

    @property
    def has_updates(self) -> bool:
        """Whether `take_updates` would return anything."""
        return bool(self._output.updates)

    @property
    def estimate(self) -> float:
        """The share of ``max_tokens`` that admission reserves."""
        return self._planner.admission.estimate.share

    def add(self, request: Request) -> None:
        """Queue a validated request."""
        assert request.rid not in self.requests, "request ids are unique while they live"
        # Not by its rid, which another request may have as soon as this one has ended.
        request.namespace = self.cache.namespace_of(request.namespace, str(self._arrivals))
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

        Samples in steps in flight let go of their blocks when the last of these is collected.
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
        self._planner.leave(request)
        request.finish(reason, stop_reason, error)
        self.stats.finished[reason.value] += 1
        del self.requests[request.rid]
        if all(sample.state is RequestState.FINISHED for sample in request.group.samples):
            del self._groups[request.group.rid]
            # No cycle is left for the garbage collector: its full runs walk the whole radix tree.
            request.group.samples = []
        if reason in (FinishReason.STOP, FinishReason.LENGTH):
            self._planner.admission.estimate.finished(request.num_output, request.max_tokens)
        if request.in_flight == 0:
            self._planner.release(request)
        else:
            # A step in flight may compute a token that nobody will know, or those that end the output, which without overlap
            # nobody would have computed.
            wanted = self._in_flight.start_of(request) if reason is FinishReason.STOP else request.num_tokens
            request.num_computed = min(request.num_computed, wanted)
        self._output.ended(request)

    # ---------------------------------------------------------------- plan

    def schedule(self) -> StepPlan | None:
        """Plan the next step, or None if nothing can run. Counts (``num_computed``) advance now.

        `fail` takes them back. While a step is in flight None says that there is nothing to plan before it is collected.
        """
        if not self.has_work or len(self._in_flight) == MOST_IN_FLIGHT:
            return None
        ahead = len(self._in_flight) > 0
        builder = PlanBuilder(self.cache, self.step + 1)
        if ahead:
            self._planner.plan_ahead(builder)
        else:
            self.step += 1
            self._planner.plan(builder)
        if not builder.requests:
            return None
        self.step = builder.step
        return self._in_flight.begin(builder)

    # ---------------------------------------------------------------- update

    def update(self, plan: StepPlan, result: StepResult) -> None:
        """Take a step's result in: commit its KV, append tokens, fork samples, end what is complete."""
        assert plan.step == result.step and len(plan.rows) == len(result.rows), "the result belongs to the plan"
        flight = self._in_flight.collect(plan)
        if not result.sound:
            rows = zip(result.rows, flight.requests, strict=True)
            self._in_flight.void_later(keep=[request for outcome, request in rows if outcome.error is not None])
        # Nobody else asks what a step will take.
        if result.seconds > 0 and self.config.itl_target_ms is not None:
            self.cost.observe(*step_work(plan), result.seconds)
        for row, outcome, request in zip(plan.rows, result.rows, flight.requests, strict=True):
            if outcome.error is not None:
                # Also of one that was aborted meanwhile: nobody else must find such KV.
                self._fail_request(request, outcome.error, outcome.error_param)
            elif request.state is RequestState.FINISHED:
                if request.in_flight == 0:
                    self._planner.release(request)
            else:
                self._planner.acquit(request)
                self._take(request, row, outcome)

    def _take(self, request: Request, row: PlanRow, outcome: RowResult) -> None:
        end = row.end
        if request.lease is not None:
            # What a later step computes is not in place yet.
            self.cache.settle(request.lease, request.key, min(end, request.num_computed))
        if outcome.prompt_logprobs:
            request.group.prompt_logprobs += outcome.prompt_logprobs
            request.logprob_next += len(outcome.prompt_logprobs)
        if outcome.states is not None and request.pool is not None:
            request.pool.add(outcome.states)
        if request.unscored and outcome.forced_logprobs:
            self._output.score(request, outcome.forced_logprobs)
        if end < request.num_tokens:
            return
        if request.ending is not None and not request.forced:
            self.finish(request, request.ending.reason, request.ending.stop_reason)
            return
        samples = [request]
        if not request.forked:
            assert request.lease is not None, "no row is planned before samples part"
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
            self._planner.start(sample)
        return samples

    # ---------------------------------------------------------------- failure

    def fail(self, plan: StepPlan, error: BaseException) -> None:
        """The forward pass of ``plan`` raised: take its counts back and run its requests one at a time.

        Only a request that fails alone gets the error. A step that was planned after it is void; its requests go on.
        """
        flight = self._in_flight.fail(plan)
        self.stats.failed_steps += 1
        alive = [request for request in flight.requests if request.state is not RequestState.FINISHED]
        if len(flight.requests) == 1:
            for request in alive:
                self._fail_request(request, str(error))
        else:
            self._planner.suspect(alive)

    def _fail_request(self, request: Request, error: str, param: str | None = None) -> None:
        """``request`` alone is at fault: it ends. Where no field ``param`` explains that, KV that only it vouches for leaves the cache."""
        request.error_param = param
        if request.lease is not None and param is None:
            self.cache.disown(request.lease)
            request.lease = None
        if request.state is RequestState.FINISHED and request.in_flight == 0:
            self._planner.release(request)
        self.finish(request, FinishReason.ERROR, error=error)
