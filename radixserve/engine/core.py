"""The step loop's body: requests in, one step at a time, chunks of text out. Runs in one thread and does no I/O."""

from __future__ import annotations

import logging
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from radixserve.cache.namespace import Namespace
from radixserve.cache.prefix_cache import PrefixCache
from radixserve.cache.token_key import encode_tokens
from radixserve.config import EngineConfig
from radixserve.engine.client import CacheView
from radixserve.engine.constrained import ChoiceFinder
from radixserve.engine.continuations import Continuations
from radixserve.engine.detokenizer import IncrementalDetokenizer, TokenBytes
from radixserve.engine.generation import Generation
from radixserve.engine.inspection import engine_stats, view_cache
from radixserve.engine.intake import Limits, check_pooling, check_priority
from radixserve.engine.prompt_holds import PromptHolds
from radixserve.engine.step_line import LaunchedStep, StepLine
from radixserve.engine.step_stats import StepStats
from radixserve.engine.token_index import TokenIndex
from radixserve.errors import InvalidRequest, RankFailed
from radixserve.grammar.compiler import Compiled, ConstraintCompiler
from radixserve.grammar.stop_patterns import StopPatterns
from radixserve.messages import Explanation, FinishReason, GenerationChunk, Pooling, SamplingParams
from radixserve.runtime.step_runner import Runner
from radixserve.scheduler.request import Request
from radixserve.scheduler.scheduler import Scheduler

logger = logging.getLogger(__name__)

_TEXT_TOKENS = 8


