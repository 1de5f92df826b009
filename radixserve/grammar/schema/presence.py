"""Which optional properties are there, split into cases so that their number is right in each.

The engine counts properties only where all named ones are required.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb

from radixserve.grammar.schema.refusal import Origin, SchemaRefused


@dataclass(frozen=True, slots=True)
class Presence:
    """``required`` and ``absent`` among the optional properties (the rest stays optional), and bounds on the number of others."""

    required: frozenset[str] = frozenset()
    absent: frozenset[str] = frozenset()
    others_low: int = 0
    others_high: int | None = None


def presences(
    optional: Sequence[str], low: int, high: int | None, others: int, is_open: bool, limit: int, origin: Origin
) -> Iterator[Presence]:
    """Cases that together mean: ``low`` to ``high`` properties out of ``optional`` and others, at least ``others`` of them others.

    ``is_open``: there may be others. Refuses more than ``limit`` cases, and more than one other as a lower bound.
    """
    count = len(optional)
    if (high is not None and (high < others or high < low)) or (not is_open and (others or low > count)):
        return
    if not is_open and high is not None and high >= count:
        high = None
    if low == 0 and high is None and not others:
        yield Presence()
    elif not is_open and high is None:
        _limit(comb(count, low), limit, origin)
        yield from _first_present(optional, low)
    elif not is_open and low == 0 and high is not None:
        _limit(comb(count, count - high), limit, origin)
        yield from _first_absent(optional, count - high)
    elif is_open and high is None and not others:
        yield from _open_from_below(optional, low, limit, origin)
    else:
        sizes = range(0 if is_open else low, (count if high is None else min(high, count)) + 1)
        _limit(sum(comb(count, size) for size in sizes), limit, origin)
        for size in sizes:
            least = max(low - size, others, 0)
            most = None if high is None else high - size
            if most is None or most >= least:
                yield from _exactly(optional, size, least if is_open else 0, most if is_open else None, origin)


def _open_from_below(optional: Sequence[str], low: int, limit: int, origin: Origin) -> Iterator[Presence]:
    fewer = range(max(low - 1, 0), low)
    _limit(comb(len(optional), low) + sum(comb(len(optional), size) for size in fewer), limit, origin)
    yield from _first_present(optional, low)
    for size in range(low):
        if size <= len(optional):
            yield from _exactly(optional, size, low - size, None, origin)


def _first_present(optional: Sequence[str], count: int) -> Iterator[Presence]:
    """At least ``count`` present: by which are the first of them."""
    for chosen in combinations(range(len(optional)), count):
        before = range(chosen[-1] + 1) if chosen else range(0)
        yield Presence(
            frozenset(optional[i] for i in chosen), frozenset(optional[i] for i in before if i not in chosen)
        )


def _first_absent(optional: Sequence[str], count: int) -> Iterator[Presence]:
    """At least ``count`` absent: by which are the first of them."""
    for presence in _first_present(optional, count):
        yield Presence(presence.absent, presence.required)


def _exactly(optional: Sequence[str], size: int, least: int, most: int | None, origin: Origin) -> Iterator[Presence]:
    if least > 1:
        raise SchemaRefused(
            origin, "at least two properties of unknown name: the engine does not keep their names apart"
        )
    for chosen in combinations(optional, size):
        yield Presence(frozenset(chosen), frozenset(optional) - frozenset(chosen), least, most)


def _limit(cases: int, limit: int, origin: Origin) -> None:
    if cases > limit:
        raise SchemaRefused(origin, f"it splits into {cases} cases, more than {limit}")
