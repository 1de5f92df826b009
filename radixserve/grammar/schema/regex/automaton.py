"""Finite automata over characters: matching, deciding about, and rewriting of combinations of patterns.

Patterns *search*: they match a string when they match anywhere in it. ``^`` and ``$`` are transitions that are open only before the
first character and after the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from radixserve.grammar.schema.limits import Budget
from radixserve.grammar.schema.regex.tree import (
    ALL,
    ANY,
    Chars,
    Concat,
    Edge,
    Either,
    Ranges,
    Regex,
    Repeat,
    UnsupportedPattern,
    union,
)

_Closure = tuple[int, ...]


class Nfa:
    """Thompson's construction for several expressions at once; expression ``i`` accepts with label ``i``."""

    def __init__(self, trees: Iterable[Regex], budget: Budget) -> None:
        self._budget = budget
        self._free: list[list[int]] = []
        self._edges: list[list[tuple[bool, int]]] = []
        self.moves: list[list[tuple[Chars, int]]] = []
        self._start = self._new()
        self._accepts: dict[int, int] = {}
        for label, tree in enumerate(trees):
            head, body = self._new(), self._new()
            self._free[self._start].append(head)
            self.moves[head].append((ANY, head))
            self._free[head].append(body)
            end = self._add(tree, body)
            tail = self._new()
            self._free[end].append(tail)
            self.moves[tail].append((ANY, tail))
            self._accepts[tail] = label

    def initial(self) -> _Closure:
        """The states before the first character."""
        return self._close([self._start], at_start=True)

    def step(self, states: _Closure, inside: Callable[[Chars], bool]) -> _Closure:
        """The states after a character for which ``inside`` says whether it is one of a class."""
        return self._close([to for state in states for chars, to in self.moves[state] if inside(chars)])

    def labels(self, states: _Closure, *, at_start: bool) -> frozenset[int]:
        """The expressions that match a string that ends here."""
        final = self._close(states, at_start=at_start, at_end=True)
        return frozenset(self._accepts[state] for state in final if state in self._accepts)

    def match(self, text: str) -> frozenset[int]:
        """The expressions that ``text`` matches."""
        states = self.initial()
        for char in text:
            code = ord(char)
            states = self.step(states, lambda chars, code=code: any(a <= code <= b for a, b in chars.ranges))  # type: ignore[misc]
        return self.labels(states, at_start=not text)

    def _new(self) -> int:
        self._budget.spend("steps")
        self._free.append([])
        self._edges.append([])
        self.moves.append([])
        return len(self._free) - 1

    def _add(self, tree: Regex, start: int) -> int:
        if isinstance(tree, Chars):
            end = self._new()
            self.moves[start].append((tree, end))
        elif isinstance(tree, Edge):
            end = self._new()
            self._edges[start].append((tree.start, end))
        elif isinstance(tree, Concat):
            end = start
            for part in tree.parts:
                end = self._add(part, end)
        elif isinstance(tree, Either):
            end = self._new()
            for part in tree.parts:
                self._free[self._add(part, self._enter(start))].append(end)
        elif isinstance(tree, Repeat):
            end = self._repeat(tree, start)
        else:
            raise UnsupportedPattern("a lookahead that is not at the start")
        return end

    def _enter(self, state: int) -> int:
        inner = self._new()
        self._free[state].append(inner)
        return inner

    def _repeat(self, tree: Repeat, start: int) -> int:
        at = self._enter(start)
        for _ in range(tree.low):
            at = self._add(tree.part, at)
        if tree.high is None:
            loop = self._enter(at)
            self._free[self._add(tree.part, loop)].append(loop)
            return self._enter(loop)
        end = self._new()
        for _ in range(tree.high - tree.low):
            self._free[at].append(end)
            at = self._add(tree.part, self._enter(at))
        self._free[at].append(end)
        return end

    def _close(self, states: Iterable[int], *, at_start: bool = False, at_end: bool = False) -> _Closure:
        seen = set(states)
        waiting = list(seen)
        while waiting:
            state = waiting.pop()
            for target in self._free[state]:
                if target not in seen:
                    seen.add(target)
                    waiting.append(target)
            for is_start, target in self._edges[state]:
                if (at_start if is_start else at_end) and target not in seen:
                    seen.add(target)
                    waiting.append(target)
        self._budget.spend("steps", 1 + len(seen) // 16)
        return tuple(sorted(seen))


@dataclass(frozen=True, slots=True)
class Dfa:
    """``delta[state][class]`` is the next state, ``classes`` says which characters make a class, ``labels[state]`` which
    expressions accept there. State 0 is the first one; every state can be reached from it.
    """

    classes: tuple[Ranges, ...]
    delta: tuple[tuple[int, ...], ...]
    labels: tuple[frozenset[int], ...]


def determinize(trees: Sequence[Regex], budget: Budget) -> Dfa:
    """One automaton that tells for every string which of ``trees`` it matches."""
    nfa = Nfa(trees, budget)
    sets = list(dict.fromkeys(chars.ranges for moves in nfa.moves for chars, _ in moves))
    classes = _partition(sets)
    signatures = list(classes)
    position = {ranges: index for index, ranges in enumerate(sets)}
    first = (True, nfa.initial())
    index = {first: 0}
    order = [first]
    delta: list[tuple[int, ...]] = []
    labels: list[frozenset[int]] = []
    for at_start, states in order:
        labels.append(nfa.labels(states, at_start=at_start))
        row = []
        for signature in signatures:
            target = (False, nfa.step(states, lambda chars, s=signature: bool(s >> position[chars.ranges] & 1)))  # type: ignore[misc]
            if target not in index:
                index[target] = len(order)
                order.append(target)
            row.append(index[target])
        delta.append(tuple(row))
    return Dfa(tuple(classes.values()), tuple(delta), tuple(labels))


def _partition(sets: Sequence[Ranges]) -> dict[int, Ranges]:
    """The coarsest classes of characters that every set is made of, by which sets they are in (a bit mask)."""
    toggles: dict[int, int] = {}
    valid = 1 << len(sets)
    for mask, ranges in [(valid, ALL), *((1 << index, ranges) for index, ranges in enumerate(sets))]:
        for low, high in ranges:
            toggles[low] = toggles.get(low, 0) ^ mask
            toggles[high + 1] = toggles.get(high + 1, 0) ^ mask
    classes: dict[int, list[tuple[int, int]]] = {}
    mask, before = 0, 0
    for at in sorted(toggles):
        if mask & valid and at > before:
            classes.setdefault(mask & ~valid, []).append((before, at - 1))
        mask ^= toggles[at]
        before = at
    return {mask: union(tuple(ranges)) for mask, ranges in classes.items()}
