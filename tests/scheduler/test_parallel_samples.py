"""``n`` samples of one prompt: one prefill, then a lease each."""

from __future__ import annotations

from typing import Literal

import pytest

from radixserve.messages import FinishReason, SamplingParams
from tests.scheduler.machine import Machine
from tests.scheduler.naive import alone

Mode = Literal["on", "off", "force_miss"]
MODES: list[Mode] = ["on", "off", "force_miss"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("length", [1, 15, 16, 17, 32, 40])
def test_the_prompt_is_computed_once_and_first_tokens_come_from_one_row(length: int, mode: Mode) -> None:
    """Only what fills no block is copied, once for each sample; a prompt that ends with a block needs no copy."""
    machine = Machine(prefix_cache=mode)
    prompt = list(range(length))
    machine.add("a", prompt, 4, n=4)
    first, second = machine.step(), machine.step()
    assert first is not None and second is not None
    assert (len(first.rows), first.num_tokens, first.rows[0].num_samples) == (1, length, 4)
    assert [row.rid for row in second.rows] == ["a", "a#1", "a#2", "a#3"]
    assert [row.first_sample for row in second.rows] == [0, 1, 2, 3]
    assert second.num_tokens == 4
    assert len(second.copies) == (4 if length % 16 else 0)
    shared = length // 16
    assert len({tuple(row.table[:shared].tolist()) for row in second.rows}) == 1
    assert len({int(row.table[shared]) for row in second.rows}) == 4
    machine.run()
    samples, _ = alone(prompt, SamplingParams(n=4), 4, 1, 50, ())
    assert [machine.samples["a", index] for index in range(4)] == samples
    assert len({tuple(sample.token_ids) for sample in samples}) > 1
    machine.check_idle()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("max_tokens", [0, 1])
def test_samples_that_end_in_the_step_that_parts_them(max_tokens: int, mode: Mode) -> None:
    machine = Machine(prefix_cache=mode)
    machine.add("a", list(range(20)), max_tokens, n=3)
    machine.step()
    assert [len(machine.tokens("a", index)) for index in range(3)] == [max_tokens] * 3
    assert all(machine.samples["a", index].finish_reason is FinishReason.LENGTH for index in range(3))
    machine.check_idle()


def test_greedy_samples_are_equal_and_share_their_blocks() -> None:
    """In lock-step they fill equal blocks; the tree keeps one of each, the duplicates go back."""
    machine = Machine()
    machine.add("a", list(range(20)), 40, n=3, temperature=0.0)
    machine.run()
    assert machine.tokens("a", 0) == machine.tokens("a", 1) == machine.tokens("a", 2)
    assert machine.cache.stats.deduplicated_blocks == 2 * (59 // 16 - 1)
    assert machine.cache.pool.num_tree == 4
    machine.check_idle()


def test_each_sample_ends_when_it_ends() -> None:
    machine = Machine(vocab_size=5, eos_ids=(3,))
    machine.add("a", [1, 2], 30, n=6)
    machine.run()
    expected, _ = alone([1, 2], SamplingParams(n=6), 30, 1, 5, (3,))
    assert [machine.samples["a", index] for index in range(6)] == expected
    assert len({len(sample.token_ids) for sample in expected}) > 1
    machine.check_idle()


@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize("in_flight", [False, True])
def test_an_abort_ends_all_samples(steps: int, in_flight: bool) -> None:
    machine = Machine(max_batch_tokens=16, max_running=8)
    machine.add("a", list(range(30)), 9, n=3)
    for _ in range(steps):
        machine.step()
    if in_flight:
        machine.step(lambda: machine.scheduler.abort("a"))
    else:
        machine.scheduler.abort("a")
    machine.collect()
    assert all(machine.samples["a", index].finish_reason is FinishReason.ABORT for index in range(3))
    machine.check_idle()


def test_rows_are_kept_for_samples_that_have_not_parted() -> None:
    """Three rows are promised while the prompt is computed in chunks, so one other may run beside it, not three."""
    machine = Machine(max_running=4, max_batch_tokens=32)
    machine.add("n", list(range(100)), 8, n=3)
    machine.step()
    for index in range(6):
        machine.add(f"s{index}", [200 + index], 20)
    assert max(len(plan.rows) for plan in machine.run()) == 4
    machine.check_idle()


def test_samples_that_do_not_fit_the_rows_wait_for_them() -> None:
    machine = Machine(max_running=4)
    machine.add("a", [1], 5)
    machine.add("b", [2], 5)
    machine.step()
    late = machine.add("n", [3], 2, n=3)
    machine.run()
    assert late.started_step == 6
    machine.check_idle()


def test_a_sample_is_preempted_and_comes_back_as_itself() -> None:
    machine = Machine(num_blocks=10, block_size=4, max_running=4, watermark=0.0)
    machine.add("a", list(range(10)), 20, n=3)
    machine.run()
    assert machine.scheduler.stats.preemptions > 0
    expected, _ = alone(list(range(10)), SamplingParams(n=3), 20, 1, 50, ())
    assert [machine.samples["a", index] for index in range(3)] == expected
    machine.check_idle()


def test_prompt_logprobs_come_once_for_all_samples() -> None:
    machine = Machine(max_batch_tokens=8, max_running=4)
    prompt = list(range(30))
    request = machine.add("a", prompt, 3, n=3, prompt_logprobs=0, logprob_start=11)
    machine.run()
    _, expected = alone(prompt, SamplingParams(prompt_logprobs=0, logprob_start=11), 3, 1, 50, ())
    assert [item.token_id for item in request.group.prompt_logprobs] == prompt[11:]
    assert request.group.prompt_logprobs == expected
    machine.check_idle()
