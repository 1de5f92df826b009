"""From logits to tokens.

Everything but the search for each row's largest logit works on one row at a time and on one thread, with sums whose
order depends on the vocabulary alone: a row's tokens and logprobs have the same bits alone and in any batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt

from radixserve.errors import RequestFailed
from radixserve.messages import SamplingParams, TokenLogprob
from radixserve.runtime.logits_processors import applies, process
from radixserve.runtime.logprobs import LogprobRow
from radixserve.runtime.random_numbers import uniform
from radixserve.runtime.selection import IndexArray
from radixserve.runtime.token_choice import TokenChoice
from radixserve.runtime.token_distribution import TokenDistribution
from radixserve.runtime.top_logits import TopLogits
from radixserve.scheduler.plan import Int32Array, PlanRow, RowResult

if TYPE_CHECKING:
    import torch

Float32Array = npt.NDArray[np.float32]

# A filter that keeps more tokens than this looks for them among all logits.
MOST_CANDIDATES = 64


class Sampler:
    """Draws tokens and reports logprobs as `SamplingParams` documents them; keeps no state between calls.

    ``vocab_size``: width of the logits. ``eos_ids``: the model's own end tokens, which ``min_tokens`` holds off.
    """

    def __init__(self, vocab_size: int, eos_ids: tuple[int, ...]) -> None:
        self.vocab_size = vocab_size
        self.eos_ids = eos_ids

    def sample(
        self, rows: Sequence[PlanRow], logits: torch.Tensor, choices: Mapping[str, TokenChoice] | None = None
    ) -> list[RowResult]:
        """One result for each of ``rows``, in their order.

        ``choices``: what those draw among that are named in it, by row id.

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
                choice = choices.get(row.rid) if choices else None
                results.append(self._sample_row(row, values[taken], greedy[taken], choice))
            taken += 1
        return results

    def is_plain(self, row: PlanRow) -> bool:
        """Whether temperature and filters alone lead from the row's logits to its tokens, and no logprobs are wanted."""
        sampling = row.sampling
        return sampling.constraint is None and sampling.logprobs is None and not applies(row, self.eos_ids)

    def candidates(self, row: PlanRow) -> int | None:
        """How many of a row's largest logits decide what is drawn; None where all of its logits are needed.

        All are for constraints, logprobs, penalties, biases, bans, and draws that ``top_k`` does not keep to `MOST_CANDIDATES`.
        """
        sampling = row.sampling
        if not self.is_plain(row):
            return None
        if sampling.temperature == 0.0:
            return 1
        return sampling.top_k if 0 < sampling.top_k < min(MOST_CANDIDATES + 1, self.vocab_size) else None

    def sample_top(self, rows: Sequence[PlanRow], top: TopLogits) -> list[RowResult]:
        """`sample` for rows that draw and have `candidates`, from at least so many of their largest logits: the same results."""
        assert len(top.ids) == len(rows), f"the largest logits of {len(top.ids)} rows for {len(rows)}"
        results = []
        for index, (row, best, peak) in enumerate(
            zip(rows, top.ids[:, 0].tolist(), top.values[:, 0].tolist(), strict=True)
        ):
            if not math.isfinite(peak):
                results.append(RowResult(error=_non_finite(row.end - 1, top.values[index, 0])))
            elif row.sampling.temperature == 0.0:
                results.append(RowResult((best,) * row.num_samples))
            else:
                kept = np.argsort(top.ids[index, : row.sampling.top_k])
                ids, values = top.ids[index, kept].astype(np.intp), top.values[index, kept]
                results.append(RowResult(_draw(row, TokenDistribution.of_kept(ids, values, row.sampling))))
        return results

    def drawn(self, rows: Sequence[PlanRow], tokens: npt.NDArray[np.int64], peaks: Float32Array) -> list[RowResult]:
        """`sample` for plain rows whose ``tokens`` [n, samples] were drawn elsewhere; ``peaks`` [n]: their largest logits."""
        return [
            RowResult(tuple(own[: row.num_samples]))
            if np.isfinite(peak)
            else RowResult(error=_non_finite(row.end - 1, peak))
            for row, own, peak in zip(rows, tokens.tolist(), peaks, strict=True)
        ]

    def prompt_logprobs(self, row: PlanRow, logits: torch.Tensor, offset: int) -> list[TokenLogprob]:
        """Raw logprobs of the row's wanted prompt tokens [offset, offset + m).

        ``logits`` float32 [m, V] are those of the positions before these tokens. Raises `RequestFailed` where they are
        not finite.
        """
        targets, count = row.prompt_logprob_targets, row.sampling.prompt_logprobs
        assert targets is not None and count is not None, "the row wants prompt logprobs"
        return self._score(row, logits, targets[offset:], row.prompt_logprob_start + offset, count)

    def forced_logprobs(self, row: PlanRow, logits: torch.Tensor, offset: int) -> list[TokenLogprob]:
        """Raw logprobs, marked ``forced``, of the row's forced tokens [offset, offset + m); otherwise as `prompt_logprobs`."""
        targets, count = row.forced_targets, row.sampling.logprobs
        assert targets is not None and count is not None, "the row has forced tokens and wants logprobs"
        entries = self._score(row, logits, targets[offset:], row.forced_start + offset, count)
        return [_forced(entry) for entry in entries]

    def _score(
        self, row: PlanRow, logits: torch.Tensor, targets: Int32Array, first: int, count: int
    ) -> list[TokenLogprob]:
        """Raw logprobs of the first m ``targets``, with ``count`` alternatives; ``logits`` [m, V] are of position ``first`` on."""
        wanted = targets[: len(logits)].tolist()
        entries = []
        for index, (token, values) in enumerate(zip(wanted, self._read(logits, len(wanted)), strict=True)):
            peak = values.max()
            if not np.isfinite(peak):
                raise RequestFailed(row.rid, _non_finite(first + index, peak))
            logprobs = LogprobRow.raw(values)
            entries.append(logprobs.entry(token, logprobs.top(count), logprobs.of(row.sampling.logprob_token_ids)))
        return entries

    def _read(self, logits: torch.Tensor, count: int) -> Float32Array:
        """The logits as float32 [count, V] with contiguous rows; a view wherever they already are that."""
        assert tuple(logits.shape) == (count, self.vocab_size), f"{tuple(logits.shape)} logits for {count} rows"
        return np.ascontiguousarray(logits.detach().float().cpu().numpy())

    def _sample_row(
        self, row: PlanRow, logits: Float32Array, greedy: int, choice: TokenChoice | None = None
    ) -> RowResult:
        """Draw for one row of finite ``logits`` [V] whose largest is at ``greedy``, among ``choice`` if one is given."""
        sampling = row.sampling
        allowed: IndexArray | None = None
        unending: tuple[int, ...] = ()
        if choice is not None:
            if choice.error is not None:
                return RowResult(error=choice.error, error_param="constraint")
            allowed, unending = choice.allowed, choice.unending
        processed = process(logits, row, self.eos_ids, allowed, unending)
        if processed is not logits or allowed is not None:
            among = processed if allowed is None else processed[allowed]
            best = int(among.argmax())
            if among[best] == -np.inf:
                return RowResult(error="no token is left to draw: min_tokens bans every one of finite logit")
            greedy = best if allowed is None else int(allowed[best])
        distribution: TokenDistribution | None = None
        if sampling.temperature == 0.0:
            tokens = (greedy,) * row.num_samples
        else:
            distribution = TokenDistribution.of(processed, sampling, allowed)
            tokens = _draw(row, distribution)
        settled = tokens
        if choice is not None and choice.settle is not None:
            settled = tuple(map(choice.settle, tokens))
        if sampling.logprobs is None:
            return RowResult(settled)
        raw = LogprobRow.raw(logits)
        logprobs = raw
        if sampling.logprobs_mode == "processed":
            logprobs = LogprobRow.processed(distribution or TokenDistribution.of(processed, sampling, allowed))
        top, asked = logprobs.top(sampling.logprobs), logprobs.of(sampling.logprob_token_ids)
        entries = (
            # A token that was put in the place of the drawn one may not be in the distribution at all.
            logprobs.entry(token, top, asked) if token == drawn else _forced(_raw_entry(raw, token, sampling))
            for token, drawn in zip(settled, tokens, strict=True)
        )
        return RowResult(settled, tuple(entries))


def _draw(row: PlanRow, distribution: TokenDistribution) -> tuple[int, ...]:
    """The tokens of all samples of the row."""
    samples = range(row.first_sample, row.first_sample + row.num_samples)
    return tuple(distribution.token(uniform(row.seed, sample, row.end)) for sample in samples)


def _raw_entry(raw: LogprobRow, token: int, sampling: SamplingParams) -> TokenLogprob:
    assert sampling.logprobs is not None, "logprobs are wanted"
    return raw.entry(token, raw.top(sampling.logprobs), raw.of(sampling.logprob_token_ids))


def _forced(entry: TokenLogprob) -> TokenLogprob:
    return msgspec.structs.replace(entry, forced=True)


def _non_finite(position: int, peak: np.float32) -> str:
    return f"non-finite logits at position {position} (the largest is {peak})"
