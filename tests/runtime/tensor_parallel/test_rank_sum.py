"""The sum over ranks, with a thread for each rank."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest
import torch

from radixserve.errors import RankFailed
from radixserve.runtime.tensor_parallel.pulse import Pulses, pulse_memory
from radixserve.runtime.tensor_parallel.rank_sum import RankSum

T = TypeVar("T")
CPU = torch.device("cpu")


def on_all_ranks(directory: Path, ranks: int, use: Callable[[int, RankSum], T]) -> list[T]:
    with pulse_memory(ranks) as memory:
        pulses = Pulses(memory, ranks)

    def run(rank: int) -> T:
        return use(rank, RankSum(directory, rank, ranks, CPU, pulses.of(rank)))

    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(run, range(ranks)))


def part(rank: int, dtype: torch.dtype, rows: int = 40) -> torch.Tensor:
    return torch.randn(rows, 12, generator=torch.Generator().manual_seed(rank)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("ranks", [2, 3])
def test_parts_are_added_in_float32_and_in_order_of_rank(tmp_path: Path, ranks: int, dtype: torch.dtype) -> None:
    expected = part(0, dtype).float()
    for rank in range(1, ranks):
        expected = expected + part(rank, dtype).float()
    for total in on_all_ranks(tmp_path, ranks, lambda rank, add: add(part(rank, dtype))):
        assert total.dtype == torch.float32 and torch.equal(total, expected)


def test_a_row_has_the_same_bits_at_every_size(tmp_path: Path) -> None:
    found = on_all_ranks(tmp_path, 3, lambda rank, add: add.broken_promises(24, torch.float32))
    assert found == [[], [], []]


def test_it_would_say_if_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = RankSum.__call__

    def faulty(self: RankSum, part: torch.Tensor) -> torch.Tensor:
        return right(self, part) * (1.0 if len(part) != 16 else 1.001)

    monkeypatch.setattr(RankSum, "__call__", faulty)
    reasons = on_all_ranks(tmp_path, 2, lambda rank, add: add.broken_promises(24, torch.float32))
    assert reasons == [["the sum over the ranks gives a row other bits among 16 rows"]] * 2


def test_a_rank_that_leaves_is_an_error_and_no_wait(tmp_path: Path) -> None:
    gone = threading.Event()
    met = threading.Barrier(2)

    def use(rank: int, add: RankSum) -> str:
        # Who has met the others may be the first to have done so.
        met.wait()
        if rank == 1:
            del add
            gone.set()
            return ""
        gone.wait()
        with pytest.raises(RankFailed) as error:
            add(part(0, torch.float32))
        return str(error.value)

    told, _ = on_all_ranks(tmp_path, 2, use)
    assert told.startswith("tensor parallelism ended: a sum over the ranks was not completed")
