"""Long runs of tokens that several sequences have in common, wherever in them they stand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from radixserve.cache.token_key import TOKEN_BYTES, encode_tokens
from radixserve.planner.advice.evidence import LEAST_RUN

_GRAM = 16
_LONGEST = 16_384


@dataclass(frozen=True, slots=True)
class Run:
    """``tokens`` that stand in some sequences; ``places``: sequence -> where it begins in it."""

    tokens: tuple[int, ...]
    places: dict[int, int]


def common_run(branches: Sequence[Sequence[tuple[int, Sequence[int]]]]) -> Run | None:
    """The run whose sharing would save most, among sequences that stand in branches as (index, tokens); None if there is none.

    Sequences of one branch begin alike, so what is common to them alone counts for nothing. The first of the largest branch is taken as
    the pattern.
    """
    grams: list[dict[bytes, list[tuple[int, int]]]] = []
    for branch in branches:
        seen: dict[bytes, list[tuple[int, int]]] = {}
        for index, tokens in branch:
            own: set[bytes] = set()
            for gram, place in _grams(tokens):
                if gram not in own:
                    own.add(gram)
                    seen.setdefault(gram, []).append((index, place))
        grams.append(seen)
    pattern_branch = max(range(len(branches)), key=lambda number: (len(branches[number]), -number))
    _, pattern = branches[pattern_branch][0]
    counts = [sum(gram in seen for seen in grams) for gram, _ in _grams(pattern)]
    best = _best_stretch(counts)
    if best is None:
        return None
    first, last = best
    tokens = tuple(pattern[first : last + _GRAM])
    key = encode_tokens(tokens)
    places: dict[int, int] = {}
    for branch in branches:
        for index, sequence in branch:
            found = _find(encode_tokens(sequence), key)
            if found is not None:
                places[index] = found
    return Run(tokens, places) if len(tokens) >= LEAST_RUN else None


def _grams(tokens: Sequence[int]) -> list[tuple[bytes, int]]:
    key = encode_tokens(tokens[:_LONGEST])
    size = _GRAM * TOKEN_BYTES
    return [(key[at : at + size], at // TOKEN_BYTES) for at in range(0, len(key) - size + 1, TOKEN_BYTES)]


def _best_stretch(counts: Sequence[int]) -> tuple[int, int] | None:
    """The stretch (first, last) of grams whose (least count - 1) times length is largest; the largest rectangle in a histogram.

    The method is the usual one with a stack.
    """
    best: tuple[int, int] | None = None
    most = 0
    stack: list[tuple[int, int]] = []
    for at, count in enumerate([*counts, 0]):
        start = at
        while stack and stack[-1][1] >= count:
            start, height = stack.pop()
            area = (height - 1) * (at - start + _GRAM - 1)
            if height >= 2 and area > most:
                most, best = area, (start, at - 1)
        stack.append((start, count))
    return best


def _find(sequence: bytes, key: bytes) -> int | None:
    at = sequence.find(key)
    while at >= 0 and at % TOKEN_BYTES:
        at = sequence.find(key, at + 1)
    return None if at < 0 else at // TOKEN_BYTES
