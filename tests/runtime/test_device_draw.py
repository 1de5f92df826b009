"""Draws in operations on tensors: the tokens of the host's sampler, whatever else is in the batch."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from radixserve.messages import SamplingParams
from radixserve.model.device_weights import DeviceWeights
from radixserve.runtime import device_draw
from radixserve.runtime.device_draw import DrawnTokens, Draws, draw, draw_rows
from radixserve.runtime.forward_batch import ForwardBatch
from radixserve.runtime.model_runner import ModelRunner
from radixserve.runtime.plan_runner import HiddenStates, PlanRunner
from radixserve.runtime.sampler import Sampler
from radixserve.runtime.token_choice import TokenChoice
from radixserve.scheduler.plan import PlanRow, RowResult, StepPlan
from tests.tiny_decoder import plan_row, tiny_decoder

# What filters may be: off, at their ends, and beyond what is looked at alone.
TOP_K = (0, 0, 1, 2, 7, 50, 64, 65, 200, 10_000)
TOP_P = (1.0, 1.0, 1e-9, 0.3, 0.9, 0.999)
MIN_P = (0.0, 0.0, 0.02, 0.5, 1.0)
TEMPERATURE = (0.0, 1e-6, 0.3, 1.0, 1.7)


def row(rng: random.Random, num_samples: int = 1, **wants: Any) -> PlanRow:
    sampling = {
        "temperature": rng.choice(TEMPERATURE),
        "top_k": rng.choice(TOP_K),
        "top_p": rng.choice(TOP_P),
        "min_p": rng.choice(MIN_P),
    }
    return msgspec.structs.replace(
        plan_row([1], [0], start=rng.randrange(2000), num_samples=num_samples),
        sampling=SamplingParams(**{**sampling, **wants}),
        seed=rng.getrandbits(64),
        first_sample=rng.randrange(4),
    )


def results(rows: list[PlanRow], logits: torch.Tensor, size: int = 100) -> list[RowResult]:
    """By the code that is tested, ``size`` rows at a time."""
    drawn = draw_rows(lambda places: logits[torch.from_numpy(places)], rows, np.arange(len(rows)), size)
    return Sampler(logits.shape[1], ()).drawn(rows, drawn.tokens.numpy(), drawn.peaks.numpy())


def random_logits(count: int, vocab: int, seed: int) -> torch.Tensor:
    """Peaked, flat, and with so few different numbers that most are among equals."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(count, vocab, generator=generator)
    logits *= torch.tensor([0.1, 1.0, 4.0, 12.0])[torch.arange(count) % 4, None]
    logits[::3] = logits[::3].round()
    logits[::5, ::2] = -torch.inf
    return logits


@pytest.mark.parametrize("vocab", [2, 63, 64, 131, 5000])
def test_tokens_are_those_of_the_sampler(vocab: int) -> None:
    rng, count = random.Random(vocab), 400
    rows = [row(rng, rng.choice([1, 1, 1, 3])) for _ in range(count)]
    logits = random_logits(count, vocab, seed=vocab)
    expected = Sampler(vocab, ()).sample(rows, logits)
    assert results(rows, logits, size=37) == expected
    assert len({result.token_ids for result in expected}) > min(vocab, 60)


def test_a_large_vocabulary() -> None:
    rng = random.Random(1)
    rows = [row(rng, temperature=temperature, top_p=top_p) for temperature in (0.8, 1.0, 5.0) for top_p in (1.0, 0.95)]
    logits = random_logits(len(rows), 150_000, seed=3)
    assert results(rows, logits) == Sampler(150_000, ()).sample(rows, logits)


