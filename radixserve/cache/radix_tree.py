"""A path-compressed radix tree over token sequences whose nodes own KV blocks.

::

    root ── [ 62 blocks: system prompt ] ─┬─ [ 3 blocks: question A ] ── [ tail: 5 tokens ]
                                          └─ [ 2 blocks: question B ]

* An edge holds a whole number of blocks; a *tail* is a leaf whose single block is not full.
* Splits happen at block boundaries only. A split keeps the lower part's identity, so leases on it stay right.
* Children are kept in lexicographic order of (salt, first block): an exact child is a dictionary lookup, and the
  child that shares most tokens inside a block is a neighbour of the insertion point.
* Siblings never extend one another: no tail is a proper prefix of a sibling.
* A lock on a node is counted on its whole path, so an unlocked node has no locked descendant, and every block of an
  unlocked node can be evicted.

The tree knows no pool and no request: it is given block ids and gives them back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sortedcontainers import SortedDict

from radixserve.cache.eviction import EvictionPolicy
from radixserve.cache.node import ChildKey, Eviction, Match, Node, TreeObserver
from radixserve.cache.node_locks import NodeLocks
from radixserve.cache.token_key import Key, common_tokens, key_length, key_slice


class RadixTree(NodeLocks):
    """Radix trees for any number of (model, adapter) pairs over blocks of ``block_size`` tokens."""

    def __init__(self, block_size: int, policy: EvictionPolicy) -> None:
        super().__init__(policy)
        self.block_size = block_size
        self.num_blocks = 0
        self.num_nodes = 0
        self.observer: TreeObserver | None = None
        self._roots: dict[tuple[str, str], Node] = {}

    # ---------------------------------------------------------------- look

    def root(self, tree: tuple[str, str]) -> Node:
        """The root for a (model, adapter) pair, made at first use."""
        node = self._roots.get(tree)
        if node is None:
            node = self._roots[tree] = Node(None, b"", b"", [], 0)
        return node

    def roots(self) -> dict[tuple[str, str], Node]:
        """All roots by (model, adapter)."""
        return dict(self._roots)

    def nodes(self) -> Iterator[Node]:
        """Every node but the roots, parents first."""
        stack = list(self._roots.values())
        while stack:
            node = stack.pop()
            if node.parent is not None:
                yield node
            if node.children:
                stack.extend(node.children.values())

    def match(self, start: Node, salt: bytes, key: Key, limit: int) -> Match:
        """Longest prefix of the first ``limit`` tokens of ``key`` below ``start``, whose own path is known to match.

        ``salt``: nodes of this salt are seen, and public ones as long as the path is public. Of a salted and a public
        continuation the one that reaches further is taken, the public one if they tie.
        """
        best: Match | None = None
        node, length = start, start.end
        while length + self.block_size <= limit:
            block = key_slice(key, length, length + self.block_size)
            options = self.children_with(node, salt, block)
            if not options:
                break
            if len(options) == 2:
                # Below a salted node all is of its salt: this does not branch again.
                salted = self._enter(options[1], salt, key, limit)
                if best is None or salted.total >= best.total:
                    best = salted
            child = options[0]
            length = self._follow(child, key, limit)
            node = child
            if length < child.end:
                break
        match = self._with_tail(node, length, salt, key, limit)
        return match if best is None or match.total >= best.total else best

    def _enter(self, child: Node, salt: bytes, key: Key, limit: int) -> Match:
        length = self._follow(child, key, limit)
        if length < child.end:
            return self._with_tail(child, length, salt, key, limit)
        return self.match(child, salt, key, limit)

    def children_with(self, node: Node, salt: bytes, block: bytes) -> list[Node]:
        """Children that begin with ``block`` and are seen under ``salt``, the public one first."""
        children = node.children
        if not children:
            return []
        found = []
        if node.salt == b"" and (child := children.get((b"", block))) is not None:
            found.append(child)
        if salt and (child := children.get((salt, block))) is not None:
            found.append(child)
        return found

    def visible_children(self, node: Node, salt: bytes | None, most: int) -> tuple[list[Node], int]:
        """Up to ``most`` children that are seen under ``salt`` (None: all), in order, and how many more there are."""
        children = node.children
        if not children:
            return [], 0
        if salt is None:
            ranges = [(0, len(children))]
        else:
            # Below a salted node all is of its salt.
            salts = {b"", salt} if node.salt == b"" else {node.salt}
            ranges = [
                (children.bisect_left((own, b"")), children.bisect_left((own + b"\0", b""))) for own in sorted(salts)
            ]
        indices = [index for low, high in ranges for index in range(low, min(high, low + most))][:most]
        found = [children.peekitem(index)[1] for index in indices]
        return found, sum(high - low for low, high in ranges) - len(found)

    def _follow(self, child: Node, key: Key, limit: int) -> int:
        """Tokens matched from the root, in whole blocks, along ``child``'s edge whose first block is known to match."""
        size = self.block_size
        usable = min(child.length // size, (limit - child.start) // size) * size
        common = common_tokens(child.data, key_slice(key, child.start, child.start + usable))
        return child.start + common // size * size

    def _with_tail(self, node: Node, length: int, salt: bytes, key: Key, limit: int) -> Match:
        """Complete a match with the committed block that shares most of the tokens after ``length``."""
        rest = key_slice(key, length, min(limit, length + self.block_size))
        if not rest:
            return Match(node, length)
        if length < node.end:
            if node.pending:
                return Match(node, length)
            offset = length - node.start
            common = common_tokens(key_slice(node.data, offset, offset + self.block_size), rest)
            if common == 0:
                return Match(node, length)
            return Match(node, length, node, node.blocks[offset // self.block_size], common)
        best, best_child = 0, None
        salts = [b""] if not salt else ([salt] if node.salt else [b"", salt])
        for section in salts:
            for child in self._neighbours(node, section, rest):
                common = common_tokens(key_slice(child.data, 0, self.block_size), rest)
                if common > best:
                    best, best_child = common, child
        if best_child is None:
            return Match(node, length)
        return Match(node, length, best_child, best_child.blocks[0], best)

    def _neighbours(self, node: Node, salt: bytes, block: bytes) -> Iterator[Node]:
        """The nearest committed children on both sides of where ``block`` would stand, within one salt."""
        children = node.children
        if not children:
            return
        keys = children.keys()
        at = children.bisect_left((salt, block))
        for indices in (range(at - 1, -1, -1), range(at, len(keys))):
            for index in indices:
                child_key = keys[index]
                if child_key[0] != salt:
                    break
                child: Node = children[child_key]
                if not child.pending:
                    yield child
                    break

    # ---------------------------------------------------------------- grow

    def split(self, node: Node, length: int) -> Node:
        """Cut ``node``'s edge ``length`` tokens from the root (a block boundary inside it).

        Returns the new upper node.
        """
        offset = length - node.start
        count = offset // self.block_size
        assert 0 < offset < node.length and offset % self.block_size == 0, (
            "a split is inside an edge, at a block boundary"
        )
        assert node.parent is not None and node.parent.children is not None, "the root is never split"
        upper = Node(node.parent, node.salt, key_slice(node.data, 0, offset), node.blocks[:count], node.start)
        upper.lock, upper.holds, upper.pending = node.lock, node.holds, node.pending
        upper.last_access, upper.hits = node.last_access, node.hits
        node.parent.children[self._child_key(upper)] = upper
        node.data = key_slice(node.data, offset, node.length)
        node.blocks = node.blocks[count:]
        node.start = length
        node.parent = upper
        upper.children = SortedDict({self._child_key(node): node})
        self.num_nodes += 1
        if self.observer:
            self.observer.split(upper, node)
        return upper

    def insert(self, parent: Node, salt: bytes, data: bytes, blocks: Sequence[int]) -> tuple[Node, Node | None]:
        """A new leaf of whole blocks below ``parent``, on which a lease on ``parent`` moves down: it starts with one
        lock.

        No child may begin with its first block. A tail that is a proper prefix of it is replaced. Returns the new node
        and the replaced tail, detached, whose block is the caller's now.
        """
        replaced = None
        if parent.children:
            at = parent.children.bisect_left((salt, key_slice(data, 0, self.block_size)))
            left = parent.children.peekitem(at - 1)[1] if at > 0 else None
            if left is not None and left.salt == salt and left.length < self.block_size and data.startswith(left.data):
                replaced = left
                self._detach(left)
        node = self._attach(parent, salt, data, list(blocks))
        node.lock = 1
        return node, replaced

    def insert_tail(self, parent: Node, salt: bytes, data: bytes, block: int) -> tuple[Node | None, Node | None]:
        """A new unlocked tail of fewer than ``block_size`` tokens below ``parent``.

        Returns (new node, replaced tail); the new node is None, and ``block`` stays the caller's, if a sibling
        already holds these tokens.
        """
        replaced = None
        if parent.children:
            at = parent.children.bisect_left((salt, data))
            for index in (at - 1, at):
                if not 0 <= index < len(parent.children):
                    continue
                sibling: Node = parent.children.peekitem(index)[1]
                if sibling.salt != salt:
                    continue
                if sibling.data.startswith(data):
                    return None, None
                if data.startswith(sibling.data):
                    replaced = sibling
            if replaced is not None:
                self._detach(replaced)
        node = self._attach(parent, salt, data, [block])
        self.evictable_blocks += 1
        self._heap.push(node)
        return node, replaced

    def _attach(self, parent: Node, salt: bytes, data: bytes, blocks: list[int]) -> Node:
        node = Node(parent, salt, data, blocks, parent.end)
        node.last_access = self._tick()
        if parent.children is None:
            parent.children = SortedDict()
        key = self._child_key(node)
        assert key not in parent.children, "a child with this first block exists"
        parent.children[key] = node
        self.num_nodes += 1
        self.num_blocks += len(blocks)
        if self.observer:
            self.observer.child_added(parent, node)
        return node

    def join(self, node: Node) -> None:
        """Merge ``node``, whose KV is in place, with its parent, if every lease on the parent passes through it and nothing else hangs
        there.

        Equal lock counts say just that, since a lock is counted on its whole path.
        """
        parent = node.parent
        assert parent is not None, "the root is never pending"
        if (
            parent.parent is None
            or parent.pending
            or parent.lock != node.lock
            or parent.salt != node.salt
            or parent.children is None
            or len(parent.children) != 1
        ):
            return
        assert parent.parent.children is not None, "a node is a child of its parent"
        node.data = parent.data + node.data
        node.blocks = parent.blocks + node.blocks
        node.start = parent.start
        node.hits = max(node.hits, parent.hits)
        node.parent = parent.parent
        parent.parent.children[self._child_key(node)] = node
        parent.alive = False
        self.num_nodes -= 1
        if self.observer:
            self.observer.merged(parent, node)

    # ---------------------------------------------------------------- shrink

    def evict(self, count: int) -> list[Eviction]:
        """Give back at least ``count`` blocks if that many are unlocked, whole leaves' ends first.

        Else all there are.
        """
        evictions: list[Eviction] = []
        while count > 0:
            node = self._heap.pop()
            if node is None:
                break
            assert not node.pending, "a node is locked until the step that writes it is collected or rolled back"
            eviction = self._trim(node, min(count, len(node.blocks)))
            count -= len(eviction.blocks)
            evictions.append(eviction)
        return evictions

    def remove(self, node: Node) -> Eviction:
        """Remove one unlocked leaf."""
        assert node.evictable, "only an unlocked leaf is removed"
        return self._trim(node, len(node.blocks))

    def remove_salt(self, salt: bytes) -> list[Eviction]:
        """Remove every node of ``salt`` that is not locked."""
        # Children come after their parents, so each is a leaf by the time it is its turn.
        nodes = [node for node in self.nodes() if node.salt == salt]
        return [self.remove(node) for node in reversed(nodes) if node.evictable]

    def _trim(self, node: Node, count: int) -> Eviction:
        """Take ``count`` blocks off the end of an unlocked leaf."""
        path = b"".join(step.data for step in node.path())
        kept = len(node.blocks) - count
        blocks = node.blocks[kept:]
        if kept == 0:
            removed = node.data
            self._detach(node)
            parent = node.parent
            assert parent is not None, "the root is never evicted"
            if parent.evictable:
                self._heap.push(parent)
        else:
            cut = kept * self.block_size
            removed = key_slice(node.data, cut, node.length)
            node.data = key_slice(node.data, 0, cut)
            node.blocks = node.blocks[:kept]
            self.num_blocks -= count
            self.evictable_blocks -= count
            self._heap.push(node)
        if self.observer:
            self.observer.trimmed(node, removed)
        end = key_length(path) - key_length(removed)
        return Eviction(self._tree_of(node), node.salt, path, end, blocks)

    def _detach(self, node: Node) -> None:
        """Unlink a leaf. It keeps its data, its parent and, if locked, its locks, so that a holder can still let go."""
        assert node.parent is not None and node.parent.children is not None, "the root is never detached"
        del node.parent.children[self._child_key(node)]
        node.alive = False
        node.heap_key = None
        self.num_nodes -= 1
        self.num_blocks -= len(node.blocks)
        if node.lock == 0:
            self.evictable_blocks -= len(node.blocks)

    def reattach(self, node: Node) -> bool:
        """Put back a tail that was replaced and is still locked; False if a sibling has its tokens, or their beginning."""
        parent = node.parent
        assert parent is not None and node.lock and not node.alive, "its parent is locked with it, so it is there"
        if parent.children is None:
            parent.children = SortedDict()
        at = parent.children.bisect_left((node.salt, node.data))
        for sibling in parent.children.values()[max(0, at - 1) : at + 1]:
            if sibling.salt == node.salt and (sibling.data.startswith(node.data) or node.data.startswith(sibling.data)):
                return False
        parent.children[self._child_key(node)] = node
        node.alive = True
        self.num_nodes += 1
        self.num_blocks += len(node.blocks)
        if self.observer:
            self.observer.child_added(parent, node)
        return True

    def replacements(self, tail: Node) -> Iterator[Node]:
        """Where a tail was that was replaced: the nodes that begin with its tokens."""
        assert tail.parent is not None and not tail.alive, "asked of tails that were replaced"
        children = tail.parent.children or SortedDict()
        for key in children.irange((tail.salt, tail.data)):
            child: Node = children[key]
            if child.salt != tail.salt or not child.data.startswith(tail.data):
                break
            yield child

    # ---------------------------------------------------------------- inside

    def _child_key(self, node: Node) -> ChildKey:
        return (node.salt, key_slice(node.data, 0, self.block_size))

    def _tree_of(self, node: Node) -> tuple[str, str]:
        step = node
        while step.parent is not None:
            step = step.parent
        return next(name for name, root in self._roots.items() if root is step)
