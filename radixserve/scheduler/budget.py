"""How much goes into a step, and how much is promised to whom."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from radixserve.scheduler.plan import StepPlan


def fair_shares(needs: Sequence[int], budget: int) -> list[int]:
    """Split ``budget`` max-min fair: nobody gets more than it needs, and no share can grow but at the cost of a
    smaller one.

    Progressive filling from the smallest need up (Bertsekas and Gallager, *Data Networks*, section 6.5.2); what does
    not divide goes to the largest needs, among equals to the earliest.
    """
    shares = [0] * len(needs)
    left, count = budget, len(needs)
    for index in sorted(range(len(needs)), key=lambda i: (needs[i], -i)):
        shares[index] = min(needs[index], left // count)
        left -= shares[index]
        count -= 1
    return shares


def chunk_end(start: int, num_tokens: int, grant: int, block_size: int) -> int:
    """Where a chunk of at most ``grant`` tokens from ``start`` ends: with the sequence, or else at a block boundary.

    A chunk that stopped inside a block could not be shared with a follower in the same step. Returns ``start`` if no
    boundary is within reach.
    """
    end = min(start + grant, num_tokens)
    if end < num_tokens:
        end = max(start, end // block_size * block_size)
    return end


def split_budget(spans: Sequence[tuple[int, int]], budget: int, block_size: int, seniority: Sequence[int]) -> list[int]:
    """Tokens granted to each (start, end) span still to be computed, at most ``budget`` in all.

    Max-min fair, cut at block boundaries; the remainder goes to the most senior (``seniority`` lists indices, oldest
    first). If the budget is less than a block for everyone, the most senior takes it all.
    """
    needs = [end - start for start, end in spans]
    shares = fair_shares(needs, budget)
    grants = [
        chunk_end(start, end, share, block_size) - start for (start, end), share in zip(spans, shares, strict=True)
    ]
    left = budget - sum(grants)
    for index in seniority:
        start, end = spans[index]
        grown = chunk_end(start, end, grants[index] + left, block_size) - start
        left -= grown - grants[index]
        grants[index] = grown
    if spans and not any(grants):
        grants[seniority[0]] = min(needs[seniority[0]], budget)
    return grants


class OutputEstimate:
    """Which share of its ``max_tokens`` a request is expected to use; admission reserves that much.

    Follows what finished requests used (an exponential mean), so it falls while all goes well; a preemption says
    that it was too low and raises it at once.
    """

    _MEMORY = 0.1
    _LOWEST = 0.02

    def __init__(self, share: float = 0.5) -> None:
        self.share = share

    def tokens(self, max_tokens: int) -> int:
        """Output tokens to reserve for a request that may draw ``max_tokens`` more."""
        return min(max_tokens, int(np.ceil(self.share * max_tokens)))

    def finished(self, used: int, max_tokens: int) -> None:
        """A request that could have drawn ``max_tokens`` drew ``used``."""
        if max_tokens > 0:
            self.share += self._MEMORY * (used / max_tokens - self.share)
            self.share = max(self._LOWEST, self.share)

    def preempted(self) -> None:
        """Blocks ran out."""
        self.share = min(1.0, 1.5 * self.share + 0.05)


def step_work(plan: StepPlan) -> tuple[int, int]:
    """Tokens of a step, and the sum over them of the context each attends to (tokens squared)."""
    tokens = work = 0
    for row in plan.rows:
        count = len(row.tokens)
        tokens += count
        work += count * row.start + count * (count + 1) // 2
    return tokens, work


class CostModel:
    """Predicts the seconds a step takes: fixed + per token + per token and context token, learned online.

    Recursive least squares with exponential forgetting (Ljung, *System Identification*, section 11.2).
    """

    _FORGET = 0.99
    _SCALE = np.array([1.0, 1e-2, 1e-5])
    _FIRST_TOKENS = 64
    _ENOUGH = 3

    def __init__(self) -> None:
        self._theta = np.zeros(3)
        self._covariance = np.eye(3) * 1e3
        self.observations = 0
        self._largest = 0

    def observe(self, tokens: int, work: int, seconds: float) -> None:
        """A step of ``tokens`` with attention ``work`` (see `step_work`) took ``seconds``."""
        x = np.array([1.0, tokens, work]) * self._SCALE
        gain = self._covariance @ x / (self._FORGET + x @ self._covariance @ x)
        self._theta += gain * (seconds - x @ self._theta)
        self._covariance = (self._covariance - np.outer(gain, x @ self._covariance)) / self._FORGET
        # Forgetting blows up the covariance in directions that are never excited; bound it.
        trace = float(np.trace(self._covariance))
        if trace > 1e6:
            self._covariance *= 1e6 / trace
        self.observations += 1
        self._largest = max(self._largest, tokens)

    @property
    def coefficients(self) -> tuple[float, float, float]:
        """Seconds: fixed, per token, per token and context token; none is negative."""
        fixed, token, context = np.maximum(self._theta, 0.0) * self._SCALE
        return float(fixed), float(token), float(context)

    def predict(self, tokens: int, work: int) -> float:
        """Seconds a step is expected to take."""
        fixed, token, context = self.coefficients
        return fixed + token * tokens + context * work

    def tokens_within(self, seconds: float, tokens: int, work: int, context: int, limit: int) -> int:
        """How many tokens can follow ``context`` tokens of one sequence in a step of ``tokens`` and ``work`` besides, so
        that it stays within ``seconds``.

        At most ``limit``, and at most twice the largest step seen: decodes alone do not tell what a prompt costs.
        """
        limit = min(limit, max(self._FIRST_TOKENS, 2 * self._largest))
        if self.observations < self._ENOUGH:
            return min(limit, self._FIRST_TOKENS)
        _, token, per_context = self.coefficients
        left = max(0.0, seconds - self.predict(tokens, work))
        each = token + per_context * (context + 0.5)
        # The positive root of per_context / 2 * count**2 + each * count = left, in a form that divides by no zero.
        root = each + math.sqrt(each * each + 2 * per_context * left)
        return int(min(limit, 2 * left / root)) if root > 0 else limit
