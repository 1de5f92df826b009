"""Prompts that begin alike and then part: where most advice is found."""

from __future__ import annotations

from dataclasses import dataclass

from radixserve.planner.advice.evidence import LEAST_RUN, Evidence
from radixserve.planner.prompt_tree import build_trees, passing
from radixserve.planner.replay import Prompt

_MOST_GROUPS = 48
_MOST_MEMBERS = 512


@dataclass(frozen=True, slots=True)
class Group:
    """Prompts (by index) that are the same for ``start`` tokens; ``branches``: those that go on with the same token stand together."""

    start: int
    branches: tuple[tuple[int, ...], ...]

    @property
    def members(self) -> list[int]:
        """All of them, in the order of their arrival."""
        return sorted(index for branch in self.branches for index in branch)


def parting_groups(evidence: Evidence) -> list[Group]:
    """Where at least two prompts part with much to come, those with most of it first."""
    prompts = evidence.prompts
    bare = [Prompt(prompt.tokens, (), prompt.salt) for prompt in prompts]
    members = passing(build_trees(bare), bare)
    weighted: list[tuple[int, Group]] = []
    for node in members:
        if len(node.children) < 2:
            continue
        branches = [
            tuple(index for index in members[child] if len(prompts[index].tokens) - node.end >= LEAST_RUN)
            for child in node.children.values()
        ]
        branches = [branch[:_MOST_MEMBERS] for branch in branches if branch]
        if len(branches) < 2:
            continue
        # What one member of each branch has to come, without the largest: the most that could be shared here.
        rests = sorted(max(len(prompts[index].tokens) for index in branch) - node.end for branch in branches)
        weighted.append((sum(rests[:-1]), Group(node.end, tuple(branches))))
    weighted.sort(key=lambda item: -item[0])
    return [group for _, group in weighted[:_MOST_GROUPS]]
