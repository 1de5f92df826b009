"""Steps that begin before the host knows their tokens: drawn tokens go from one step to the next on the device.

Where temperature and filters alone lead from logits to tokens in every row of a step, they are drawn on the device and written into
the input of the next step there; the host hears of them when it asks, and by then the next step is under way. A step with a row
that the host has to draw (logprobs, penalties, a constraint) is drawn before the next one is begun.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from typing import Protocol, runtime_checkable

import msgspec
import numpy as np
import torch

from radixserve.errors import StepVoided
from radixserve.runtime.device_draw import DrawnTokens, draw_rows
from radixserve.runtime.forward_batch import ForwardBatch
from radixserve.runtime.host_copies import on_device, on_host
from radixserve.runtime.plan_runner import HiddenStates, PlanRunner
from radixserve.runtime.step_runner import BegunStep, FinishedStep
from radixserve.runtime.token_choice import Choices
from radixserve.scheduler.plan import PlanRow, RowResult, StepPlan, StepResult


@runtime_checkable
class DeviceStates(HiddenStates, Protocol):
    """Hidden states that can be read on their device."""

    rows: torch.Tensor
    """Float32 [T, hidden], before the final norm; valid until the next forward pass."""


class TokenFeed:
    """A `FeedingRunner` over ``runner``, whose forward passes run in the order in which they are enqueued.

    `begin` belongs to one thread; results may be waited for on any. ``fed`` counts the steps whose tokens came from the device.
    """

    def __init__(self, runner: PlanRunner) -> None:
        self._runner = runner
        self.fed = 0

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
                self.fed += 1
            hidden = runner.forward(batch)
            if choices is None and isinstance(hidden, DeviceStates) and all(map(self._is_plain, plan.rows)):
                return _DeviceStep(runner, plan, batch, hidden, clock)
            rows = runner.results(plan, batch, hidden, choices)
        clock.stop()
        return FinishedStep(StepResult(plan.step, rows, clock.seconds()))

    def _is_plain(self, row: PlanRow) -> bool:
        """Whether at most tokens of the row are wanted that can be drawn on the device."""
        wants = (row.prompt_logprob_targets, row.forced_targets, row.states_from)
        drawn = row.num_samples == 0 or self._runner.sampler.is_plain(row)
        return drawn and all(wanted is None for wanted in wants)


class _DeviceStep:
    """A step that is enqueued, its draws included."""

    def __init__(
        self, runner: PlanRunner, plan: StepPlan, batch: ForwardBatch, hidden: DeviceStates, clock: _Clock
    ) -> None:
        self._runner = runner
        self._plan = plan
        self._batch = batch
        self._clock = clock
        self._lock = threading.Lock()
        self._result: StepResult | None = None
        # x - x is 0 exactly where x is finite.
        self._broken = on_host(torch.isnan((hidden.rows - hidden.rows).sum(-1)))
        self._rows = [plan.rows[row] for row in batch.sample_rows.tolist()]
        self._drawn: DrawnTokens | None = None
        self._told: tuple[torch.Tensor, torch.Tensor] | None = None
        if self._rows:
            self._drawn = draw_rows(hidden.logits, self._rows, batch.sample_tokens, runner.logits_rows)
            self._told = on_host(self._drawn.tokens), on_host(self._drawn.peaks)
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
        # An open row is of one sample: where samples part their tokens are known.
        moved = on_device(np.stack((batch.query_start[rows], places)), batch.tokens.device)
        batch.tokens.index_copy_(0, moved[0], self._drawn.tokens[:, 0].index_select(0, moved[1]))

    def result(self) -> StepResult:
        """Wait for the device."""
        with self._lock:
            if self._result is None:
                seconds = self._clock.seconds()
                self._result = StepResult(self._plan.step, self._row_results(), seconds)
            return self._result

    def _row_results(self) -> tuple[RowResult, ...]:
        runner, plan, batch = self._runner, self._plan, self._batch
        results = runner.non_finite_rows(plan, batch, np.flatnonzero(self._broken.numpy()))
        if self._told is not None:
            tokens, peaks = (each.numpy() for each in self._told)
            drawn = runner.sampler.drawn(self._rows, tokens, peaks)
            for row, result in zip(batch.sample_rows.tolist(), drawn, strict=True):
                results.setdefault(row, result)
        return tuple(results.get(index, RowResult()) for index in range(batch.num_rows))


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


def _with_any_token(plan: StepPlan) -> StepPlan:
    """``plan`` with a token that exists in every open row: what is written there on the device may be copied before."""
    any_token = np.zeros(1, np.int32)
    rows = (row if row.token_from is None else msgspec.structs.replace(row, tokens=any_token) for row in plan.rows)
    return dataclasses.replace(plan, rows=tuple(rows))
