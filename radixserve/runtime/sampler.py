"""From logits to tokens.

Everything but the search for each row's largest logit works on one row at a time and on one thread, with sums whose
order depends on the vocabulary alone: a row's tokens and logprobs have the same bits alone and in any batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from radixserve.errors import RequestFailed
from radixserve.messages import TokenLogprob
from radixserve.runtime.logits_processors import process
from radixserve.runtime.logprobs import LogprobRow
from radixserve.runtime.random_numbers import uniform
from radixserve.runtime.token_distribution import TokenDistribution
from radixserve.scheduler.plan import PlanRow, RowResult

if TYPE_CHECKING:
    import torch

Float32Array = npt.NDArray[np.float32]


class Sampler:
    """Draws tokens and reports logprobs as `SamplingParams` documents them; keeps no state between calls.

    ``vocab_size``: width of the logits. ``eos_ids``: the model's own end tokens, which ``min_tokens`` holds off.
    """

    def __init__(self, vocab_size: int, eos_ids: tuple[int, ...]) -> None:
        self.vocab_size = vocab_size
        self.eos_ids = eos_ids

    def sample(self, rows: Sequence[PlanRow], logits: torch.Tensor) -> list[RowResult]:
        """One result for each of ``rows``, in their order.

        ``logits`` float32 [n, V] belongs to those rows that draw (``num_samples`` > 0), in order, and is only read. A
        row whose logits are not finite, or whose every token is banned, gets an ``error`` and disturbs no other.
        """
        drawing = sum(row.num_samples > 0 for row in rows)
        values = self._read(logits, drawing)
        if drawing == 0:
            return [RowResult() for _ in rows]
        # numpy's argmax takes the first of equal values and treats NaN as the largest: one pass gives the greedy token
        # with ties to the lowest id, and shows every row that is not finite.
        best = values.argmax(axis=1)
        peaks = values[np.arange(drawing), best]
        finite = np.isfinite(peaks).tolist()
        greedy = best.tolist()
        results: list[RowResult] = []
        taken = 0
        for row in rows:
            if row.num_samples == 0:
                results.append(RowResult())
                continue
            if not finite[taken]:
                results.append(RowResult(error=_non_finite(row.end - 1, peaks[taken])))
            else:
                results.append(self._sample_row(row, values[taken], greedy[taken]))
            taken += 1
        return results

    def prompt_logprobs(self, row: PlanRow, logits: torch.Tensor, offset: int) -> list[TokenLogprob]:
        """Raw logprobs of the row's wanted prompt tokens [offset, offset + m).

        ``logits`` float32 [m, V] are those of the positions before these tokens. Raises `RequestFailed` where they are
        not finite.
        """
        targets, count = row.prompt_logprob_targets, row.sampling.prompt_logprobs
        assert targets is not None and count is not None, "the row wants prompt logprobs"
        wanted = targets[offset : offset + len(logits)].tolist()
        entries = []
        for index, (token, values) in enumerate(zip(wanted, self._read(logits, len(wanted)), strict=True)):
            peak = values.max()
            if not np.isfinite(peak):
                position = row.prompt_logprob_start + offset + index
                raise RequestFailed(row.rid, _non_finite(position, peak))
            logprobs = LogprobRow.raw(values)
            entries.append(logprobs.entry(token, logprobs.top(count)))
        return entries

    def _read(self, logits: torch.Tensor, count: int) -> Float32Array:
        """The logits as float32 [count, V] with contiguous rows; a view wherever they already are that."""
        assert tuple(logits.shape) == (count, self.vocab_size), f"{tuple(logits.shape)} logits for {count} rows"
        return np.ascontiguousarray(logits.detach().float().cpu().numpy())

    def _sample_row(self, row: PlanRow, logits: Float32Array, greedy: int) -> RowResult:
        """Draw for one row of finite ``logits`` [V] whose largest is at ``greedy``."""
        sampling = row.sampling
        processed = process(logits, row, self.eos_ids)
        if processed is not logits:
            greedy = int(processed.argmax())
            if processed[greedy] == -np.inf:
                return RowResult(error="no token is left to draw: min_tokens bans every one of finite logit")
        distribution: TokenDistribution | None = None
        if sampling.temperature == 0.0:
            tokens = (greedy,) * row.num_samples
        else:
            distribution = TokenDistribution.of(processed, sampling)
            samples = range(row.first_sample, row.first_sample + row.num_samples)
            tokens = tuple(distribution.token(uniform(row.seed, sample, row.end)) for sample in samples)
        if sampling.logprobs is None:
            return RowResult(tokens)
        if sampling.logprobs_mode == "raw":
            logprobs = LogprobRow.raw(logits)
        else:
            logprobs = LogprobRow.processed(distribution or TokenDistribution.of(processed, sampling))
        top = logprobs.top(sampling.logprobs)
        return RowResult(tokens, tuple(logprobs.entry(token, top) for token in tokens))


def _non_finite(position: int, peak: np.float32) -> str:
    return f"non-finite logits at position {position} (the largest is {peak})"
