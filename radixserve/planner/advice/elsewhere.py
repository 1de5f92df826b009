"""What keeps equal prompts apart outside of their text: namespaces, outputs that are tokenized anew, calls that come together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from radixserve.planner.advice.evidence import LEAST_RUN, Evidence
from radixserve.planner.plan import Advice
from radixserve.planner.prompt_tree import TreeNode, build_trees, passing, path_to
from radixserve.planner.replay import PUBLIC, Prompt, computed_tokens, tokens_to_compute


def same_in_namespaces(evidence: Evidence) -> Iterator[Advice]:
    """The prefix that is computed once in each of several namespaces and could be public."""
    salts = {prompt.salt for prompt in evidence.prompts}
    if len(salts) < 2:
        return
    best = _widest(evidence.prompts)
    if best is None:
        return
    prefix, spaces = best
    public = [Prompt(prefix, (), PUBLIC), *evidence.prompts]
    saves = evidence.base - tokens_to_compute(public, evidence.block_size)
    if saves >= evidence.least:
        yield Advice(
            kind="namespaces",
            text=(
                f"the first {len(prefix):,} tokens, “{evidence.quote(prefix)}”, are the same in {spaces:,} namespaces: as a public "
                f"prompt (--public-prompt) they are computed once, which saves {saves:,} tokens"
            ),
            saves=saves,
            calls=sum(prompt.tokens[: len(prefix)] == prefix for prompt in evidence.prompts),
            examples=(evidence.quote(prefix),),
        )


def _widest(prompts: Sequence[Prompt]) -> tuple[tuple[int, ...], int] | None:
    """The prefix of which most tokens are computed for several namespaces, and for how many."""
    bare = [Prompt(prompt.tokens, (), PUBLIC) for prompt in prompts]
    best: tuple[int, tuple[int, ...], int] | None = None
    for node, own in passing(build_trees(bare), bare).items():
        spaces = len({prompts[index].salt for index in own})
        saved = (spaces - 1) * node.end
        if node.end >= LEAST_RUN and spaces > 1 and (best is None or saved > best[0]):
            best = (saved, prompts[own[0]].tokens[: node.end], spaces)
    return None if best is None else best[1:]


def tokenized_anew(evidence: Evidence) -> Iterator[Advice]:
    """Outputs that come back as text in a later prompt, and get other tokens there than they had."""
    bare = [Prompt(prompt.tokens, (), prompt.salt) for prompt in evidence.prompts]
    roots = build_trees(bare)
    ended: dict[TreeNode, list[int]] = {}
    changed: dict[int, list[int]] = {}
    examples: list[str] = []
    for later, prompt in enumerate(evidence.prompts):
        path = path_to(roots[prompt.salt], prompt.tokens)
        for before in (evidence.prompts[index] for node in reversed(path[:-1]) for index in ended.get(node, ())):
            found = _spelled_anew(evidence, before, prompt.tokens)
            if found is not None:
                changed[later], example = found
                examples.append(example)
                break
        if any(prompt.outputs):
            ended.setdefault(path[-1], []).append(later)
    if not changed:
        return
    saves = evidence.saves(changed)
    if saves >= max(1, evidence.least // 2):
        yield Advice(
            kind="tokenized_anew",
            text=(
                f"{len(changed):,} prompts hold an earlier output as text that is tokenized otherwise than it was generated; sending its "
                f"token ids back (or a server that keeps them, which ours does for conversations) saves {saves:,} tokens"
            ),
            saves=saves,
            calls=len(changed),
            examples=tuple(dict.fromkeys(examples))[:4],
        )


def _spelled_anew(evidence: Evidence, before: Prompt, tokens: tuple[int, ...]) -> tuple[list[int], str] | None:
    """``tokens`` with an output of ``before`` in the tokens that it was generated with; None where they are those already."""
    rest = tokens[len(before.tokens) :]
    for output in before.outputs:
        kept = [token for token in output if token not in evidence.tokenizer.special_ids]
        data = evidence.data(kept)
        if not data or list(rest[: len(kept)]) == kept:
            continue
        size = 0
        for count, token in enumerate(rest, 1):
            size += len(evidence.token_data(token))
            if size == len(data) and evidence.data(rest[:count]) == data:
                return [*before.tokens, *kept, *rest[count:]], evidence.quote(kept)
            if size >= len(data):
                break
    return None


def came_together(evidence: Evidence, computed: Sequence[int]) -> Iterator[Advice]:
    """Prompts that computed the same tokens because they were computed in one step, where whole blocks only are shared.

    ``computed``: of each prompt, in the plan.
    """
    alone = computed_tokens(evidence.prompts, evidence.block_size)
    twice = {index: have - need for index, (have, need) in enumerate(zip(computed, alone, strict=True)) if have > need}
    # What others computed less counts against it: who comes first differs from one order to another.
    saves = sum(computed) - sum(alone)
    if saves < evidence.least or not twice:
        return
    short = sum(len(evidence.prompts[index].tokens) < evidence.block_size for index in twice)
    about = f", {short:,} of them shorter than a block of {evidence.block_size}" if short else ""
    yield Advice(
        kind="came_together",
        text=(
            f"{len(twice):,} prompts{about} were computed beside others that begin like them, and in one step only whole blocks are "
            f"shared; sending one of them first (a fork with hints does) saves {saves:,} tokens"
        ),
        saves=saves,
        calls=len(twice),
        examples=tuple(evidence.quote(evidence.prompts[index].tokens) for index in list(twice)[:2]),
    )
