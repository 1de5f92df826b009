"""All prompts and outputs of a plan as one tree of tokens: what was sent how often, and what was drawn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from radixserve.cache.token_key import TOKEN_BYTES, common_tokens, decode_tokens, encode_tokens, key_length
from radixserve.planner.replay import Prompt


@dataclass(slots=True, eq=False)
class TreeNode:
    """An edge: ``key`` holds its tokens, which begin ``start`` tokens from the root.

    ``sent``: in how many prompts it is; ``drawn``: how many outputs it is a part of.
    """

    key: bytes
    start: int
    sent: int = 0
    drawn: int = 0
    children: dict[bytes, TreeNode] = field(default_factory=dict)

    @property
    def length(self) -> int:
        """Tokens of the edge."""
        return key_length(self.key)

    @property
    def end(self) -> int:
        """Tokens from the root to its end."""
        return self.start + self.length

    @property
    def tokens(self) -> list[int]:
        """The edge's token ids."""
        return [int(token) for token in decode_tokens(self.key)]

    def walk(self) -> Iterator[tuple[TreeNode, int]]:
        """This node and all below it with their depth, parents first."""
        waiting: list[tuple[TreeNode, int]] = [(self, 0)]
        while waiting:
            node, depth = waiting.pop()
            yield node, depth
            waiting += [(child, depth + 1) for child in reversed(node.children.values())]


def build_trees(prompts: Iterable[Prompt]) -> dict[bytes, TreeNode]:
    """Namespace -> root, whose edge is empty. Children stand in the order in which they came."""
    roots: dict[bytes, TreeNode] = {}
    for prompt in prompts:
        root = roots.setdefault(prompt.salt, TreeNode(b"", 0))
        key = encode_tokens(prompt.tokens)
        root.sent += 1
        end = _extend(root, key, sent=1)
        for output in prompt.outputs:
            if output:
                _extend(end, encode_tokens(output), drawn=1)
    return roots


def path_to(root: TreeNode, tokens: tuple[int, ...]) -> list[TreeNode]:
    """The nodes that ``tokens``, a prompt of the tree, pass."""
    key, at, node = encode_tokens(tokens), 0, root
    path = []
    while at < len(key):
        node = node.children[key[at : at + TOKEN_BYTES]]
        path.append(node)
        at += len(node.key)
    return path


def passing(roots: Mapping[bytes, TreeNode], prompts: Sequence[Prompt]) -> dict[TreeNode, list[int]]:
    """Node -> the indices of the prompts of the tree that go through it, in order; the roots are passed by all of theirs."""
    found: dict[TreeNode, list[int]] = {}
    for index, prompt in enumerate(prompts):
        root = roots[prompt.salt]
        for node in (root, *path_to(root, prompt.tokens)):
            found.setdefault(node, []).append(index)
    return found


def _extend(node: TreeNode, key: bytes, *, sent: int = 0, drawn: int = 0) -> TreeNode:
    """Count ``key`` below ``node``; the node at its end, where an edge now ends."""
    at = 0
    while at < len(key):
        first = key[at : at + TOKEN_BYTES]
        child = node.children.get(first)
        if child is None:
            child = node.children[first] = TreeNode(key[at:], node.end)
        else:
            shared = common_tokens(child.key, key[at : at + len(child.key)]) * TOKEN_BYTES
            if shared < len(child.key):
                child = _split(node, child, shared)
        child.sent += sent
        child.drawn += drawn
        node, at = child, at + len(child.key)
    return node


def _split(parent: TreeNode, child: TreeNode, shared: int) -> TreeNode:
    upper = TreeNode(child.key[:shared], child.start, child.sent, child.drawn)
    parent.children[upper.key[:TOKEN_BYTES]] = upper
    child.start += key_length(upper.key)
    child.key = child.key[shared:]
    upper.children[child.key[:TOKEN_BYTES]] = child
    return upper