def test_a_row_draws_the_same_among_any_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its neighbours want: nothing, few of the largest, or all of them sorted; and however many are drawn at a time."""
    rng = random.Random(5)
    logits = random_logits(40, 700, seed=5)
    rows = [row(rng) for _ in range(40)]
    together = results(rows, logits)
    for size in (1, 3):
        assert results(rows, logits, size) == together
    asked: list[int] = []
    monkeypatch.setattr(device_draw, "DRAWN_LOGITS", 3 * 700 + 1)
    monkeypatch.setattr(device_draw, "draw", lambda values, wants: (asked.append(len(values)), draw(values, wants))[1])  # type: ignore[func-returns-value]
    assert results(rows, logits, 25) == together
    assert asked == [*[3] * 8, 1, *[3] * 5]
    monkeypatch.undo()
    order = rng.sample(range(40), 40)
    assert results([rows[place] for place in order], logits[order]) == [together[place] for place in order]


def test_the_number_decides_alone() -> None:
    """Every token has the stretch of [0, 1) that its probability says, in order of ids; none of no probability is drawn."""
    logits = torch.tensor([[0.0, -torch.inf, np.log(2.0), 0.0, -200.0]])
    wants = Draws.of([row(random.Random(0), temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)], 5, 6)
    numbers = np.array([[0.0, 0.2499999, 0.2500001, 0.7499999, 0.7500001, 1 - 2.0**-53]])
    drawn = draw(logits, dataclasses.replace(wants, uniforms=numbers))
    assert drawn.tokens.tolist() == [[0, 0, 2, 2, 3, 3]] and float(drawn.peaks[0]) == np.float32(np.log(2.0))


def test_the_ends_of_the_numbers_draw_nothing_that_cannot_be() -> None:
    """The least number, the largest one, and sums that a float64 rounds up: the first and the last token have no probability."""
    logits = torch.randn(300, 7, generator=torch.Generator().manual_seed(7))
    logits[:, 0] = logits[:, -1] = -torch.inf
    wants = Draws.of([row(random.Random(0), temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)] * 300, 7, 2)
    drawn = draw(logits, dataclasses.replace(wants, uniforms=np.tile([0.0, 1 - 2.0**-53], (300, 1))))
    assert drawn.tokens.tolist() == [[1, 5]] * 300


def test_rows_that_are_not_finite_fail_alone() -> None:
    rng = random.Random(2)
    logits = random_logits(8, 131, seed=2)
    logits[1, 7], logits[2, 9], logits[3] = torch.nan, torch.inf, -torch.inf
    rows = [row(rng, temperature=temperature, top_p=0.9) for temperature in (0.0, 0.7) * 4]
    found, expected = results(rows, logits), Sampler(131, ()).sample(rows, logits)
    assert (
        found == expected and [result.error is not None for result in found] == [False, True, True, True] + [False] * 4
    )


def test_logits_are_only_read() -> None:
    rng = random.Random(3)
    logits = random_logits(6, 300, seed=3)
    before = logits.clone()
    results([row(rng) for _ in range(6)], logits)
    assert torch.equal(logits, before)


def test_greedy_rows_alone_need_nothing_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*arguments: Any) -> None:
        raise AssertionError("a number was brought, or drawn")

    monkeypatch.setattr(device_draw, "on_device", forbidden)
    monkeypatch.setattr(device_draw, "uniform", forbidden)
    rng = random.Random(4)
    rows = [row(rng, 2, temperature=0.0) for _ in range(3)]
    logits = random_logits(3, 50, seed=4)
    assert results(rows, logits) == Sampler(50, ()).sample(rows, logits)


def test_a_step_has_room_for_its_most_samples() -> None:
    rng = random.Random(8)
    rows = [row(rng, count, temperature=1.0) for count in (1, 4, 2)]
    drawn: DrawnTokens = draw_rows(lambda places: random_logits(3, 40, 8)[places], rows, np.arange(3), 1)
    assert drawn.tokens.shape == (3, 4) and drawn.tokens.dtype == torch.int64


def test_a_runner_on_a_device_draws_plain_rows_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """And all others on the host; results are in the order of the rows."""
    runner = ModelRunner(tiny_decoder("llama"), num_blocks=8, block_size=16, threads=1)
    wants: list[dict[str, Any]] = [
        {"temperature": 1.0},
        {"logprobs": 2},
        {"temperature": 0.0},
        {"repetition_penalty": 1.3},
        {"top_k": 5},
        {"logit_bias": {3: 50.0}},
        {"min_tokens": 3, "stop_token_ids": (5,)},
    ]
    rng = random.Random(9)
    rows = [
        msgspec.structs.replace(
            plan_row([1 + index, 9], [index], rid=str(index)),
            sampling=SamplingParams(**want),
            seed=rng.getrandbits(64),
            history=np.array([1 + index, 9], np.int32),
        )
        for index, want in enumerate([*wants, {}])
    ]
    plan = StepPlan(0, tuple(rows))

    class Chosen:
        def wait(self) -> dict[str, TokenChoice]:
            return {"7": TokenChoice(np.array([4, 8]))}

    there: list[str] = []

    def watched(logits: Any, its: list[PlanRow], *more: Any) -> DrawnTokens:
        there.extend(row.rid for row in its)
        return draw_rows(logits, its, *more)

    monkeypatch.setattr("radixserve.runtime.plan_runner.draw_rows", watched)
    with torch.inference_mode():
        batch = runner.flatten(plan)
        hidden = runner.forward(batch)
        expected = runner.results(plan, batch, hidden, Chosen())
        assert there == []
        runner.draws_on_device = True
        assert runner.results(plan, batch, hidden, Chosen()) == expected
    assert there == ["0", "2", "4"]


def test_slices_of_logits_are_larger_on_a_device() -> None:
    """Else the LM head is read once for a handful of rows."""
    model = tiny_decoder("llama")

    class There(DeviceWeights):
        """Weights that say they are on a GPU."""

        def __getitem__(self, name: str) -> torch.Tensor:
            return model.weights[name]

    class Shell(PlanRunner):
        """As far as it is made without a forward pass."""

        def describe(self) -> dict[str, str | int]:
            return {}

        def broken_promises(self) -> list[str]:
            return []

        def forward(self, batch: ForwardBatch) -> HiddenStates:
            raise AssertionError("nothing is run here")

    there = There(model.weights, torch.bfloat16, torch.device("cuda"))
    rows = [Shell(dataclasses.replace(model, weights=weights)).logits_rows for weights in (model.weights, there)]  # type: ignore[arg-type]
    assert rows[1] == (64 << 20) // (4 * model.config.vocab_size) > 7 * rows[0]
