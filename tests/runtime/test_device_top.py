"""The largest logits on a GPU, FlashInfer's selection replaced by one that promises no more than it does."""

from __future__ import annotations

import dataclasses
from enum import IntEnum
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from radixserve.messages import SamplingParams
from radixserve.runtime import device_top
from radixserve.runtime.device_top import largest_logits
from radixserve.runtime.sampler import Sampler
from tests.tiny_decoder import plan_row


class TieBreak(IntEnum):
    SMALL = 1


def top_k(logits: torch.Tensor, k: int, **options: object) -> tuple[torch.Tensor, torch.Tensor]:
    """The k largest, of equal ones those with the lowest ids; equal ones come in an order of their own."""
    assert options == {"sorted": True, "deterministic": True, "tie_break": TieBreak.SMALL}
    numbers = logits.numpy()
    # By bits, as a radix selection sees numbers: 0.0 above -0.0.
    order = np.lexsort((np.broadcast_to(np.arange(numbers.shape[1]), numbers.shape), np.signbit(numbers), -numbers))
    chosen = order[:, :k]
    reversed_ties = np.lexsort((-chosen, -np.take_along_axis(numbers, chosen, 1)))
    ids = np.take_along_axis(chosen, reversed_ties, 1)
    return torch.from_numpy(np.take_along_axis(numbers, ids, 1)), torch.from_numpy(ids)


@pytest.fixture(autouse=True)
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_top, "flashinfer", lambda: SimpleNamespace(top_k=top_k, TopKTieBreak=TieBreak))


def test_ties_go_to_the_lowest_id() -> None:
    top = largest_logits(torch.tensor([[1.0, 3.0, 2.0, 3.0, 3.0], [-0.0, 0.0, -1.0, 0.0, -0.0]]), 3)
    assert top.ids.tolist() == [[1, 3, 4], [0, 1, 3]]
    assert top.ids.dtype == np.int32 and top.values.dtype == np.float32
    assert top.values.tolist() == [[3, 3, 3], [0, 0, 0]]


def test_a_row_with_a_nan_is_marked() -> None:
    top = largest_logits(torch.tensor([[1.0, float("nan"), 2.0], [1.0, float("inf"), 2.0]]), 2)
    assert top.ids.tolist() == [[-1, -1], [1, 2]]
    assert np.isnan(top.values[0]).all()
    assert top.values[1].tolist() == [float("inf"), 2.0]


@pytest.mark.parametrize(
    "sampling", [SamplingParams(temperature=0.0), SamplingParams(temperature=0.9, top_k=7, top_p=0.8)]
)
def test_the_sampler_draws_the_same_as_from_all_logits(sampling: SamplingParams) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = (3 * torch.randn(20, 131, generator=generator)).round() / 2
    rows = [
        dataclasses.replace(plan_row([1], [0], start=index), sampling=sampling, seed=index)
        for index in range(len(logits))
    ]
    sampler = Sampler(131, ())
    assert sampler.sample_top(rows, largest_logits(logits, 64)) == sampler.sample(rows, logits)
