"""Natural-log probabilities of drawn and given tokens, with rank and the most likely alternatives.

All sums are float64 over one row at a time, so a row's logprobs have the same bits whichever rows stand beside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from radixserve.messages import TokenLogprob
from radixserve.runtime.selection import FloatArray, IndexArray, ranked
from radixserve.runtime.token_distribution import TokenDistribution


@dataclass(frozen=True, slots=True, eq=False)
class LogprobRow:
    """Log-softmax of one row, unnormalised: token ``ids[i]`` (None: ``i``) has logprob ``scores[i] - normalizer``.

    Tokens that are not in ``ids`` have probability 0. Ranks and tops are by value, ties by lowest id; tokens of
    probability 0 are left out of ``top``, which may make it shorter than asked for.
    """

    scores: FloatArray
    normalizer: float
    ids: IndexArray | None = None

    @classmethod
    def raw(cls, logits: FloatArray) -> LogprobRow:
        """Of the model's own logits, float[V] without NaN or +inf and with a finite value."""
        largest = float(logits.max())
        weights = np.subtract(logits, largest, dtype=np.float64)
        np.exp(weights, out=weights)
        return cls(logits, largest + math.log(float(weights.sum())))

    @classmethod
    def processed(cls, distribution: TokenDistribution) -> LogprobRow:
        """Of the distribution that tokens are drawn from."""
        return cls(distribution.scores, distribution.log_normalizer(), distribution.ids)

    def top(self, count: int) -> tuple[tuple[int, float], ...]:
        """The ``count`` most likely tokens as (id, logprob), most likely first."""
        indices = ranked(self.scores, min(count, len(self.scores)))
        ids = indices if self.ids is None else self.ids[indices]
        logprobs = self.scores[indices].astype(np.float64) - self.normalizer
        pairs = zip(ids.tolist(), logprobs.tolist(), strict=True)
        return tuple((token, logprob) for token, logprob in pairs if logprob != -math.inf)

    def of(self, tokens: Sequence[int]) -> tuple[tuple[int, float], ...]:
        """``tokens`` as (id, logprob); -inf for those that are not in ``ids``."""
        if self.ids is None:
            return tuple((token, float(self.scores[token]) - self.normalizer) for token in tokens)
        places = np.searchsorted(self.ids, tokens).tolist()
        return tuple(
            (
                token,
                float(self.scores[at]) - self.normalizer if at < len(self.ids) and self.ids[at] == token else -math.inf,
            )
            for token, at in zip(tokens, places, strict=True)
        )

    def entry(
        self, token: int, top: tuple[tuple[int, float], ...], asked: tuple[tuple[int, float], ...] = ()
    ) -> TokenLogprob:
        """The logprob and rank of ``token`` (one of ``ids``), beside the given ``top`` and ``asked``."""
        index = token if self.ids is None else int(np.searchsorted(self.ids, token))
        score = self.scores[index]
        above = np.count_nonzero(self.scores > score) + np.count_nonzero(self.scores[:index] == score)
        return TokenLogprob(token, float(score) - self.normalizer, int(above) + 1, top, asked=asked)
