"""The radix tree as an operator or a tenant may see it."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

from radixserve.cache.node import Node
from radixserve.cache.prefix_cache import PrefixCache
from radixserve.cache.token_key import decode_tokens, key_slice
from radixserve.engine.client import CacheNode, CacheView

# Below this the view goes no deeper: what shows it nests as deeply as it does.
MAX_DEPTH = 200


@dataclass(slots=True, eq=False)
class _Shown:
    node: Node
    depth: int
    children: list[_Shown] = field(default_factory=list)


def view_cache(cache: PrefixCache, salt: bytes | None, *, max_nodes: int, max_tokens: int) -> CacheView:
    """What a request with ``salt`` could find (None: all there is, with salts), level by level from the roots.

    At most ``max_nodes`` nodes, ``max_tokens`` token ids of each. What it costs depends on these bounds, not on the tree.
    """
    top: list[_Shown] = []
    shown: list[_Shown] = []
    left_out = 0
    waiting: deque[tuple[Node, int, list[_Shown]]] = deque((root, 0, top) for root in cache.tree.roots().values())
    while waiting:
        parent, depth, siblings = waiting.popleft()
        room = max_nodes - len(shown) if depth < MAX_DEPTH else 0
        children, hidden = cache.tree.visible_children(parent, salt, room)
        left_out += hidden
        for child in children:
            entry = _Shown(child, depth)
            siblings.append(entry)
            shown.append(entry)
            waiting.append((child, depth + 1, entry.children))
    now = time.monotonic()
    built: dict[int, CacheNode] = {}
    for entry in reversed(shown):  # children come after their parents
        node = entry.node
        built[id(entry)] = CacheNode(
            token_ids=decode_tokens(key_slice(node.data, 0, min(max_tokens, node.length))).tolist(),
            num_tokens=node.length,
            num_blocks=len(node.blocks),
            locks=node.lock,
            idle_s=cache.access_times.idle(node.last_access, now),
            hits=node.hits,
            pending=bool(node.pending),
            tail=node.length % cache.block_size != 0,
            salt=node.salt if salt is None else None,
            children=[built.pop(id(child)) for child in entry.children],
        )
    return CacheView(
        nodes=[built[id(entry)] for entry in top],
        num_nodes=len(shown),
        num_tokens=sum(entry.node.length for entry in shown),
        num_blocks=sum(len(entry.node.blocks) for entry in shown),
        left_out=left_out,
    )
