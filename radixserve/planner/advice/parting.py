"""Varying text before shared text: prompts part early and run equal again later."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence

from radixserve.planner.advice.evidence import LEAST_RUN, Evidence
from radixserve.planner.advice.groups import Group, parting_groups
from radixserve.planner.advice.runs import Run, common_run
from radixserve.planner.plan import Advice

_MOST = 4
# How much of a run may be cut off its ends so that it begins and ends with a line.
_MARGIN = 4

_KINDS = (
    (
        "the date",
        re.compile(r"\d{4}-\d{2}-\d{2}|\d{1,2}[./]\d{1,2}[./]\d{2,4}|\b\d{1,2}:\d{2}(:\d{2})?\b|\b(19|20)\d{2}\b"),
    ),
    ("the identifier", re.compile(r"\b[0-9a-f]{8}(-?[0-9a-f]{4}){3}-?[0-9a-f]{12}\b|\b[0-9a-fA-F]{12,}\b")),
    ("the number", re.compile(r"\d")),
)


def varying_first(evidence: Evidence) -> Iterator[Advice]:
    """For each place where it helps: move what varies below what is shared. Numbers of several add up."""
    for _ in range(_MOST):
        best: tuple[int, Group, Run, dict[int, list[int]]] | None = None
        for group in parting_groups(evidence):
            if best is not None and _most_saved(evidence, group) <= best[0]:
                break
            found = _moved(evidence, group)
            if found is None:
                continue
            run, changed = found
            saves = evidence.saves(changed)
            if saves >= evidence.least and (best is None or saves > best[0]):
                best = (saves, group, run, changed)
        if best is None:
            return
        saves, group, run, changed = best
        yield _advice(evidence, group, run, changed, saves)
        # The next one is judged with this one taken.
        evidence = dataclasses.replace(evidence, prompts=evidence.with_tokens(changed))


def _most_saved(evidence: Evidence, group: Group) -> int:
    rests = sorted(
        max(len(evidence.prompts[index].tokens) for index in branch) - group.start for branch in group.branches
    )
    return sum(rests[:-1])


def _moved(evidence: Evidence, group: Group) -> tuple[Run, dict[int, list[int]]] | None:
    """The run, and the prompts with it moved up to the line in which they part."""
    start = _line_start(evidence, evidence.prompts[group.members[0]].tokens, group.start)
    branches = [[(index, evidence.prompts[index].tokens[start:]) for index in branch] for branch in group.branches]
    run = common_run(branches)
    if run is None:
        return None
    run = _whole_lines(evidence, run)
    if len(run.tokens) < LEAST_RUN or len(run.places) < 2 or not any(run.places.values()):
        return None
    changed: dict[int, list[int]] = {}
    for index, place in run.places.items():
        tokens = evidence.prompts[index].tokens
        rest = tokens[start:]
        moved = [*tokens[:start], *run.tokens, *rest[:place], *rest[place + len(run.tokens) :]]
        if not evidence.tokenizer.special_ids.isdisjoint(rest[:place]):
            # A message ends in what varies: it cannot be moved into another one.
            return None
        if place:
            changed[index] = moved
    return run, changed


def _line_start(evidence: Evidence, tokens: Sequence[int], place: int) -> int:
    """Where the line begins in which token ``place`` stands."""
    at = place
    while at > 0 and b"\n" not in evidence.token_data(tokens[at - 1]):
        at -= 1
    return at


def _whole_lines(evidence: Evidence, run: Run) -> Run:
    """Without a broken line at either end, where that is not much of it."""
    breaks = [at + 1 for at, token in enumerate(run.tokens) if b"\n" in evidence.token_data(token)]
    margin = len(run.tokens) // _MARGIN
    first = next((at for at in breaks if at <= margin), 0)
    last = next((at for at in reversed(breaks) if at >= len(run.tokens) - margin), len(run.tokens))
    return Run(run.tokens[first:last], {index: place + first for index, place in run.places.items()})


def _advice(evidence: Evidence, group: Group, run: Run, changed: dict[int, list[int]], saves: int) -> Advice:
    start = _line_start(evidence, evidence.prompts[group.members[0]].tokens, group.start)
    varying = [list(evidence.prompts[index].tokens[start : start + run.places[index]]) for index in changed]
    texts = list(dict.fromkeys(map(evidence.quote, varying)))
    name = _name_of([evidence.text(tokens) for tokens in varying])
    return Advice(
        kind="varying_first",
        text=(
            f"moving {name} “{texts[0]}” below the {len(run.tokens):,} tokens that begin “{evidence.quote(run.tokens)}” makes "
            f"{saves:,} tokens shareable: {len(run.places):,} prompts part {len(varying[0]):,} tokens before them"
        ),
        saves=saves,
        calls=len(changed),
        examples=tuple(texts[:4]),
    )


def _name_of(texts: Sequence[str]) -> str:
    """What varies, where that is all that does; a line of it if it is a whole line."""
    line = all(text.endswith("\n") and text.count("\n") == 1 for text in texts)
    for name, pattern in _KINDS:
        if pattern.search(texts[0]) and len({pattern.sub("#", text) for text in texts}) == 1:
            return f"{name} line" if line else f"the part with {name}"
    return "the line" if line else "the varying part"
