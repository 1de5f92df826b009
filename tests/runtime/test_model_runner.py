"""Plans in, results out."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch

from radixserve.runtime import plan_runner
from radixserve.runtime.model_runner import ModelRunner
from radixserve.scheduler.plan import RowResult, StepPlan
from tests.tiny_decoder import all_logits, plan_row, tiny_decoder

TOKENS = tuple(np.random.default_rng(3).integers(0, 131, 60).tolist())


def fresh_runner(dtype: torch.dtype = torch.float32) -> ModelRunner:
    runner = ModelRunner(tiny_decoder("llama", dtype), num_blocks=40, block_size=16, threads=1)
    runner.kv.poison(np.arange(40))
    return runner


def test_results_are_in_row_order_and_drawn_from_last_tokens() -> None:
    runner = fresh_runner()
    rows = (
        plan_row(TOKENS[:20], [0, 1], rid="a"),
        plan_row(TOKENS[:30], [2, 3], rid="b", num_samples=0),
        plan_row(TOKENS[5:25], [4, 5], rid="c"),
    )
    logits = all_logits(runner, rows)
    result = runner.execute(StepPlan(7, rows))
    assert result.step == 7
    assert result.rows[0].token_ids == (int(logits[0][-1].argmax()),)
    assert result.rows[1] == RowResult()
    assert result.rows[2].token_ids == (int(logits[2][-1].argmax()),)
    expected = logits[0][-1].double().log_softmax(-1).max()
    assert result.rows[0].logprobs[0].logprob == pytest.approx(float(expected), abs=1e-5)


def test_samples_of_one_row_come_from_the_same_logits() -> None:
    row = plan_row(TOKENS[:20], [0, 1], num_samples=3)
    (result,) = fresh_runner().execute(StepPlan(0, (row,))).rows
    assert len(result.token_ids) == len(result.logprobs) == 3
    assert len(set(result.token_ids)) == 1


@pytest.mark.parametrize("slice_bytes", [1, 3 * 4 * 131, 1 << 20])
def test_prompt_logprobs_in_slices(slice_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_runner, "LOGITS_BYTES", slice_bytes)
    runner = fresh_runner()
    rows = (plan_row(TOKENS[:7], [8], rid="mate"), plan_row(TOKENS[:20], [0, 1], score=TOKENS[1:20]))
    mate, scored = runner.execute(StepPlan(0, rows)).rows
    logprobs = all_logits(runner, rows)[1].double().log_softmax(-1)
    assert mate.prompt_logprobs == ()
    assert [entry.token_id for entry in scored.prompt_logprobs] == list(TOKENS[1:20])
    for position, entry in enumerate(scored.prompt_logprobs):
        assert entry.logprob == pytest.approx(float(logprobs[position, entry.token_id]), abs=1e-5)
    assert len(scored.token_ids) == 1


def test_prompt_logprobs_may_start_inside_the_row_and_draw_nothing() -> None:
    runner = fresh_runner()
    row = msgspec.structs.replace(
        plan_row(TOKENS[:20], [0, 1], score=TOKENS[6:20], num_samples=0), prompt_logprob_start=5
    )
    (result,) = runner.execute(StepPlan(0, (row,))).rows
    logprobs = all_logits(runner, [row])[0].double().log_softmax(-1)
    assert result.token_ids == ()
    assert [entry.token_id for entry in result.prompt_logprobs] == list(TOKENS[6:20])
    for offset, entry in enumerate(result.prompt_logprobs):
        assert entry.logprob == pytest.approx(float(logprobs[5 + offset, entry.token_id]), abs=1e-5)


@pytest.mark.parametrize("half", ["keys", "values"])
def test_a_row_that_is_not_finite_fails_alone(half: str) -> None:
    alone = fresh_runner().execute(StepPlan(0, (plan_row(TOKENS[16:20], [0, 1], start=0),))).rows[0]
    runner = fresh_runner()
    runner.execute(StepPlan(0, (plan_row(TOKENS[:16], [4], num_samples=0),)))
    with torch.inference_mode():
        getattr(runner.kv, half)(1)[4, 3, 0, 2] = float("nan")
    rows = (
        plan_row(TOKENS[16:20], [4, 5], start=16, rid="bad", score=TOKENS[17:21]),
        plan_row(TOKENS[16:20], [0, 1], rid="good"),
        plan_row(TOKENS[16:20], [4, 6], start=16, rid="bad chunk", num_samples=0),
    )
    bad, good, chunk = runner.execute(StepPlan(1, rows)).rows
    assert bad == RowResult(error="non-finite hidden state at position 16")
    assert chunk == bad
    assert good == alone


def test_logits_that_are_not_finite_fail_their_row() -> None:
    model = tiny_decoder("llama")
    model.weights["head"][5] = float("inf")
    runner = ModelRunner(model, num_blocks=8, block_size=16, threads=1)
    rows = (plan_row(TOKENS[:4], [0]), plan_row(TOKENS[:4], [1], score=TOKENS[1:5]))
    for result in runner.execute(StepPlan(0, rows)).rows:
        assert result.error is not None
        assert "non-finite" in result.error
        assert result.token_ids == ()
        assert result.prompt_logprobs == ()


def test_copies_run_before_the_first_layer() -> None:
    runner = fresh_runner()
    runner.execute(StepPlan(0, (plan_row(TOKENS[:20], [0, 1]),)))
    expected = fresh_runner().execute(StepPlan(0, (plan_row(TOKENS[:30], [0, 1]),))).rows
    copies = np.array([[1, 9]], np.int32)
    result = runner.execute(StepPlan(1, (plan_row(TOKENS[18:30], [0, 9], start=18),), copies))
    assert result.rows == expected


def test_a_plan_of_copies_only() -> None:
    result = fresh_runner().execute(StepPlan(3, (), np.array([[0, 1]], np.int32)))
    assert (result.step, result.rows) == (3, ())


def test_describe_names_what_runs() -> None:
    facts = fresh_runner(torch.bfloat16).describe()
    assert facts["attention"] == "torch_paged"
    assert facts["dtype"] == "bfloat16"
    assert facts["threads"] == 1
    assert facts["kv_bytes"] == 40 * 16 * 2 * 2 * 2 * 16 * 2 and facts["kv_dtype"] == "bfloat16"
