"""What changes logits before anything is drawn: penalties, biases and the ban on ending too early, in that order."""

from __future__ import annotations

import numpy as np

from radixserve.messages import SamplingParams
from radixserve.runtime.selection import Float64Array, FloatArray, IndexArray
from radixserve.scheduler.plan import Int32Array, PlanRow

# Dividing by a repetition penalty near 0 must not reach infinity, or the differences taken later would be NaN.
_LARGEST_LOGIT = 1e300


def applies(row: PlanRow, eos_ids: tuple[int, ...]) -> bool:
    """Whether `process` would change the logits of ``row``."""
    sampling = row.sampling
    return bool(sampling.needs_history or sampling.logit_bias or (sampling.min_tokens and _banned(row, eos_ids)))


def process(
    logits: FloatArray,
    row: PlanRow,
    eos_ids: tuple[int, ...],
    allowed: IndexArray | None = None,
    unending: tuple[int, ...] = (),
) -> FloatArray:
    """The logits of ``row`` after penalties, logit_bias and min_tokens.

    ``allowed``: what its constraint lets it draw; the ban of min_tokens is lifted where it would leave nothing of it, and from
    ``unending`` tokens, which end nothing.

    ``logits`` float[V] is not written to; it is returned itself where nothing applies, else a float64 copy. Entries may
    come back as -inf, all of them if every token is banned.
    """
    if not applies(row, eos_ids):
        return logits
    sampling = row.sampling
    banned = [token for token in _banned(row, eos_ids) if token not in unending]
    processed = logits.astype(np.float64)
    if sampling.needs_history:
        assert row.history is not None, "a row with penalties carries its history"
        _penalize(processed, row.history, row.num_prompt, sampling)
    if sampling.logit_bias:
        size = len(sampling.logit_bias)
        ids = np.fromiter(sampling.logit_bias.keys(), np.intp, size)
        processed[ids] += np.fromiter(sampling.logit_bias.values(), np.float64, size)
    if banned and (allowed is None or not np.isin(allowed, banned).all()):
        processed[banned] = -np.inf
    return processed


def _banned(row: PlanRow, eos_ids: tuple[int, ...]) -> tuple[int, ...]:
    """Tokens that would end the output before ``min_tokens``.

    Under ``ignore_eos`` the model's own end tokens end nothing, so they are not among them.
    """
    if row.end - row.num_prompt >= row.sampling.min_tokens:
        return ()
    return row.sampling.stop_token_ids if row.sampling.ignore_eos else (*row.sampling.stop_token_ids, *eos_ids)


def _penalize(logits: Float64Array, history: Int32Array, num_prompt: int, sampling: SamplingParams) -> None:
    """Apply the three penalties in place.

    Repetition (Keskar et al. 2019, section 4.1, made to work for either sign): tokens seen in prompt or output have
    positive logits divided and others multiplied by it. Frequency and presence (OpenAI): a token that occurs c > 0
    times in the output loses c * frequency + presence.

    Each assignment goes through token ids that may repeat: all copies of an id are given the same value, so it is
    applied once and no set of distinct tokens has to be made.
    """
    penalty = sampling.repetition_penalty
    if penalty != 1.0:
        seen = logits[history]
        with np.errstate(over="ignore"):
            logits[history] = np.where(seen > 0.0, np.minimum(seen / penalty, _LARGEST_LOGIT), seen * penalty)
    output = history[num_prompt:]
    if len(output) == 0:
        return
    if sampling.frequency_penalty != 0.0:
        counts = np.bincount(output, minlength=len(logits))[output]
        logits[output] -= sampling.frequency_penalty * counts
    if sampling.presence_penalty != 0.0:
        logits[output] -= sampling.presence_penalty
