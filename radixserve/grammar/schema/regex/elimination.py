"""From an automaton back to an expression: minimal states first, then state by state elimination (Brzozowski and McCluskey)."""

from __future__ import annotations

from collections.abc import Callable

from radixserve.grammar.schema.limits import Budget
from radixserve.grammar.schema.regex.automaton import Dfa
from radixserve.grammar.schema.regex.text import write
from radixserve.grammar.schema.regex.tree import EMPTY, NOTHING, Chars, Concat, Either, Regex, Repeat, union

_MAX_STATES = 600

_Edge = tuple[Regex, int]


class TooLong(ValueError):
    """The expression would be longer than the limits allow."""


def expression(dfa: Dfa, wanted: Callable[[frozenset[int]], bool], budget: Budget) -> Regex:
    """An expression for exactly the strings whose labels are ``wanted``, whole strings, without anchors.

    Raises `TooLong`. It is `NOTHING` when there are none.
    """
    accepting = [wanted(labels) for labels in dfa.labels]
    block = _minimal(dfa, accepting, budget)
    count = max(block) + 1
    edges: dict[int, dict[int, Regex]] = {state: {} for state in range(count)}
    final: set[int] = set()
    for state, name in enumerate(block):
        if accepting[state]:
            final.add(name)
        if edges[name]:
            continue
        targets: dict[int, list[int]] = {}
        for kind, target in enumerate(dfa.delta[state]):
            targets.setdefault(block[target], []).append(kind)
        edges[name] = {to: Chars(union(*(dfa.classes[kind] for kind in kinds))) for to, kinds in targets.items()}
    live = _leading_to(edges, final)
    if block[0] not in live:
        return NOTHING
    return _eliminate({a: {b: r for b, r in out.items() if b in live} for a, out in edges.items() if a in live},
                      block[0], final, budget)  # fmt: skip


def _minimal(dfa: Dfa, accepting: list[bool], budget: Budget) -> list[int]:
    """Moore's partition refinement: equivalent states get the same number."""
    block = [int(flag) for flag in accepting]
    if len(set(block)) == 1:
        return [0] * len(block)
    count = 2
    while True:
        budget.spend("steps", 1 + len(block) * len(dfa.classes) // 16)
        names: dict[tuple[int, ...], int] = {}
        block = [
            names.setdefault((block[state], *(block[target] for target in dfa.delta[state])), len(names))
            for state in range(len(block))
        ]
        if len(names) == count:
            return block
        count = len(names)


def _leading_to(edges: dict[int, dict[int, Regex]], final: set[int]) -> set[int]:
    into: dict[int, set[int]] = {}
    for state, out in edges.items():
        for target in out:
            into.setdefault(target, set()).add(state)
    live, waiting = set(final), list(final)
    while waiting:
        for state in into.get(waiting.pop(), ()):
            if state not in live:
                live.add(state)
                waiting.append(state)
    return live


def _eliminate(edges: dict[int, dict[int, Regex]], start: int, final: set[int], budget: Budget) -> Regex:
    if len(edges) > _MAX_STATES:
        raise TooLong(f"more than {_MAX_STATES} states")
    first, last = -1, -2
    graph: dict[int, dict[int, _Edge]] = {
        state: {to: (tree, len(write(tree))) for to, tree in out.items()} for state, out in edges.items()
    }
    for state in final:
        graph[state][last] = (EMPTY, 0)
    graph[first] = {start: (EMPTY, 0)}
    graph[last] = {}
    into: dict[int, set[int]] = {state: set() for state in graph}
    for state, out in graph.items():
        for target in out:
            into[target].add(state)
    while len(graph) > 2:
        state = min(
            (name for name in graph if name >= 0),
            key=lambda name: (
                (len(into[name]) - (name in into[name])) * (len(graph[name]) - (name in graph[name])),
                sum(size for _, size in graph[name].values()),
                name,
            ),
        )
        budget.spend("steps", 1 + len(graph) // 8)
        out = graph.pop(state)
        loop = _star(out.pop(state)) if state in out else (EMPTY, 0)
        sources = into.pop(state) - {state}
        for target in out:
            into[target].discard(state)
        for source in sources:
            before = graph[source].pop(state)
            for target, after in out.items():
                through = _join(_join(before, loop), after)
                if through[1] > budget.limits.pattern_length:
                    raise TooLong(f"the rewritten pattern is longer than {budget.limits.pattern_length} characters")
                graph[source][target] = _either(graph[source].get(target), through)
                into[target].add(source)
    return graph[first].get(last, (NOTHING, 0))[0]


def _star(edge: _Edge) -> _Edge:
    tree, size = edge
    if isinstance(tree, Repeat) and tree.low <= 1:
        return (Repeat(tree.part, 0, None), size) if tree.high in (None, 1) else (Repeat(tree, 0, None), size + 5)
    return Repeat(tree, 0, None), size + 5


def _join(a: _Edge, b: _Edge) -> _Edge:
    if a[0] == EMPTY:
        return b
    if b[0] == EMPTY:
        return a
    left = a[0].parts if isinstance(a[0], Concat) else (a[0],)
    right = b[0].parts if isinstance(b[0], Concat) else (b[0],)
    extra = 4 * (isinstance(a[0], Either) + isinstance(b[0], Either))
    return Concat((*left, *right)), a[1] + b[1] + extra


def _either(a: _Edge | None, b: _Edge) -> _Edge:
    if a is None:
        return b
    parts: list[Regex] = []
    optional = False
    for tree in (a[0], b[0]):
        if isinstance(tree, Repeat) and (tree.low, tree.high) == (0, 1):
            optional, tree = True, tree.part
        if tree == EMPTY:
            optional = True
        else:
            parts += [part for part in (tree.parts if isinstance(tree, Either) else (tree,)) if part not in parts]
    classes = [part for part in parts if isinstance(part, Chars)]
    if len(classes) > 1:
        merged = Chars(union(*(part.ranges for part in classes)))
        parts = [merged, *(part for part in parts if not isinstance(part, Chars))]
    tree = parts[0] if len(parts) == 1 else Either(tuple(parts))
    size = a[1] + b[1] + 1
    if optional:
        return (Repeat(tree, 0, 1), size + 5) if not (isinstance(tree, Repeat) and tree.low == 0) else (tree, size)
    return tree, size
