"""Prompts that begin with the same text but for white space and case."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from radixserve.planner.advice.evidence import LEAST_RUN, Evidence
from radixserve.planner.advice.groups import Group, parting_groups
from radixserve.planner.plan import Advice


def spelled_apart(evidence: Evidence) -> Iterator[Advice]:
    """The place where one spelling for all would save most, if there is one."""
    best: Advice | None = None
    for group in parting_groups(evidence):
        advice = _spelled_alike(evidence, group)
        if advice is not None and (best is None or advice.saves > best.saves):
            best = advice
    if best is not None:
        yield best


def _spelled_alike(evidence: Evidence, group: Group) -> Advice | None:
    """All as the first prompt of the largest branch spells it."""
    model = max(group.branches, key=lambda branch: (len(branch), -branch[0]))
    start = _before_space(evidence, evidence.prompts[model[0]].tokens, group.start)
    pattern = evidence.prompts[model[0]].tokens[start:]
    boundaries = _plain_lengths(evidence, pattern)
    changed: dict[int, list[int]] = {}
    examples: list[str] = []
    for index in group.members:
        tokens = evidence.prompts[index].tokens
        taken, given = _same_text(evidence, boundaries, pattern, tokens[start:])
        if given >= LEAST_RUN and tokens[start : start + taken] != pattern[:given]:
            changed[index] = [*tokens[:start], *pattern[:given], *tokens[start + taken :]]
            examples.append(evidence.quote(tokens[group.start :][:16]))
    if not changed:
        return None
    saves = evidence.saves(changed)
    if saves < evidence.least:
        return None
    return Advice(
        kind="spelling",
        text=(
            f"one spelling for text that differs in white space or case only, from token {group.start:,} on "
            f"(“{evidence.quote(evidence.prompts[model[0]].tokens[group.start :])}”), makes {saves:,} tokens shareable: "
            f"{len(changed):,} prompts spell it otherwise"
        ),
        saves=saves,
        calls=len(changed),
        examples=tuple(dict.fromkeys(examples))[:4],
    )


def _before_space(evidence: Evidence, tokens: Sequence[int], place: int) -> int:
    """``place``, or where the white space before it begins: tokens of it may be cut otherwise."""
    while place > 0 and not evidence.token_data(tokens[place - 1]).strip():
        place -= 1
    return place


def _plain(data: bytes) -> str:
    """Text without white space and case."""
    return "".join(data.decode("utf-8", "replace").casefold().split())


def _plain_lengths(evidence: Evidence, tokens: Sequence[int]) -> dict[int, int]:
    """Length of the plain text of a beginning of ``tokens`` -> the most tokens that have it."""
    lengths: dict[int, int] = {}
    total = 0
    for count, token in enumerate(tokens, 1):
        total += len(_plain(evidence.token_data(token)))
        lengths[total] = count
    return lengths


def _same_text(
    evidence: Evidence, boundaries: dict[int, int], pattern: Sequence[int], tokens: Sequence[int]
) -> tuple[int, int]:
    """How many of ``tokens`` and of ``pattern`` stand for the same plain text, at most."""
    wanted = _plain(evidence.data(pattern))
    text, best = "", (0, 0)
    for count, token in enumerate(tokens, 1):
        text += _plain(evidence.token_data(token))
        if not wanted.startswith(text):
            break
        given = boundaries.get(len(text))
        if given is not None:
            best = (count, given)
    return best
