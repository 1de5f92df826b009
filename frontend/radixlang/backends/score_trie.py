"""How likely several continuations of one prompt are, by the fewest requests: each edge of their trie is computed once.

The continuations' tokens make a trie. A request whose prompt goes down to one of its nodes tells, at every place on the
way, how likely the prompt's own next token is and how likely those are that branch off there; a token is drawn at the
end, which nobody wants, so that the last place is told without computing what comes after it. One request goes from the root down
the longest way; what branches off is asked for when that is done, from the place where it branches off on, since all before
is in the cache by then. So choices of one token each are one request that computes one position, and the number
of requests one after the other grows with the logarithm of the number of choices.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from radixlang.backends.base import Continuations, Usage
from radixlang.errors import InvalidProgram

# What radixserve takes of token ids in one request.
MAX_ASKED = 128


@dataclass(frozen=True, slots=True)
class Question:
    """One request: draw one token after ``token_ids``, and tell logprobs at places ``start`` to ``len(token_ids)``.

    Place ``i`` is where the token after the first ``i`` is chosen. At each, the logprobs of ``asked`` are wanted and, but for the
    last place, that of ``token_ids[i]``.
    """

    token_ids: tuple[int, ...]
    start: int
    asked: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """Token id -> logprob at each place of a question, from its ``start`` on."""

    places: tuple[Mapping[int, float], ...]
    usage: Usage


# Answers questions that are asked together, in their order.
Ask = Callable[[Sequence[Question]], Awaitable[Sequence[Answer]]]


@dataclass(slots=True, eq=False)
class _Node:
    """Where the token of ``depth`` (counted from the prompt's end) is chosen; ``height``: of the places below it."""

    depth: int
    children: dict[int, _Node] = field(default_factory=dict)
    logprobs: dict[int, float] = field(default_factory=dict)
    height: int = 0

    def deepest(self) -> tuple[int, _Node] | None:
        """The child below which most is left to ask; None if nothing is."""
        inner = ((token, child) for token, child in self.children.items() if child.children)
        return max(inner, key=lambda item: item[1].height, default=None)


async def score(ask: Ask, token_ids: Sequence[int], continuations: Sequence[Sequence[int]]) -> Continuations:
    """The logprobs of ``continuations`` after ``token_ids``, which are not empty. What ``ask`` raises is raised."""
    if not continuations or not all(continuations):
        raise InvalidProgram("continuations", "must hold at least one token each")
    began = time.perf_counter()
    root = _trie(continuations)
    usages: list[Usage] = []
    wave = [_Way.down(root, tuple(token_ids))]
    while wave:
        answers = await ask([way.question for way in wave])
        for way, answer in zip(wave, answers, strict=True):
            usages.append(answer.usage)
            for node, told in zip(way.nodes, answer.places, strict=True):
                node.logprobs.update(told)
        wave = [following for way in wave for following in way.following()]
    return Continuations(
        token_ids=tuple(tuple(item) for item in continuations),
        logprobs=tuple(tuple(_along(root, item)) for item in continuations),
        usage=_total(usages, len(token_ids) + _inner_edges(root), time.perf_counter() - began),
    )


@dataclass(frozen=True, slots=True)
class _Way:
    """One question, and the nodes that are its places.

    ``left``: at some of the places, tokens that are too many to be asked for in the same question. ``branches``: whether what
    branches off is asked for after it.
    """

    nodes: tuple[_Node, ...]
    question: Question
    left: tuple[tuple[int, tuple[int, ...]], ...] = ()
    branches: bool = True

    @classmethod
    def down(cls, node: _Node, prefix: tuple[int, ...]) -> _Way:
        """From ``node``, to which ``prefix`` leads, down the longest way."""
        nodes, path = [node], list[int]()
        while (step := nodes[-1].deepest()) is not None:
            path.append(step[0])
            nodes.append(step[1])
        asked: dict[int, None] = {}
        left = []
        for place, here in enumerate(nodes):
            others = [token for token in here.children if token not in asked and token not in path[place : place + 1]]
            room = MAX_ASKED - len(asked)
            asked.update(dict.fromkeys(others[:room]))
            if others[room:]:
                left.append((place, tuple(others[room:])))
        return cls(tuple(nodes), Question((*prefix, *path), len(prefix), tuple(asked)), tuple(left))

    def following(self) -> Iterator[_Way]:
        """What remains to be asked once this is answered."""
        prompt, start = self.question.token_ids, self.question.start
        for place, tokens in self.left:
            here = prompt[: start + place]
            for first in range(0, len(tokens), MAX_ASKED):
                question = Question(here, len(here), tokens[first : first + MAX_ASKED])
                yield _Way((self.nodes[place],), question, branches=False)
        if not self.branches:
            return
        for place, (node, below) in enumerate(zip(self.nodes, (*self.nodes[1:], None), strict=True)):
            for token, child in node.children.items():
                if child.children and child is not below:
                    yield _Way.down(child, (*prompt[: start + place], token))


def _trie(continuations: Sequence[Sequence[int]]) -> _Node:
    root = _Node(0)
    for tokens in continuations:
        nodes = [root]
        for token in tokens:
            nodes.append(nodes[-1].children.setdefault(token, _Node(nodes[-1].depth + 1)))
        for node in nodes:
            node.height = max(node.height, len(tokens) - node.depth)
    return root


def _inner_edges(root: _Node) -> int:
    """Tokens that something comes after: those whose KV the scores need."""
    waiting, count = [root], 0
    while waiting:
        inner = [child for child in waiting.pop().children.values() if child.children]
        count += len(inner)
        waiting += inner
    return count


def _along(root: _Node, tokens: Sequence[int]) -> Iterator[float]:
    node = root
    for token in tokens:
        yield node.logprobs[token]
        node = node.children[token]


def _total(usages: Sequence[Usage], prompt: int, wall_s: float) -> Usage:
    """Of all requests together, as one: what they drew is no output of the program's, and ``prompt`` tokens, each counted once however
    many requests it was in, are what had to be known.
    """
    told = [usage.computed for usage in usages if usage.computed is not None]
    computed = sum(told) if len(told) == len(usages) else None
    return Usage(
        prompt=prompt,
        cached=None if computed is None else max(0, prompt - computed),
        computed=computed,
        forced=0,
        wall_s=wall_s,
        queue_s=usages[0].queue_s,
        first_token_s=usages[0].first_token_s,
    )
