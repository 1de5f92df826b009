"""The distribution a row's token is drawn from: temperature, top_k, top_p and min_p, in that order."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from radixserve.messages import SamplingParams
from radixserve.runtime.selection import Float64Array, FloatArray, IndexArray, largest, nucleus

_BLOCK = 256


@dataclass(frozen=True, slots=True, eq=False)
class TokenDistribution:
    """Tokens that may be drawn, and how likely each is relative to the most likely one.

    ``ids``
        their token ids, ascending; None when no filter is on and entry ``i`` is token ``i``.
    ``scores``
        float64: (logit - largest logit) / temperature, at most 0.
    ``weights``
        float64: exp(scores); the largest is exactly 1.
    """

    ids: IndexArray | None
    scores: Float64Array
    weights: Float64Array

    @classmethod
    def of(cls, logits: FloatArray, sampling: SamplingParams, allowed: IndexArray | None = None) -> TokenDistribution:
        """Filter one row of logits, float[V] without NaN or +inf and with a finite value.

        ``allowed``: ids, ascending, that alone may be drawn; one of them has a finite logit.

        ``sampling.temperature`` 0 takes the logits as they are and applies no filter: nothing is drawn then, and
        the distribution only serves processed logprobs.
        """
        if allowed is not None:
            logits = logits[allowed]
        if sampling.temperature != 0.0 and 0 < sampling.top_k < len(logits):
            kept = largest(logits, sampling.top_k)
            return cls.of_kept(kept if allowed is None else allowed[kept], logits[kept], sampling)
        return cls.of_kept(allowed, logits, sampling)

    @classmethod
    def of_kept(cls, ids: IndexArray | None, logits: FloatArray, sampling: SamplingParams) -> TokenDistribution:
        """`of`, where ``top_k`` has done its part already.

        ``ids``: the tokens that it keeps, ascending; ``logits``: theirs. None is all tokens.
        """
        greedy = sampling.temperature == 0.0
        scores = np.subtract(logits, float(logits.max()), dtype=np.float64)
        if not greedy and sampling.temperature != 1.0:
            # A tiny temperature may give -inf, which is the right limit, but never NaN: the largest stays 0.
            with np.errstate(over="ignore"):
                scores /= sampling.temperature
        distribution = cls(ids, scores, np.exp(scores))
        if greedy:
            return distribution
        if sampling.top_p < 1.0:
            distribution = distribution._keep(nucleus(distribution.weights, sampling.top_p))
        if sampling.min_p > 0.0:
            # The most likely token has weight 1, so weights are already relative to it.
            distribution = distribution._keep(np.flatnonzero(distribution.weights >= sampling.min_p))
        return distribution

    def _keep(self, kept: IndexArray) -> TokenDistribution:
        ids = kept if self.ids is None else self.ids[kept]
        return TokenDistribution(ids, self.scores[kept], self.weights[kept])

    def token(self, uniform: float) -> int:
        """The token whose part of the cumulative distribution, in order of token ids, holds ``uniform`` in [0, 1).

        The sum is taken in two levels (blocks, then inside one block) because a running sum over a whole vocabulary
        cannot be vectorised. A token of weight 0 is never returned.
        """
        weights = self.weights
        blocks = np.cumsum(np.add.reduceat(weights, np.arange(0, len(weights), _BLOCK)))
        target = uniform * float(blocks[-1])
        block = _first_above(blocks, target)
        start = block * _BLOCK
        inside = np.cumsum(weights[start : start + _BLOCK])
        index = start + _first_above(inside, target - (float(blocks[block - 1]) if block else 0.0))
        return index if self.ids is None else int(self.ids[index])

    def log_normalizer(self) -> float:
        """Natural log of the sum of ``weights``; ``scores`` minus it are logprobs."""
        return math.log(float(self.weights.sum()))


def _first_above(cumulative: Float64Array, target: float) -> int:
    """First index whose cumulative sum exceeds ``target``; where rounding leaves none, the last that added to it."""
    index = int(np.searchsorted(cumulative, target, side="right"))
    return index if index < len(cumulative) else int(np.searchsorted(cumulative, cumulative[-1]))
