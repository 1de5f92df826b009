"""Steps that begin before the host knows their tokens: what is said to wait for nothing, and what tokens they begin with."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from radixserve.config import SchedulerConfig
from radixserve.messages import SamplingParams
from radixserve.runtime.forward_batch import ForwardBatch
from radixserve.runtime.host_copies import on_device, on_host
from radixserve.runtime.model_runner import ModelRunner
from radixserve.runtime.plan_runner import HiddenStates
from radixserve.runtime.token_feed import TokenFeed
from radixserve.scheduler.plan import UNKNOWN, PlanRow, StepPlan, StepResult
from tests.engine.schedules import Bench
from tests.tiny_decoder import plan_row, tiny_decoder

SAMPLINGS = (SamplingParams(temperature=0.0), SamplingParams(temperature=0.8, top_p=0.9), SamplingParams(top_k=20))


class Waited(AssertionError):
    """The host would have waited for the device."""


class Watch:
    """While it is on, whatever makes the host wait for a GPU raises: reading a tensor, and copies that are not of pinned memory."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.on = False
        for name in ("cpu", "item", "tolist", "nonzero", "numpy", "__bool__", "__int__", "__float__"):
            patch.setattr(torch.Tensor, name, self._refused(name, getattr(torch.Tensor, name)))
        patch.setattr(torch, "tensor", self._refused("tensor", torch.tensor))
        move = torch.Tensor.to

        def to(tensor: torch.Tensor, *places: Any, **options: Any) -> torch.Tensor:
            named = [*places, *options.values()]
            if self.on and any(isinstance(place, (str, torch.device)) for place in named):
                raise Waited("to")
            return move(tensor, *places, **options)

        patch.setattr(torch.Tensor, "to", to)

    def _refused(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any, **options: Any) -> Any:
            if self.on:
                raise Waited(name)
            return original(*arguments, **options)

        return watched

    @contextmanager
    def paused(self) -> Iterator[None]:
        was, self.on = self.on, False
        yield
        self.on = was


class Runner(ModelRunner):
    """Its layers, and what brings a batch to the device, are FlashInfer's business on a GPU, and are not watched."""

    watch: Watch

    def flatten(self, plan: StepPlan) -> ForwardBatch:
        with self.watch.paused():
            return super().flatten(plan)

    def forward(self, batch: ForwardBatch) -> HiddenStates:
        with self.watch.paused():
            return super().forward(batch)


def step(number: int, starts: list[int], **changes: Any) -> StepPlan:
    """Three rows of one token, each in a block of its own; the samplings are different. Before them, one that draws nothing."""
    rows: list[PlanRow] = [plan_row([7], [6], start=starts[0], num_samples=0)]
    rows += [
        msgspec.structs.replace(plan_row([40 + index], [index], start=start), sampling=sampling, seed=index, **changes)
        for index, (start, sampling) in enumerate(zip(starts, SAMPLINGS, strict=True))
    ]
    return StepPlan(number, tuple(rows), np.array([[0, 5]], np.int32))


def opened(plan: StepPlan, order: list[int]) -> StepPlan:
    """The rows ``order`` of ``plan``, in this order, with tokens that the step before it draws."""
    unknown = np.array([UNKNOWN], np.int32)
    rows = (msgspec.structs.replace(plan.rows[row], tokens=unknown, token_from=(plan.step - 1, row)) for row in order)
    return dataclasses.replace(plan, rows=tuple(rows), copies=np.empty((0, 2), np.int32))


def test_nothing_waits_between_two_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = Runner(tiny_decoder("llama"), num_blocks=8, block_size=16, threads=1)
    runner.watch = watch = Watch(monkeypatch)
    feed = TokenFeed(runner)
    first, second = step(1, [0, 0, 0]), opened(step(2, [1, 1, 1]), [3, 1, 2])
    watch.on = True
    begun = feed.begin(first, None, None)
    following = feed.begin(second, None, begun)
    watch.on = False
    drawn = begun.result()
    assert feed.fed == 1 and drawn.sound
    expected = runner.execute(second.filled(drawn))
    assert following.result().rows == expected.rows


def test_a_step_that_the_host_draws_for_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = Runner(tiny_decoder("llama"), num_blocks=8, block_size=16, threads=1)
    runner.watch = watch = Watch(monkeypatch)
    plan = step(1, [0, 0, 0])
    wanting = msgspec.structs.replace(plan.rows[2], sampling=SamplingParams(logprobs=1))
    watch.on = True
    with pytest.raises(Waited):
        TokenFeed(runner).begin(dataclasses.replace(plan, rows=(plan.rows[1], wanting)), None, None)


def test_rows_that_are_not_finite_fail_as_they_do_on_the_host() -> None:
    """A poisoned block under a row: the same errors, whichever way the step goes."""
    bench = Bench(tiny_decoder("llama", torch.float32), 16, 8)
    results: list[Callable[[StepPlan], StepResult]] = [
        bench.runner.execute,
        lambda plan: TokenFeed(bench.runner).begin(plan, None, None).result(),
    ]
    found = []
    for execute in results:
        core = bench.core(SchedulerConfig(), 8)
        for rid, tokens in (("a", [1, 2, 3]), ("b", [4, 5, 6, 7])):
            core.add(rid, tokens, SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True))
        plan = core.scheduler.schedule()
        assert plan is not None
        core.scheduler.update(plan, execute(plan))
        decode = core.scheduler.schedule()
        assert decode is not None
        bench.runner.kv.poison(decode.rows[1].table)
        found.append(execute(decode).rows)
    assert found[0] == found[1]
    assert found[0][0].error is None and found[0][1].error is not None


def test_copies_are_of_pinned_memory_and_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[object] = []

    def pin(self: torch.Tensor) -> torch.Tensor:
        log.append("pinned")
        return self

    def move(self: torch.Tensor, place: torch.device, **options: object) -> torch.Tensor:
        log.append((place, options))
        return self

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    monkeypatch.setattr(torch.Tensor, "to", move)
    device = torch.device("cuda")
    assert on_device(np.arange(3), device).tolist() == [0, 1, 2]
    assert log == ["pinned", (device, {"non_blocking": True})]
    held = torch.arange(3)
    assert on_host(held) is held
    assert np.shares_memory(on_device(held.numpy(), torch.device("cpu")).numpy(), held.numpy())
