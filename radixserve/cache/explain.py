"""Why a prompt does not hit more of the cache than it does."""

from __future__ import annotations

from radixserve.cache.ghosts import GhostLog
from radixserve.cache.namespace import Namespace
from radixserve.cache.node import Match
from radixserve.cache.radix_tree import RadixTree
from radixserve.cache.token_key import Key, key_length
from radixserve.messages import Explanation


def explain_miss(
    tree: RadixTree, ghosts: GhostLog, namespace: Namespace, key: Key, allowed: int, *, see_all: bool
) -> Explanation:
    """The explanation for a prompt of which at most ``allowed`` tokens may be served from the cache.

    ``see_all``: the operator's view, which may tell that another namespace holds more.
    """
    total = key_length(key)
    root = tree.root(namespace.tree)
    match = tree.match(root, namespace.salt, key, total)
    cached = tree.match(root, namespace.salt, key, allowed).total
    if match.total > allowed:
        why = "the last token is always computed, its logits are needed"
        if allowed < total - 1:
            why = "logprobs or hidden states of prompt tokens are wanted from here on"
        return Explanation("capped", cached, cached, total, why)
    remembered, ghost = ghosts.find(namespace.tree, namespace.salt, key)
    if ghost is not None and remembered > match.total:
        return Explanation("pending_failed" if ghost.failed else "evicted", cached, cached, total, ghost.detail)
    if see_all and _held_elsewhere(tree, key) > match.total:
        return Explanation("namespace", cached, cached, total, "another namespace holds more of this prompt")
    if match.total and _continues(match, namespace.salt):
        return Explanation(
            "diverged", cached, cached, total, f"what is cached goes on differently after {cached} tokens"
        )
    if cached:
        return Explanation("never_seen", cached, cached, total, f"nothing was cached beyond these {cached} tokens")
    return Explanation("never_seen", 0, 0, total, "no prompt that begins like this was cached")


def held_tokens(match: Match) -> int:
    """How many of the matched tokens are held, and so do not go before their hold does."""
    if match.tail_node is not None and match.tail_node.holds:
        return match.total
    held = [node for node in match.node.path() if node.holds]
    return min(held[-1].end, match.length) if held else 0


def _continues(match: Match, salt: bytes) -> bool:
    """Whether what is held goes on after the match, with other tokens."""
    if match.tail_node is not None:
        tail = match.tail_node
        held = tail.end if tail.start <= match.length < tail.end else match.length
        return match.total < held
    if match.length < match.node.end:
        return True
    return any(key[0] in (b"", salt) for key in match.node.children or ())


def _held_elsewhere(tree: RadixTree, key: Key) -> int:
    best = 0
    for root in tree.roots().values():
        # What a tenant holds hangs from the root or from the public path that these tokens take.
        public = tree.match(root, b"", key, key_length(key)).node.path()
        salts = {child_key[0] for node in [root, *public] for child_key in node.children or ()} | {b""}
        for salt in salts:
            best = max(best, tree.match(root, salt, key, key_length(key)).total)
    return best
