"""The same pieces of text in another order, such as shuffled examples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from radixserve.planner.advice.evidence import LEAST_RUN, Evidence
from radixserve.planner.advice.groups import Group, parting_groups
from radixserve.planner.plan import Advice

_LEAST_PIECES = 3

Piece = tuple[int, ...]


def shuffled(evidence: Evidence) -> Iterator[Advice]:
    """The place where one order for all would save most, if there is one."""
    best: Advice | None = None
    for group in parting_groups(evidence):
        for separator in (b"\n\n", b"\n"):
            advice = _sorted_alike(evidence, group, separator)
            if advice is not None:
                if best is None or advice.saves > best.saves:
                    best = advice
                break
    if best is not None:
        yield best


def _sorted_alike(evidence: Evidence, group: Group, separator: bytes) -> Advice | None:
    members = group.members
    # From the beginning of the piece in which they part.
    start = _last_begin(evidence, evidence.prompts[members[0]].tokens[: group.start], separator)
    pieces = {index: _pieces(evidence, evidence.prompts[index].tokens[start:], separator) for index in members}
    counts = Counter(piece for own in pieces.values() for piece in set(own))
    common = {piece for piece, count in counts.items() if count * 2 > len(members) and count > 1}
    if len(common) < _LEAST_PIECES or sum(map(len, common)) < LEAST_RUN:
        return None
    first = next(own for own in pieces.values() if any(piece in common for piece in own))
    rank = {piece: place for place, piece in enumerate(dict.fromkeys([*first, *sorted(common)]))}
    changed: dict[int, list[int]] = {}
    for index, own in pieces.items():
        taken = [piece for piece in own if piece in common]
        ordered = sorted(taken, key=lambda piece: rank[piece])
        if ordered != taken:
            rest = iter(ordered)
            tokens = [token for piece in own for token in (next(rest) if piece in common else piece)]
            changed[index] = [*evidence.prompts[index].tokens[:start], *tokens]
    if not changed:
        return None
    saves = evidence.saves(changed)
    if saves < evidence.least:
        return None
    in_order = sorted(common, key=lambda piece: rank[piece])
    length = sum(map(len, common))
    return Advice(
        kind="order",
        text=(
            f"one order for the same {len(common):,} pieces of text ({length:,} tokens, the first “{evidence.quote(in_order[0])}”) "
            f"makes {saves:,} tokens shareable: {len(changed):,} of {len(members):,} prompts have them in another order"
        ),
        saves=saves,
        calls=len(changed),
        examples=tuple(map(evidence.quote, in_order[:4])),
    )


def _last_begin(evidence: Evidence, tokens: Sequence[int], separator: bytes) -> int:
    """Where a piece of ``tokens`` begins that is not complete."""
    pieces = _pieces(evidence, tokens, separator)
    complete = (
        not pieces or evidence.data(pieces[-1]).endswith(separator) or pieces[-1][-1] in evidence.tokenizer.special_ids
    )
    return len(tokens) - (0 if complete else len(pieces[-1]))


def _pieces(evidence: Evidence, tokens: Sequence[int], separator: bytes) -> list[Piece]:
    """``tokens`` cut after each token with which ``separator`` is complete, and around special ones."""
    pieces: list[Piece] = []
    begin, tail = 0, b""
    special = evidence.tokenizer.special_ids
    for at, token in enumerate(tokens):
        if token in special and at > begin:
            pieces.append(tuple(tokens[begin:at]))
            begin = at
        tail = (tail + evidence.token_data(token))[-2:]
        if tail.endswith(separator) or token in special:
            pieces.append(tuple(tokens[begin : at + 1]))
            begin, tail = at + 1, b""
    if begin < len(tokens):
        pieces.append(tuple(tokens[begin:]))
    return pieces
