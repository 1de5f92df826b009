"""The native head's short way to the largest logits: the same results as through all of them, and no logits made."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from radixserve.native.library import NativeLibrary
from radixserve.runtime.native_head import NativeHead
from radixserve.runtime.native_runner import NativeModelRunner
from radixserve.runtime.plan_runner import PlanRunner
from radixserve.runtime.sampler import Sampler
from radixserve.scheduler.plan import PlanRow, RowResult, StepPlan
from tests.native.steps import ALL_ISAS
from tests.quantized_model import quantized_model
from tests.runtime.test_top_logits import LONG, SHORT, row_of
from tests.tiny_decoder import TinyDecoder, tiny_decoder

BLOCKS = 64


@pytest.fixture(params=ALL_ISAS)
def library(request: pytest.FixtureRequest) -> NativeLibrary:
    """The process's library, switched to one instruction set for the test."""
    loaded = NativeLibrary.load()
    loaded.set_isa(request.param)
    return loaded


def runner(model: Any, **options: Any) -> NativeModelRunner:
    return NativeModelRunner(
        model, NativeLibrary.load(), num_blocks=BLOCKS, block_size=16, max_batch_tokens=256, threads=2, **options
    )


def execute(subject: PlanRunner, rows: list[PlanRow]) -> tuple[RowResult, ...]:
    return subject.execute(StepPlan(0, tuple(rows))).rows


def through_all_logits(
    subject: PlanRunner, rows: list[PlanRow], monkeypatch: pytest.MonkeyPatch
) -> tuple[RowResult, ...]:
    with monkeypatch.context() as patch:
        patch.setattr(Sampler, "candidates", lambda self, row: None)
        return execute(subject, rows)


@pytest.mark.parametrize("kept", [False, True])
def test_any_mix_of_rows_gets_what_all_logits_give(
    library: NativeLibrary, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = runner(quantized_model("Q4_1", "qwen2"), keep_blocks=kept)
    monkeypatch.setattr(subject, "logits_rows", 3)
    kinds = [*SHORT, *LONG, *SHORT]
    rows = [
        row_of(sampling, seed=index, table=index, num_samples=1 + index % 2) for index, sampling in enumerate(kinds)
    ]
    results = execute(subject, rows)
    assert results == through_all_logits(subject, rows, monkeypatch)
    assert all(len(result.token_ids) == row.num_samples for row, result in zip(rows, results, strict=True))


def test_no_logits_are_made_where_nobody_needs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = runner(quantized_model("Q8_0"), keep_blocks=True)
    rows = [row_of(sampling, seed=index, table=index) for index, sampling in enumerate(SHORT)]

    def refuse(self: NativeHead, *args: Any) -> torch.Tensor:
        raise AssertionError("logits were made")

    monkeypatch.setattr(NativeHead, "logits", refuse)
    assert all(result.error is None for result in execute(subject, rows))
    with pytest.raises(AssertionError, match="logits were made"):
        execute(subject, [*rows, row_of(LONG[0], table=9)])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_head_that_is_not_finite_fails_its_rows_with_the_same_words(
    bad: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    model: TinyDecoder = tiny_decoder("llama", intermediate_size=80)
    model.weights["head"][40] = bad
    subject = runner(model)
    rows = [row_of(sampling, seed=index, table=index) for index, sampling in enumerate(SHORT)]
    results = execute(subject, rows)
    assert all(result.error is not None and "non-finite logits" in result.error for result in results)
    assert results == through_all_logits(subject, rows, monkeypatch)


def test_ties_go_to_the_lowest_id() -> None:
    model: TinyDecoder = tiny_decoder("llama", intermediate_size=80)
    model.weights["head"][:] = model.weights["head"][3]
    assert execute(runner(model), [row_of(SHORT[0])])[0].token_ids == (0,)
