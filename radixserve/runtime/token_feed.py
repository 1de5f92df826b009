"""Steps that begin before the host knows their tokens: greedy tokens go from one step to the next on the device.

Where nothing but its largest logit decides every row of a step, that is found on the device and written into the input of the
next step there; the host hears of it when it asks, and by then the next step is under way. A step with a row that the
host has to draw is drawn before the next one is begun.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch

from radixserve.errors import StepVoided
from radixserve.runtime.forward_batch import ForwardBatch, Int64Array
from radixserve.runtime.plan_runner import HiddenStates, PlanRunner
from radixserve.runtime.step_runner import BegunStep, FinishedStep
from radixserve.runtime.token_choice import Choices
from radixserve.runtime.top_logits import TopLogits
from radixserve.scheduler.plan import PlanRow, RowResult, StepPlan, StepResult


@runtime_checkable
class DeviceStates(HiddenStates, Protocol):
    """Hidden states that can be read on their device."""

    rows: torch.Tensor
    """Float32 [T, hidden], before the final norm; valid until the next forward pass."""


class TokenFeed:
    """A `FeedingRunner` over ``runner``, whose forward passes run in the order in which they are enqueued.

    `begin` belongs to one thread; results may be waited for on any.
    """

    def __init__(self, runner: PlanRunner) -> None:
        self._runner = runner

    def execute(self, plan: StepPlan, choices: Choices | None = None) -> StepResult:
        """As `PlanRunner.execute`."""
        return self._runner.execute(plan, choices)

    def begin(self, plan: StepPlan, choices: Choices | None, before: BegunStep | None) -> BegunStep:
        """As `FeedingRunner.begin`."""
        fed = before if plan.is_open and isinstance(before, _DeviceStep) else None
        if before is not None and not isinstance(before, _DeviceStep):
            known = before.result()
            if not known.sound:
                raise StepVoided(plan.step)
            plan = plan.filled(known)
        runner = self._runner
        clock = _Clock(runner.device)
        with torch.inference_mode():
            runner.kv.copy_blocks(plan.copies)
            batch = runner.flatten(plan if fed is None else _with_any_token(plan))
            if fed is not None:
                fed.write_tokens(plan, batch)
            hidden = runner.forward(batch)
            if choices is None and isinstance(hidden, DeviceStates) and all(map(self._is_greedy, plan.rows)):
                return _DeviceStep(self, plan, batch, hidden, clock)
            rows = runner.results(plan, batch, hidden, choices)
        clock.stop()
        return FinishedStep(StepResult(plan.step, rows, clock.seconds()))

    def _is_greedy(self, row: PlanRow) -> bool:
        """Whether at most the largest logit of the row's last token is wanted."""
        wants = (row.prompt_logprob_targets, row.forced_targets, row.states_from)
        drawn = row.num_samples == 0 or self._runner.sampler.candidates(row) == 1
        return drawn and all(wanted is None for wanted in wants)

    def greedy(self, hidden: HiddenStates, tokens: Int64Array) -> tuple[torch.Tensor, torch.Tensor]:
        """The largest logit of each of ``tokens`` [n] and its id, the lowest of equals: float32 and int64 [n], on the device.

        Where a row has a NaN the logit is NaN, and the id is any that exists.
        """
        size = self._runner.logits_rows
        ids, peaks = [], []
        for first in range(0, len(tokens), size):
            logits = hidden.logits(tokens[first : first + size])
            vocab = logits.shape[1]
            peak = logits.amax(1)
            # argmax promises no order among equals.
            places = torch.arange(vocab, device=logits.device)
            ids.append(torch.where(logits == peak[:, None], places, vocab).amin(1).clamp_(max=vocab - 1))
            peaks.append(peak)
        return torch.cat(peaks), torch.cat(ids)

    def rows(
        self, plan: StepPlan, batch: ForwardBatch, top: TopLogits, non_finite: npt.NDArray[np.bool_]
    ) -> tuple[RowResult, ...]:
        """The results of a step whose drawing rows have the largest logits ``top``. ``non_finite`` [T]: of tokens."""
        results = self._runner.non_finite_rows(plan, batch, np.flatnonzero(non_finite))
        rows = batch.sample_rows.tolist()
        for row, drawn in zip(
            rows, self._runner.sampler.sample_top([plan.rows[row] for row in rows], top), strict=True
        ):
            results.setdefault(row, drawn)
        return tuple(results.get(index, RowResult()) for index in range(batch.num_rows))


