"""What a cache without end would have left to compute: the mark that a program's hits are measured against.

Definition. Take the calls of a program (or of all programs of a batch) in the order in which they ended; a call that uses the
output of another comes after it, and the order of others hardly matters. Such a cache keeps the KV of every token ever
computed, by the token and all that stand before it. After a generation it knows the prompt and each output without its last
token, whose KV nothing has needed yet. Of a call, then, ``needed`` is

- for a generation: its prompt's tokens after the longest prefix known before the call, and at least one, because the logits of the
  last one are what the first output token is drawn from. Samples of one call share their prompt.
- for a choice among continuations: the edges that they add to the tree, each continuation without its last token (the likelihood
  of a token is read where the one before it is computed), and at least one.

Calls that wait for nothing of each other share as if one had computed what they have in common before the others were sent. So
the sum of ``needed`` is the number of distinct edges in the tree of all prompts, less those that outputs had already
drawn, plus one for each prompt that was known whole. No engine computes less for the same calls, unless its cache was warm before.

Holds are left out: nothing is asked of the model in them. What they compute counts as computed, but never as needed.
"""

from __future__ import annotations

from collections.abc import Sequence

from radixlang.token_keys import WIDTH, TokenKey, common_tokens


class _Node:
    __slots__ = ("children", "edge")

    def __init__(self, edge: TokenKey) -> None:
        self.edge = edge
        self.children: dict[bytes, _Node] = {}


class TokenTrie:
    """A set of token sequences that holds all their prefixes too; path-compressed.

    An insertion costs a dictionary lookup for each edge on its way and one comparison of its bytes.
    """

    def __init__(self) -> None:
        self._root = _Node(b"")
        self._tokens = 0

    def __len__(self) -> int:
        """Distinct prefixes that are not empty; that is, edges of the tree before compression."""
        return self._tokens

    def insert(self, key: TokenKey) -> int:
        """Add a sequence; how many of its tokens, from the first, were there before."""
        node, at = self._root, 0
        while at < len(key):
            first = key[at : at + WIDTH]
            child = node.children.get(first)
            if child is None:
                node.children[first] = _Node(key[at:])
                self._tokens += (len(key) - at) // WIDTH
                break
            if not key.startswith(child.edge, at):
                shared = common_tokens(child.edge, key[at : at + len(child.edge)]) * WIDTH
                child = _split(node, child, shared)
            node, at = child, at + len(child.edge)
        return at // WIDTH


def _split(parent: _Node, child: _Node, shared: int) -> _Node:
    """Put a node on the edge to ``child``, ``shared`` bytes down; the new node."""
    upper = _Node(child.edge[:shared])
    parent.children[upper.edge[:WIDTH]] = upper
    child.edge = child.edge[shared:]
    upper.children[child.edge[:WIDTH]] = child
    return upper


class Optimum:
    """The cache of the definition above; give it the calls in order."""

    def __init__(self) -> None:
        self._trie = TokenTrie()

    def generate(self, prompt: TokenKey, outputs: Sequence[TokenKey]) -> int:
        """A generation: how many tokens of ``prompt``, at least 1, it needed to compute. ``outputs``: all tokens of each sample."""
        known = self._trie.insert(prompt)
        for output in outputs:
            self._trie.insert(prompt + output[:-WIDTH])
        return max(len(prompt) // WIDTH - known, 1)

    def score(self, prompt: TokenKey, continuations: Sequence[TokenKey]) -> int:
        """The likelihoods of ``continuations``, none of them empty: how many tokens, at least 1, they needed to compute."""
        before = len(self._trie)
        for continuation in continuations:
            self._trie.insert(prompt + continuation[:-WIDTH])
        return max(len(self._trie) - before, 1)
