"""The arrays that the native kernels read, kept from step to step, against a batch that is flattened anew."""

from __future__ import annotations

import ctypes
import random
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from radixserve.messages import SamplingParams
from radixserve.runtime.forward_batch import ForwardBatch
from radixserve.runtime.native_step import NativeStep
from radixserve.scheduler.plan import PlanRow, StepPlan

BLOCKS, SIZE, VOCABULARY = 400, 16, 1000


def fresh() -> NativeStep:
    return NativeStep(num_blocks=BLOCKS, block_size=SIZE, vocab_size=VOCABULARY)


def row(start: int, tokens: npt.ArrayLike, table: npt.NDArray[np.int32], num_samples: int = 1) -> PlanRow:
    return PlanRow("r", start, np.array(tokens, np.int32), table, SamplingParams(), 0, 1, num_samples)


def frozen(blocks: npt.ArrayLike) -> npt.NDArray[np.int32]:
    table = np.array(blocks, np.int32)
    table.flags.writeable = False
    return table


def read(step: NativeStep, wanted: npt.NDArray[np.int64] | None = None) -> dict[str, Any]:
    """What stands where the kernels look."""
    struct = step.batch(wanted).struct

    def at(address: int, *shape: int) -> npt.NDArray[np.int32]:
        size = int(np.prod(shape))
        return np.array((ctypes.c_int32 * size).from_address(address), np.int32).reshape(shape)

    tables = at(struct.tables, struct.requests, struct.table_stride)
    return {
        "tokens": at(struct.token_ids, struct.tokens).tolist(),
        "positions": at(struct.positions, struct.tokens).tolist(),
        "slots": at(struct.slots, struct.tokens).tolist(),
        "query_start": at(struct.query_start, struct.requests + 1).tolist(),
        "seq_lens": at(struct.seq_lens, struct.requests).tolist(),
        "wanted": at(struct.wanted_rows, struct.wanted).tolist(),
        "tables": [tables[index, : -(-length // SIZE)].tolist() for index, length in enumerate(step_lens(step))],
        "sampled": (step.sample_rows.tolist(), step.sample_tokens.tolist()),
        "counts": (step.num_tokens, step.num_rows, step.longest),
    }


def step_lens(step: NativeStep) -> list[int]:
    struct = step.batch().struct
    return list((ctypes.c_int32 * struct.requests).from_address(struct.seq_lens))


def expected(plan: StepPlan) -> dict[str, Any]:
    """The same from `ForwardBatch`."""
    batch = ForwardBatch.from_plan(plan, SIZE)
    starts = batch.table_start.tolist()
    return {
        "tokens": batch.tokens.tolist(),
        "positions": batch.positions.tolist(),
        "slots": batch.slots.tolist(),
        "query_start": batch.query_start.tolist(),
        "seq_lens": batch.seq_lens.tolist(),
        "wanted": [],
        "tables": [
            batch.table_blocks[starts[index] : starts[index] + -(-int(length) // SIZE)].tolist()
            for index, length in enumerate(batch.seq_lens)
        ],
        "sampled": (batch.sample_rows.tolist(), batch.sample_tokens.tolist()),
        "counts": (batch.num_tokens, batch.num_rows, batch.max_seq_len),
    }


class Sequence:
    """A sequence whose table grows and is sometimes another: the same array while it is not."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.length = dice.randrange(1, 60)
        self.table = frozen([])
        self.cover(self.length)

    def cover(self, length: int) -> None:
        count = -(-length // SIZE) + self.dice.randrange(2)
        if count > len(self.table) or self.dice.random() < 0.1:
            kept = self.table.tolist() if self.dice.random() < 0.8 else []
            more = [self.dice.randrange(BLOCKS) for _ in range(count - len(kept))]
            self.table = frozen([*kept, *more])

    def row(self, most: int) -> PlanRow:
        tokens = [self.dice.randrange(VOCABULARY) for _ in range(self.dice.randint(1, most))]
        start = self.length
        self.length += len(tokens)
        self.cover(self.length)
        # A caller may as well bring a table that it goes on writing to.
        table = self.table if self.dice.random() < 0.8 else self.table.copy()
        return row(start, tokens, table, self.dice.choice([1, 1, 1, 0, 2]))


@pytest.mark.parametrize("seed", range(30))
def test_every_step_is_as_if_it_were_the_first(seed: int) -> None:
    """Decodes of the same rows, rows that come, go and change places, chunks, and more of all than there was room for."""
    dice = random.Random(seed)
    step = fresh()
    sequences = [Sequence(dice) for _ in range(dice.choice([1, 3, 9]))]
    written: list[PlanRow] = []
    for _ in range(40):
        if dice.random() < 0.2:
            sequences.append(Sequence(dice))
        if dice.random() < 0.05:
            sequences += [Sequence(dice) for _ in range(70)]
        if dice.random() < 0.2:
            dice.shuffle(sequences)
        if len(sequences) > 1 and dice.random() < 0.2:
            del sequences[dice.randrange(len(sequences)) :: 2]
        sequences = sequences or [Sequence(dice)]
        plan = StepPlan(0, tuple(each.row(1 if dice.random() < 0.9 else 40) for each in sequences))
        wanted = expected(plan)
        if dice.random() < 0.1:
            step.copy(ForwardBatch.from_plan(plan, SIZE))
        else:
            step.take(plan)
        for old in written:
            old.table[:] = dice.randrange(BLOCKS)
            old.tokens[:] = 0
        assert read(step) == wanted
        written = [each for each in plan.rows if each.table.flags.writeable]


def test_a_table_that_was_written_to_is_copied_again() -> None:
    step, table = fresh(), np.array([3, 4], np.int32)
    for block in (4, 7):
        table[1] = block
        step.take(StepPlan(0, (row(20, [1], table),)))
        assert read(step)["slots"] == [block * SIZE + 4]


def test_a_batch_in_between_takes_the_place_of_a_table() -> None:
    step = fresh()
    plans = [StepPlan(0, (row(20, [1], frozen(blocks)),)) for blocks in ([3, 4], [5, 6])]
    step.take(plans[0])
    step.copy(ForwardBatch.from_plan(plans[1], SIZE))
    assert read(step) == expected(plans[1])
    step.take(plans[0])
    assert read(step) == expected(plans[0])


def test_wanted_tokens_are_of_the_call_that_names_them() -> None:
    step = fresh()
    step.take(StepPlan(0, (row(0, [1, 2, 3], frozen([0])),)))
    assert read(step, np.array([2, 0]))["wanted"] == [2, 0]
    assert read(step)["wanted"] == []


@pytest.mark.parametrize(
    ("bad", "what"),
    [
        (row(0, [1], frozen([BLOCKS])), "block id lies outside"),
        (row(0, [1], frozen([-1])), "block id lies outside"),
        (row(0, [VOCABULARY], frozen([2])), "token id lies outside"),
        (row(0, [-1, 3], frozen([2])), "token id lies outside"),
        (row(16, [1], frozen([2])), "covers all its tokens"),
        (row(0, [], frozen([2])), "at least one token"),
    ],
)
def test_a_step_that_points_outside_is_refused_and_the_next_one_is_right(bad: PlanRow, what: str) -> None:
    step = fresh()
    good = StepPlan(0, (row(16, [5], frozen([8, 9])), row(3, [6], frozen([1]))))
    step.take(good)
    with pytest.raises(AssertionError, match=what):
        step.take(StepPlan(1, (good.rows[1], bad)))
    step.take(good)
    assert read(step) == expected(good)
