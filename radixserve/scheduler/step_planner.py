"""Which requests get rows in a step, who gives way where blocks run out, and who waits for a result first.

While a step is in flight the next one can be planned already. Such a plan is made only where it costs nobody anything: it
preempts no one and ends no one, since the step in flight may be about to give blocks back. And where a running request cannot go
on before its token is known (a constraint, penalties, samples that part), it is not made at all: leaving those out would let
them run in every other step only, which doubles the time between their tokens, while waiting costs all the time that planning
takes. So nobody starves, and everybody has a row in every step as without overlap.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from radixserve.cache.prefix_cache import PrefixCache
from radixserve.config import SchedulerConfig
from radixserve.messages import FinishReason
from radixserve.scheduler.admission import Admission, StepForecast
from radixserve.scheduler.budget import CostModel, split_budget
from radixserve.scheduler.output import SchedulerStats
from radixserve.scheduler.plan_builder import PlanBuilder
from radixserve.scheduler.policy import WaitingQueue
from radixserve.scheduler.request import Request, RequestState


class StepPlanner:
    """Owns the requests that run, and those that are suspected of having failed a step.

    ``finish``: ends a request, as `Scheduler.finish` does. ``cost`` predicts what a step takes where its time is bounded.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        cache: PrefixCache,
        waiting: WaitingQueue,
        cost: CostModel,
        stats: SchedulerStats,
        finish: Callable[..., None],
    ) -> None:
        self.running: list[Request] = []
        self.suspects: deque[Request] = deque()
        self.admission = Admission(config, cache, waiting, cost)
        self._config = config
        self._cache = cache
        self._waiting = waiting
        self._stats = stats
        self._finish = finish

    @property
    def has_work(self) -> bool:
        """Whether a step can be planned."""
        return bool(self.running or self.suspects or len(self._waiting))

    # ---------------------------------------------------------------- states

    def start(self, request: Request) -> None:
        """``request`` runs from now on."""
        request.state = RequestState.RUNNING
        self.running.append(request)

    def suspect(self, requests: list[Request]) -> None:
        """One of ``requests`` failed their step: from now on they run one at a time, in order of seniority."""
        for request in requests:
            if request in self.running:
                self.running.remove(request)
            request.state = RequestState.WAITING
        self.suspects.extend(sorted(requests, key=lambda request: request.order))

    def acquit(self, request: Request) -> None:
        """``request`` ran and did not fail: if it was a suspect it goes on like any other."""
        if request in self.suspects:
            self.suspects.remove(request)
            self.start(request)

    def leave(self, request: Request) -> None:
        """``request`` neither runs nor waits any more."""
        if request in self.running:
            self.running.remove(request)
        elif not self._waiting.remove(request) and request in self.suspects:
            self.suspects.remove(request)

    def release(self, request: Request, *, keep_tail: bool = True) -> None:
        """What ``request`` has computed goes to the tree, and nothing is its own any more."""
        if request.lease is not None:
            self._cache.release(request.lease, request.key, request.num_computed, keep_tail=keep_tail)
            request.lease = None

    # ---------------------------------------------------------------- plan

    def plan(self, builder: PlanBuilder) -> None:
        """Fill ``builder`` with the rows of the next step, while none is in flight."""
        if self.suspects:
            self._plan_suspect(builder)
        else:
            self._plan_batch(builder)

    def plan_ahead(self, builder: PlanBuilder) -> None:
        """The same while a step is in flight; ``builder`` stays empty where its result has to be waited for."""
        # Suspects run alone, so that it is clear who failed.
        if self.suspects or any(request.needs_result for request in self.running):
            return
        decodes = self._decodes()
        # Holds are not made to give way here, nor anybody preempted: the step in flight may bring blocks.
        if self._missing(decodes) <= self._cache.available_blocks:
            self._plan_rows(builder, decodes, admits=True)

    def _plan_batch(self, builder: PlanBuilder) -> None:
        decodes, preempted = self._secure_decodes()
        self._plan_rows(builder, decodes, admits=not preempted)
        if not builder.requests and self.running:
            # Every running request needs blocks and none can have any: the last in line gives way, the others go on.
            self._give_way()
            self._plan_batch(builder)

    def _decodes(self) -> list[Request]:
        """Who has one token to compute and holds all before it; after a step that was taken back, who runs may hold nothing."""
        return [
            request
            for request in self.running
            if request.remaining == 1 and request.lease is not None and not request.ends_in_flight
        ]

    def _plan_rows(self, builder: PlanBuilder, decodes: list[Request], *, admits: bool) -> None:
        """The decodes, then those that extend and, with ``admits``, those that the queue lets in."""
        for request in decodes:
            builder.extend(request, 1)
        extends = [request for request in self.running if request.remaining > 1 or request.lease is None]
        if not extends and not len(self._waiting):
            return
        forecast = StepForecast(self._cache)
        for request in extends:
            forecast.accept(request, forecast.look(request))
        admitted = self.admission.admit(builder, self.running, extends, forecast) if admits else []
        if extends or admitted:
            budget = self.admission.budget(builder, forecast.longest_start)
            self._plan_extends(builder, extends + admitted, forecast.spans, budget)

    def _plan_suspect(self, builder: PlanBuilder) -> None:
        """A step failed: its requests are run one at a time until each has shown that it is not the one."""
        request = self.suspects[0]
        while not builder.extend(request, self._config.max_batch_tokens, cut=True):
            if not self.running:
                self._finish(request, FinishReason.ERROR, error="out of KV blocks")
                return
            self._preempt(self._victim())

    def _missing(self, requests: list[Request]) -> int:
        """Blocks that rows of one token for ``requests`` need."""
        return sum(
            self._cache.missing_blocks(request.lease, request.num_tokens + request.awaits)
            for request in requests
            if request.lease is not None
        )

    def _secure_decodes(self) -> tuple[list[Request], bool]:
        """Preempt until every decode can have the block it needs, before any row is planned.

        Returns the decodes, and whether any was preempted.
        """
        preempted = False
        while True:
            decodes = self._decodes()
            needed = self._missing(decodes)
            # Holds give way before anybody is preempted.
            if needed <= self._cache.secure(needed):
                return decodes, preempted
            self._give_way()
            preempted = True

    def _give_way(self) -> None:
        """Blocks ran out: preempt one.

        A request that is alone and still finds none can go on only if it can do without a copy, whose source takes up
        a block as well.
        """
        victim = self._victim()
        if len(self.running) == 1 and (victim.lease is None or victim.lease.copy is None):
            self._finish(victim, FinishReason.ERROR, error="out of KV blocks")
        else:
            self._preempt(victim)

    def _victim(self) -> Request:
        """Who gives way: the lowest priority, among equals the latest arrival."""
        return max(self.running, key=lambda request: (-request.priority, request.order))

    def _preempt(self, request: Request) -> None:
        """Give a running request's private blocks back and queue it again; it keeps its tokens and re-emits nothing."""
        assert request.in_flight == 0, "a row in flight is never withdrawn"
        self.running.remove(request)
        self.release(request, keep_tail=False)
        request.num_computed = 0
        request.num_preemptions += 1
        request.state = RequestState.WAITING
        self._stats.preemptions += 1
        self.admission.estimate.preempted()
        self._waiting.add(request)

    def _plan_extends(
        self, builder: PlanBuilder, candidates: list[Request], spans: list[tuple[int, int]], budget: int
    ) -> None:
        cut = self._config.chunked_prefill
        grants = [request.num_tokens for request in candidates]
        if cut:
            seniority = sorted(range(len(candidates)), key=lambda index: candidates[index].order)
            grants = split_budget(spans, budget, self._cache.block_size, seniority)
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
                    self.start(request)
                else:
                    # Nothing behind it may start in its place.
                    closed = True
                    self._waiting.add(request)