class EngineCore:
    """Scheduler, cache and runner as one machine.

    ``config`` is resolved. ``fingerprint`` names the model in cache keys. ``compiler``: of the constraints; anybody may use
    it, on any thread. ``token_index``: what healing needs. ``clock``: by which holds end; it never goes back. Otherwise not
    thread-safe: one thread owns it.
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
        token_index: TokenIndex | None = None,
        clock: Callable[[], float] = time.monotonic,
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
        self._overlap = config.scheduler.overlap == "on"
        self._line = StepLine(runner, threaded=self._overlap)
        self._launched: deque[LaunchedStep] = deque()
        self._tokenizer = tokenizer
        self._fingerprint = fingerprint
        self._eos_ids = tuple(eos_ids)
        self.compiler = compiler
        self._continuations = Continuations(tokenizer, eos_ids, compiler=compiler, token_index=token_index)
        self._holds = PromptHolds(self.cache, clock)
        self._finder = ChoiceFinder(vocab_size)
        self._seeds = random.Random(config.seed)
        self._generations: dict[str, Generation] = {}
        self._steps = StepStats()

    @property
    def has_work(self) -> bool:
        """Whether `step` would do anything."""
        return self.scheduler.has_work or bool(self._launched)

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
        heal: bool = False,
        hold_s: float | None = None,
    ) -> None:
        """Queue a generation; raises `InvalidRequest` naming what is wrong, and then nothing was queued.

        ``pooling``: the output carries the prompt's pooled hidden states, and nothing is drawn. ``compiled``: the constraint,
        from ``compiler.prepare(sampling)`` on another thread; without it the constraint is compiled here, and everybody waits.
        ``heal``: the prompt's last tokens may be replaced (`radixserve.engine.healing`). ``hold_s``: once the prompt is computed it is held
        under ``rid`` for at most so many seconds.
        """
        if rid in self._generations:
            raise InvalidRequest("rid", f"{rid!r} is in use")
        prompt = self.limits.check_tokens(tokens)
        sampling = self.limits.check_sampling(sampling)
        if pooling is not None:
            check_pooling(pooling, sampling)
        if hold_s is not None:
            hold_s = self._holds.check(rid, hold_s, sampling)
        max_tokens = self.limits.max_tokens(len(prompt), sampling)
        healed = self._continuations.heal(heal, prompt.tolist(), max_tokens)
        num_healed = 0 if healed is None else len(healed.tokens)
        given = prompt[: len(prompt) - num_healed]
        request = Request(
            rid,
            encode_tokens(given),
            sampling,
            Namespace(self._fingerprint, "", salt),
            # As many tokens as were taken off may come again before the output begins.
            max_tokens=max_tokens + num_healed,
            seed=self._seeds.getrandbits(64) if sampling.seed is None else sampling.seed % 2**64,
            priority=check_priority(priority),
            pooling=pooling,
            continuation=self._continuations.begin(sampling, max_tokens, compiled, healed),
        )
        patterns = StopPatterns(sampling.stop_regex) if sampling.stop_regex else None
        explanation = None
        if explain:
            explanation = self.explain(given, salt=salt, limit=request.match_limit)
        generation = Generation(
            request, prompt.tolist(), self._tokenizer, explanation, self._eos_ids, patterns, healed, hold_s
        )
        self._generations[rid] = generation
        self.scheduler.add(request)
        if self._holds.take_at_once(generation):
            self.scheduler.finish(request, FinishReason.LENGTH)

    def abort(self, *rids: str) -> None:
        """End generations; unknown and finished ones are left alone. Their last chunks come from the next `step`.

        What was held under these names is released: whoever asked for it may be gone before having heard of it.
        """
        for rid in rids:
            self.scheduler.abort(rid)
        self._holds.release(rids)

    # ---------------------------------------------------------------- holds

    def release(self, ids: Sequence[str]) -> int:
        """End holds, by the rids of the requests that took them; unknown ones are left alone. Returns how many there were."""
        return self._holds.release(ids)

    def expire_holds(self) -> None:
        """End the holds whose time is over. `step` does it, too; without steps somebody else has to."""
        self._holds.expire()

    def seconds_to_expiry(self) -> float | None:
        """For so long no hold ends by itself; None without any."""
        return self._holds.seconds_to_expiry()

    # ---------------------------------------------------------------- steps

    def step(self) -> list[GenerationChunk]:
        """Collect one step and return what it brought, in order; empty if it brought nothing yet.

        With overlap the step after it is planned while it runs, and runs when this returns.
        """
        self.expire_holds()
        if not self._launched:
            self._launch()
        if self._overlap and self._launched:
            self._launch()
        launched = self._launched.popleft() if self._launched else None
        if launched is not None:
            self._collect(launched)
            if self._overlap and not self._launched:
                # What could not be planned before its tokens were known runs while these are handed out.
                self._launch()
        chunks = self._chunks()
        now = time.monotonic()
        self.cache.mark_time(now)
        if launched is not None:
            self._steps.observe(launched.began, now, len(launched.plan.rows), launched.plan.num_tokens)
        if self.config.cache.check_every_step:
            self.cache.check()
        return chunks

    def _launch(self) -> None:
        """Plan the next step, if one can be planned, and hand it to the runner."""
        began = time.monotonic()
        plan = self.scheduler.schedule()
        if plan is not None:
            choices = self._finder.start(plan, self.scheduler.requests)
            after = self._launched[-1] if self._launched else None
            self._launched.append(self._line.launch(plan, choices, began, after))

    def _collect(self, launched: LaunchedStep) -> None:
        plan = launched.plan
        try:
            result = launched.result()
        except Exception as error:
            self._drop_launched()
            if isinstance(error, RankFailed):
                # No step can be computed any more, so nothing is gained by trying its requests one at a time.
                raise
            logger.exception("step %d of %d rows failed", plan.step, len(plan.rows))
            self.scheduler.fail(plan, error)
        else:
            if not result.sound:
                # The scheduler takes back what it planned after such a step; by then nothing of that may run any more.
                self._drop_launched()
            self.scheduler.update(plan, result)

    def _drop_launched(self) -> None:
        while self._launched:
            self._launched.popleft().drop()

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
                    chunks += [
                        generation.push(index, update.token_ids, update.logprobs, forced=update.forced)
                        for index in indices
                    ]
                    if request.finish_reason is None:
                        self._stop(request, generation.samples[request.sample_index].detokenizer)
                else:
                    self._holds.take_at_end(generation)
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

    def close(self) -> None:
        """Wait for what runs, and end the thread it runs on. No step is taken afterwards."""
        self._drop_launched()
        self._line.close()

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
        return msgspec.structs.replace(found, text=text)

    def flush(self, salt: bytes | None = None) -> int:
        """Drop all KV that no request uses, or that of one namespace; returns the number of blocks."""
        return self.cache.flush(salt)

    def cache_view(self, salt: bytes | None, *, max_nodes: int, max_tokens: int) -> CacheView:
        """The tree as `radixserve.engine.inspection` shows it."""
        return view_cache(self.cache, salt, max_nodes=max_nodes, max_tokens=max_tokens)

    def stats(self) -> dict[str, Any]:
        """Gauges and counters of cache, scheduler and steps."""
        return engine_stats(self.cache, self.scheduler, self._steps)