class _DeviceStep:
    """A step that is enqueued, its greedy tokens included."""

    def __init__(
        self, feed: TokenFeed, plan: StepPlan, batch: ForwardBatch, hidden: DeviceStates, clock: _Clock
    ) -> None:
        self._feed = feed
        self._plan = plan
        self._batch = batch
        self._clock = clock
        self._lock = threading.Lock()
        self._result: StepResult | None = None
        # x - x is 0 exactly where x is finite.
        self._broken = _on_host(torch.isnan((hidden.rows - hidden.rows).sum(-1)))
        self._drawn: torch.Tensor | None = None
        self._top: tuple[torch.Tensor, torch.Tensor] | None = None
        if len(batch.sample_tokens):
            peaks, self._drawn = feed.greedy(hidden, batch.sample_tokens)
            self._top = _on_host(self._drawn), _on_host(peaks)
        clock.stop()

    def write_tokens(self, plan: StepPlan, batch: ForwardBatch) -> None:
        """Write the tokens that this step has drawn into ``batch``, for the open rows of ``plan``."""
        assert self._drawn is not None, "a row that draws is named"
        place_of = {row: place for place, row in enumerate(self._batch.sample_rows.tolist())}
        rows, places = [], []
        for index, row in enumerate(plan.rows):
            if row.token_from is not None:
                step, source = row.token_from
                assert step == self._plan.step, f"a token of step {step} is looked for in step {self._plan.step}"
                rows.append(index)
                places.append(place_of[source])
        device = batch.tokens.device
        targets = torch.from_numpy(batch.query_start[rows]).to(device)
        tokens = self._drawn.index_select(0, torch.tensor(places, device=device))
        batch.tokens.index_copy_(0, targets, tokens.to(batch.tokens.dtype))

    def result(self) -> StepResult:
        """Wait for the device."""
        with self._lock:
            if self._result is None:
                seconds = self._clock.seconds()
                top = TopLogits(ids=np.empty((0, 1), np.int32), values=np.empty((0, 1), np.float32))
                if self._top is not None:
                    ids, values = (tensor.numpy()[:, None] for tensor in self._top)
                    top = TopLogits(ids=ids.astype(np.int32), values=values)
                rows = self._feed.rows(self._plan, self._batch, top, self._broken.numpy())
                self._result = StepResult(self._plan.step, rows, seconds)
            return self._result


class _Clock:
    """Times a step from its construction to `stop`: on a GPU between what was enqueued before and what was until then."""

    def __init__(self, device: torch.device) -> None:
        self._began = self._ended = time.perf_counter()
        self._events: tuple[torch.cuda.Event, torch.cuda.Event] | None = None
        if device.type == "cuda":
            first = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            first.record()
            self._events = first, torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

    def stop(self) -> None:
        """The step ends with what was enqueued so far."""
        self._ended = time.perf_counter()
        if self._events is not None:
            self._events[1].record()

    def seconds(self) -> float:
        """Its time; waits until it has ended."""
        if self._events is None:
            return self._ended - self._began
        first, last = self._events
        last.synchronize()
        milliseconds: float = first.elapsed_time(last)
        return milliseconds / 1000


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that is there once all that is enqueued by then has run."""
    if tensor.device.type == "cpu":
        return tensor
    host = torch.empty_like(tensor, device="cpu", pin_memory=True)
    return host.copy_(tensor, non_blocking=True)


def _with_any_token(plan: StepPlan) -> StepPlan:
    """``plan`` with a token that exists in every open row: what is written there on the device may be copied before."""
    any_token = np.zeros(1, np.int32)
    rows = (row if row.token_from is None else dataclasses.replace(row, tokens=any_token) for row in plan.rows)
    return dataclasses.replace(plan, rows=tuple(rows))
