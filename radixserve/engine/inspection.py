"""What can be seen of a running engine: the radix tree as an operator or a tenant may see it, and numbers."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import asdict, dataclass, field
from typing import Any

from radixserve.cache.node import Node
from radixserve.cache.prefix_cache import PrefixCache
from radixserve.cache.token_key import decode_tokens, key_slice
from radixserve.engine.client import CacheNode, CacheView
from radixserve.engine.step_stats import StepStats
from radixserve.scheduler.scheduler import Scheduler

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
            holds=node.holds,
            children=[built.pop(id(child)) for child in entry.children],
        )
    return CacheView(
        nodes=[built[id(entry)] for entry in top],
        num_nodes=len(shown),
        num_tokens=sum(entry.node.length for entry in shown),
        num_blocks=sum(len(entry.node.blocks) for entry in shown),
        left_out=left_out,
    )


def engine_stats(cache: PrefixCache, scheduler: Scheduler, steps: StepStats) -> dict[str, Any]:
    """Gauges and counters of cache, scheduler and steps."""
    counters = asdict(cache.stats)
    queried = counters["queried_tokens"]
    return {
        "blocks": {
            "total": cache.pool.total,
            "free": cache.pool.num_free,
            "tree": cache.pool.num_tree,
            "evictable": cache.tree.evictable_blocks,
            "private": cache.pool.num_private,
            "retired": cache.pool.num_retired,
        },
        "holds": {"count": len(cache.holds), "blocks": cache.holds.num_blocks, **asdict(cache.holds.stats)},
        "nodes": cache.tree.num_nodes,
        "ghosts": len(cache.ghosts),
        "hit_rate": counters["hit_tokens"] / queried if queried else 0.0,
        "cache": counters,
        "scheduler": {**asdict(scheduler.stats), "finished": dict(scheduler.stats.finished)},
        "running": len(scheduler.running),
        "waiting": len(scheduler.waiting),
        "expected_output_share": scheduler.estimate,
        "steps": steps.report(),
    }
