"""The step loop's body: requests in, one step at a time, chunks of text out. Runs in one thread and does no I/O."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from radixserve.cache.namespace import Namespace
from radixserve.cache.prefix_cache import PrefixCache
from radixserve.cache.token_key import encode_tokens
from radixserve.config import EngineConfig
from radixserve.engine.client import CacheView
from radixserve.engine.constrained import ChoiceFinder, ConstrainedOutput, constrained_output
from radixserve.engine.detokenizer import IncrementalDetokenizer, TokenBytes
from radixserve.engine.generation import Generation
from radixserve.engine.inspection import view_cache
from radixserve.engine.intake import Limits, check_pooling, check_priority
from radixserve.engine.step_stats import StepStats
from radixserve.errors import InvalidRequest, UnsupportedFeature
from radixserve.grammar.compiler import Compiled, ConstraintCompiler
from radixserve.grammar.stop_patterns import StopPatterns
from radixserve.messages import Explanation, FinishReason, GenerationChunk, Pooling, SamplingParams
from radixserve.runtime.token_choice import Choices
from radixserve.scheduler.plan import StepPlan, StepResult
from radixserve.scheduler.request import Request
from radixserve.scheduler.scheduler import Scheduler

logger = logging.getLogger(__name__)

_TEXT_TOKENS = 8


class Runner(Protocol):
    """Executes plans."""

    def execute(self, plan: StepPlan, choices: Choices | None = None) -> StepResult:
        """Run one step; raising fails the whole step. ``choices``: of the rows that may not draw every token."""


class EngineCore:
    """Scheduler, cache and runner as one machine.

    ``config`` is resolved. ``fingerprint`` names the model in cache keys. ``compiler``: of the constraints; anybody may use
    it, on any thread. Otherwise not thread-safe: one thread owns it.
    """

    def __init__(
        self,
        config: EngineConfig,
        runner: Runner,
        tokenizer: TokenBytes,
        *,
        vocab_size: int,
        eos_ids: Sequence[int],
        fingerprint: str,
        compiler: ConstraintCompiler | None = None,
    ) -> None:
        assert config.model.context_length is not None and config.cache.num_blocks is not None, "config is resolved"
        self.config = config
        self.limits = Limits(
            vocab_size=vocab_size,
            context_length=config.model.context_length,
            num_blocks=config.cache.num_blocks,
            block_size=config.cache.block_size,
            max_running=config.scheduler.max_running,
        )
        self.cache = PrefixCache(config.cache)
        self.scheduler = Scheduler(
            config.scheduler, self.cache, context_length=config.model.context_length, eos_ids=eos_ids
        )
        self._runner = runner
        self._tokenizer = tokenizer
        self._fingerprint = fingerprint
        self._eos_ids = tuple(eos_ids)
        self.compiler = compiler
        self._finder = ChoiceFinder(vocab_size)
        self._seeds = random.Random(config.seed)
        self._generations: dict[str, Generation] = {}
        self._steps = StepStats()

    @property
    def has_work(self) -> bool:
        """Whether `step` would do anything."""
        return self.scheduler.has_work

    @property
    def has_news(self) -> bool:
        """Whether something ended between two steps and its last chunks wait for the next `step`."""
        return self.scheduler.has_updates

    # ---------------------------------------------------------------- requests

    def add(
        self,
        rid: str,
        tokens: npt.NDArray[np.int32] | list[int],
        sampling: SamplingParams,
        *,
        priority: int = 0,
        salt: bytes = b"",
        explain: bool = False,
        pooling: Pooling | None = None,
        compiled: Compiled | None = None,
    ) -> None:
        """Queue a generation; raises `InvalidRequest` naming what is wrong, and then nothing was queued.

        ``pooling``: the output carries the prompt's pooled hidden states, and nothing is drawn. ``compiled``: the constraint,
        from ``compiler.prepare(sampling)`` on another thread; without it the constraint is compiled here, and everybody waits.
        """
        if rid in self._generations:
            raise InvalidRequest("rid", f"{rid!r} is in use")
        prompt = self.limits.check_tokens(tokens)
        sampling = self.limits.check_sampling(sampling)
        if pooling is not None:
            check_pooling(pooling, sampling)
        max_tokens = self.limits.max_tokens(len(prompt), sampling)
        request = Request(
            rid,
            encode_tokens(prompt),
            sampling,
            Namespace(self._fingerprint, "", salt),
            max_tokens=max_tokens,
            seed=self._seeds.getrandbits(64) if sampling.seed is None else sampling.seed % 2**64,
            priority=check_priority(priority),
            pooling=pooling,
            continuation=self._continuation(sampling, max_tokens, compiled),
        )
        patterns = StopPatterns(sampling.stop_regex) if sampling.stop_regex else None
        explanation = None
        if explain:
            explanation = self.explain(prompt, salt=salt, limit=request.match_limit)
        self._generations[rid] = Generation(
            request, prompt.tolist(), self._tokenizer, explanation, self._eos_ids, patterns
        )
        self.scheduler.add(request)

    def _continuation(
        self, sampling: SamplingParams, max_tokens: int, compiled: Compiled | None
    ) -> ConstrainedOutput | None:
        if sampling.constraint is None:
            return None
        if self.compiler is None:
            raise UnsupportedFeature("constraint", "this engine has no compiler of constraints")
        return constrained_output(
            compiled or self.compiler.compile(sampling.constraint),
            sampling,
            end_tokens=frozenset(self._eos_ids),
            special_ids=self._tokenizer.special_ids,
            max_tokens=max_tokens,
        )

    def abort(self, *rids: str) -> None:
        """End generations; unknown and finished ones are left alone. Their last chunks come from the next `step`."""
        for rid in rids:
            self.scheduler.abort(rid)

    # ---------------------------------------------------------------- steps

    def step(self) -> list[GenerationChunk]:
        """Run one step and return what it brought, in order; empty if it brought nothing yet."""
        began = time.monotonic()
        plan = self.scheduler.schedule()
        if plan is not None:
            self._run(plan)
        chunks = self._chunks()
        now = time.monotonic()
        self.cache.mark_time(now)
        if plan is not None:
            self._steps.observe(now - began, len(plan.rows), plan.num_tokens)
        if self.config.cache.check_every_step:
            self.cache.check()
        return chunks

    def _run(self, plan: StepPlan) -> None:
        choices = self._finder.start(plan, self.scheduler.requests)
        try:
            # Runners that draw freely need not know of choices.
            result = self._runner.execute(plan) if choices is None else self._runner.execute(plan, choices)
        except Exception as error:
            logger.exception("step %d of %d rows failed", plan.step, len(plan.rows))
            if choices is not None:
                choices.settle()
            self.scheduler.fail(plan, error)
        else:
            self.scheduler.update(plan, result)

    def _chunks(self) -> list[GenerationChunk]:
        chunks: list[GenerationChunk] = []
        pending = self.scheduler.take_updates()
        while pending:
            for update in pending:
                request = update.request
                generation = self._generations.get(request.group.rid)
                if generation is None or generation.samples[request.sample_index].finish_reason is not None:
                    continue
                # What happens before its samples part happens to all of them.
                indices = range(request.sampling.n) if update.shared else (request.sample_index,)
                if update.token_ids:
                    chunks += [generation.push(index, update.token_ids, update.logprobs) for index in indices]
                    if request.finish_reason is None:
                        self._stop(request, generation.samples[request.sample_index].detokenizer)
                else:
                    chunks += [generation.finish(request, index) for index in indices]
                    if generation.finished:
                        del self._generations[generation.rid]
            pending = self.scheduler.take_updates()
        return chunks

    def _stop(self, request: Request, text: IncrementalDetokenizer) -> None:
        """End ``request`` where its ``text`` has ended, or cannot be looked through any more."""
        if text.stopped is not None:
            self.scheduler.finish(request, FinishReason.STOP, text.stopped)
        elif text.failure is not None:
            request.error_param = "stop_regex"
            self.scheduler.finish(request, FinishReason.ERROR, error=text.failure)

    def idle(self) -> None:
        """Nothing is running: check the books while it costs nobody anything."""
        if not self.cache.leases:
            self.cache.check_and_repair()

    # ---------------------------------------------------------------- questions

    def explain(
        self,
        tokens: npt.NDArray[np.int32] | list[int],
        *,
        salt: bytes = b"",
        limit: int | None = None,
        see_all: bool = False,
    ) -> Explanation:
        """Why a prompt with these tokens would not hit more of the cache than it would."""
        prompt = self.limits.check_tokens(tokens)
        namespace = Namespace(self._fingerprint, "", salt)
        found = self.cache.explain(namespace, encode_tokens(prompt), limit=limit, see_all=see_all)
        at = prompt[found.position : found.position + _TEXT_TOKENS].tolist()
        text = b"".join(self._tokenizer.token_bytes(token) for token in at).decode("utf-8", "replace")
        return Explanation(found.reason, found.position, found.cached_tokens, found.prompt_tokens, found.detail, text)

    def flush(self, salt: bytes | None = None) -> int:
        """Drop all KV that no request uses, or that of one namespace; returns the number of blocks."""
        return self.cache.flush(salt)

    def cache_view(self, salt: bytes | None, *, max_nodes: int, max_tokens: int) -> CacheView:
        """The tree as `radixserve.engine.inspection` shows it."""
        return view_cache(self.cache, salt, max_nodes=max_nodes, max_tokens=max_tokens)

    def stats(self) -> dict[str, Any]:
        """Gauges and counters of cache, scheduler and steps."""
        cache, scheduler = self.cache, self.scheduler
        counters = asdict(cache.stats)
        queried = counters["queried_tokens"]
        return {
            "blocks": {
                "total": cache.pool.total,
                "free": cache.pool.num_free,
                "tree": cache.pool.num_tree,
                "evictable": cache.tree.evictable_blocks,
                "private": cache.pool.num_private,
                "retired": cache.pool.num_retired,
            },
            "nodes": cache.tree.num_nodes,
            "ghosts": len(cache.ghosts),
            "hit_rate": counters["hit_tokens"] / queried if queried else 0.0,
            "cache": counters,
            "scheduler": {**asdict(scheduler.stats), "finished": dict(scheduler.stats.finished)},
            "running": len(scheduler.running),
            "waiting": len(scheduler.waiting),
            "expected_output_share": scheduler.estimate,
            "steps": self._steps.report(),
        }
