"""From the answers of a session to figures, and from several rounds to medians."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from radixserve.bench.character import begins_document
from radixserve.bench.session import Answer, Session, failures
from radixserve.bench.workloads import LONG, Workload

Figures = dict[str, float]
"""By name; times in milliseconds carry ``_ms``, in seconds ``_s``. What could not be measured is not there."""


@dataclass(frozen=True, slots=True)
class Run:
    """One session in figures. ``error``: the first of its errors; figures are then of those requests that had none."""

    figures: Figures
    errors: int
    error: str | None = None


def percentile(values: Sequence[float], share: float) -> float:
    """Linear between the two nearest ranks; NaN of nothing."""
    if not values:
        return math.nan
    ordered = sorted(values)
    place = (len(ordered) - 1) * share
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def measure(workload: Workload, session: Session) -> Run:
    """All figures of a session."""
    answers = session.answers
    good = [answer for answer in answers if answer.error is None]
    output = sum(answer.completion_tokens for answer in good)
    firsts = [answer.first_s for answer in good]
    gaps = [later - earlier for answer in good for earlier, later in answer.gaps]
    figures = {
        "wall_s": session.wall_s,
        "output_tokens": output,
        "output_tokens_per_s": output / session.wall_s,
        "prompt_tokens": sum(answer.prompt_tokens for answer in good),
        "cached_tokens": sum(answer.cached_tokens for answer in good),
        "pieces": sum(len(answer.pieces) for answer in good),
        "ttft_p50_ms": 1e3 * percentile(firsts, 0.5),
        "ttft_p99_ms": 1e3 * percentile(firsts, 0.99),
        "itl_p50_ms": 1e3 * percentile(gaps, 0.5),
        "itl_p99_ms": 1e3 * percentile(gaps, 0.99),
    }
    if workload.concurrency == 1:
        figures["decode_tokens_per_s"] = _median([_decode_speed(answer) for answer in good if len(answer.pieces) > 1])
    if any(call.schema is not None for call in workload.calls):
        figures["valid"] = sum(begins_document(answer.text) for answer in good)
    figures |= _beside_long(workload, answers)
    errors = failures(answers)
    kept = {name: value for name, value in figures.items() if not math.isnan(value)}
    return Run(kept, len(errors), errors[0] if errors else None)


def medians(runs: Sequence[Run]) -> Figures:
    """The median of each figure over the runs that have it."""
    names = dict.fromkeys(name for run in runs for name in run.figures)
    return {name: _median([run.figures[name] for run in runs if name in run.figures]) for name in names}


def _decode_speed(answer: Answer) -> float:
    return (answer.completion_tokens - 1) / (answer.pieces[-1] - answer.pieces[0])


def _beside_long(workload: Workload, answers: Sequence[Answer]) -> Figures:
    """The streams while a long prompt is computed: gaps that touch the time from its sending to its first token."""
    groups = [call.group for call in workload.calls]
    if LONG not in groups or answers[groups.index(LONG)].error is not None:
        return {}
    long = answers[groups.index(LONG)]
    begin, end = long.sent, long.pieces[0]
    others = [answer for answer in answers if answer is not long and answer.error is None]
    gaps = [gap for answer in others for gap in answer.gaps]
    beside = [later - earlier for earlier, later in gaps if later > begin and earlier < end]
    before = [later - earlier for earlier, later in gaps if later <= begin]
    return {
        "long_ttft_s": long.first_s,
        "beside_gaps": float(len(beside)),
        "beside_itl_p50_ms": 1e3 * percentile(beside, 0.5),
        "beside_itl_p99_ms": 1e3 * percentile(beside, 0.99),
        "before_itl_p50_ms": 1e3 * percentile(before, 0.5),
    }


def _median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else math.nan
