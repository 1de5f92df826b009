"""Tokens drawn where their logits are: the draw of `Sampler`, in operations on tensors, so that no logits come to the host.

FlashInfer's kernels that *draw* are not used: they key their random numbers by (seed, offset, place in the batch) (`curand_init(seed,
blockIdx.x, offset)` throughout its sampling.cuh, also with a seed for each row), so a seeded draw would depend on a request's
neighbours. Here the host brings the numbers, which are those of `radixserve.runtime.random_numbers`.

A row's tokens are the same in every batch. Maxima, selections and all that is done to each number by itself do not depend on the
order in which a device works; sums would, so probabilities are added up as integers, which are exact. Their unit is 2**-44 of the largest
weight or less, for vocabularies of up to 2**18. The host's sampler adds up float64, and the same uniform number brings the same token of
both but where it falls within the rounding, below 2**-27, of the border between two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from radixserve.runtime.forward_batch import Int64Array
from radixserve.runtime.host_copies import on_device
from radixserve.runtime.random_numbers import uniform
from radixserve.runtime.sampler import MOST_CANDIDATES
from radixserve.scheduler.plan import PlanRow

Float64Array = npt.NDArray[np.float64]

# So many logits are drawn from at a time: a draw takes some ten arrays of their number.
DRAWN_LOGITS = 1 << 21
# The sum of all integer weights of a row stays below this.
_SUM_BITS = 62


@dataclass(frozen=True, slots=True, eq=False)
class Draws:
    """What n rows want drawn, float64 [n] each. Temperature 0 is greedy; ``top_k`` of the vocabulary and ``top_p`` 1 keep all.

    ``uniforms`` [n, samples]: the random number of each sample; of rows with fewer samples the rest means nothing.
    """

    temperature: Float64Array
    top_k: Float64Array
    top_p: Float64Array
    min_p: Float64Array
    uniforms: Float64Array

    @classmethod
    def of(cls, rows: Sequence[PlanRow], vocab_size: int, samples: int) -> Draws:
        """``rows``: such as `Sampler.is_plain` is true of, with at most ``samples`` samples each."""
        uniforms = np.zeros((len(rows), samples))
        for place, row in enumerate(rows):
            if row.sampling.temperature != 0.0:
                uniforms[place, : row.num_samples] = [
                    uniform(row.seed, row.first_sample + sample, row.end) for sample in range(row.num_samples)
                ]
        wants = [row.sampling for row in rows]
        return cls(
            temperature=np.array([want.temperature for want in wants]),
            top_k=np.array([want.top_k if 0 < want.top_k < vocab_size else vocab_size for want in wants], np.float64),
            top_p=np.array([want.top_p for want in wants]),
            min_p=np.array([want.min_p for want in wants]),
            uniforms=uniforms,
        )


@dataclass(frozen=True, slots=True, eq=False)
class DrawnTokens:
    """Of n rows, on the device: int64 ``tokens`` [n, samples], float32 ``peaks`` [n], the largest logit.

    Where a peak is not finite the tokens are any that exist.
    """

    tokens: torch.Tensor
    peaks: torch.Tensor


def draw_rows(
    logits: Callable[[Int64Array], torch.Tensor], rows: Sequence[PlanRow], tokens: Int64Array, size: int
) -> DrawnTokens:
    """Draw for ``rows`` [n >= 1], whose last tokens are ``tokens`` [n] of the batch that ``logits`` belongs to.

    ``size``: of how many rows there may be logits at a time.
    """
    samples = max(row.num_samples for row in rows)
    parts = []
    for first in range(0, len(rows), size):
        own, values = rows[first : first + size], logits(tokens[first : first + size])
        vocab = values.shape[1]
        step = max(1, DRAWN_LOGITS // vocab)
        for begin in range(0, len(own), step):
            wants = Draws.of(own[begin : begin + step], vocab, samples)
            parts.append(draw(values[begin : begin + step], wants))
    return DrawnTokens(torch.cat([part.tokens for part in parts]), torch.cat([part.peaks for part in parts]))


def draw(logits: torch.Tensor, draws: Draws) -> DrawnTokens:
    """Draw from float32 ``logits`` [n, V], which are only read. Enqueues, and waits for nothing."""
    vocab = logits.shape[1]
    samples = draws.uniforms.shape[1]
    peaks = logits.amax(1)
    # argmax promises no order among equals.
    places = torch.arange(vocab, device=logits.device)
    greedy = torch.where(logits == peaks[:, None], places, vocab).amin(1, keepdim=True).clamp_(max=vocab - 1)
    drawing = draws.temperature != 0.0
    if not drawing.any():
        return DrawnTokens(greedy.expand(-1, samples).contiguous(), peaks)
    filtered = drawing & ((draws.top_k < vocab) | (draws.top_p < 1.0))
    table = np.column_stack(
        (
            np.where(drawing, draws.temperature, 1.0),
            draws.top_k,
            draws.top_p,
            draws.min_p,
            drawing,
            filtered,
            draws.uniforms,
        )
    )
    wants = on_device(table, logits.device)
    temperature, top_k, top_p, min_p = (wants[:, column : column + 1] for column in range(4))
    scale = 2.0 ** (_SUM_BITS - (vocab - 1).bit_length())

    def weights(values: torch.Tensor) -> torch.Tensor:
        """Float64 weights of logits, 1 for the largest; NaN in rows that are not finite."""
        return ((values.double() - peaks[:, None].double()) / temperature).exp_()

    def whole(weight: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        return torch.where(kept, weight * scale, 0.0).round_().long()

    weight = weights(logits)
    kept = weight >= min_p
    if filtered.any():
        # Where all filters keep few tokens, only so many are looked at.
        few = draws.top_k[filtered].max() <= MOST_CANDIDATES
        values = _largest(logits, min(MOST_CANDIDATES, vocab) if few else vocab)
        inside = torch.arange(values.shape[1], device=logits.device) < top_k
        mass = whole(weights(values), inside)
        before = mass.cumsum(1) - mass
        share = (top_p * mass.sum(1, keepdim=True).double()).ceil().long()
        count = (inside & (before < share)).sum(1, keepdim=True).clamp_(min=1)
        kept &= _first_of(logits, values, count) | (wants[:, 5:6] == 0.0)
    sums = whole(weight, kept).cumsum(1)
    # Below the whole sum also when that is rounded up, since no number is above 1 - 2**-53.
    target = (wants[:, 6:] * sums[:, -1:].double()).long()
    drawn = torch.searchsorted(sums, target, right=True).clamp_(max=vocab - 1)
    return DrawnTokens(torch.where(wants[:, 4:5] != 0.0, drawn, greedy), peaks)


def _first_of(logits: torch.Tensor, values: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    """Which of ``logits`` [n, V] are among the ``count`` [n, 1] largest of their row, ties by the lowest id: bool [n, V].

    ``values`` [n, k]: the largest, the largest first; no count is above k.
    """
    border = values.gather(1, count - 1)
    above = (values > border).sum(1, keepdim=True)
    ties = logits == border
    return (logits > border) | (ties & (ties.cumsum(1) <= count - above))


def _largest(logits: torch.Tensor, count: int) -> torch.Tensor:
    """The ``count`` largest of each row, the largest first: float32 [n, count]."""
    if count == logits.shape[1]:
        return logits.sort(1, descending=True).values
    return logits.topk(count, 1).values
