from __future__ import annotations

import numpy as np
import pytest

from radixserve.bench.floors import StepWork
from radixserve.bench.kernel_step import BLOCK_SIZE, CASES, MOST_ROWS, NUM_BLOCKS, CaseRows, case_work, step_batch
from radixserve.bench.kernels import bench_kernels, interleaved
from radixserve.bench.machine import Limits
from radixserve.bench.options import KernelOptions
from tests.native_kernels import needs_native


def test_the_work_of_a_case_by_hand() -> None:
    assert case_work([(40, 1, 32), (50, 2, 32)]) == StepWork(3, 2, 40 + 49 + 50, 32 + 8 + 18)
    assert case_work([(40, 1, 0), (50, 50, 0)]) == StepWork(51, 2, 40 + 1275, 90)


@pytest.mark.parametrize("rows", CASES.values(), ids=CASES)
def test_a_batch_has_the_blocks_that_its_work_counts(rows: CaseRows) -> None:
    batch = step_batch(rows)
    tokens, positions, slots, query_start, seq_lens, tables, wanted = batch._arrays
    work = case_work(rows)
    assert (len(tokens), len(wanted)) == (work.tokens, work.sampled)
    assert len(rows) <= MOST_ROWS
    counted = 0
    filled: dict[int, int] = {}
    for row, (length, count, _) in enumerate(rows):
        table = tables[row, : -(-length // BLOCK_SIZE)]
        assert table.max() < NUM_BLOCKS
        own = slice(query_start[row], query_start[row + 1])
        assert np.array_equal(
            slots[own], table[positions[own] // BLOCK_SIZE] * BLOCK_SIZE + positions[own] % BLOCK_SIZE
        )
        assert (positions[own.stop - 1] + 1, own.stop - own.start, seq_lens[row]) == (length, count, length)
        counted += sum(position + 1 for position in positions[own].tolist())
        for index, block in enumerate(table.tolist()):
            filled[block] = max(filled.get(block, 0), min(BLOCK_SIZE, length - index * BLOCK_SIZE))
    assert (counted, sum(filled.values())) == (work.pairs, work.kv_tokens)


def test_competitors_run_in_turns() -> None:
    ran: list[str] = []
    times = interleaved({"a": lambda: ran.append("a"), "b": lambda: ran.append("b")}, 2)
    assert "".join(ran) == "ababab"
    assert all(best <= median for median, best in times.values())


@needs_native
def test_formats_are_measured_beside_their_floors(limits: Limits) -> None:
    options = KernelOptions(("quant",), threads=1, repeats=1, most_tokens=1)
    report = bench_kernels(options, limits, lambda text: None)
    by_name = {result.name: result for result in report.results}
    dense, q8 = by_name["DENSE_BF16, 1 tokens"], by_name["Q8_0, 1 tokens"]
    assert q8.bytes == dense.bytes // 2 // 32 * 34
    assert q8.operations == dense.operations == dense.bytes
    for result in (dense, q8):
        assert result.floor is not None and result.floor.memory_s == result.bytes / limits.dram
        assert result.ratio == pytest.approx(result.median_s / result.floor.seconds)
