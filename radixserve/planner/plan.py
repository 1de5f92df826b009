"""What a plan says: tokens, hits, blocks and steps of a program or a log, and what could be better."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import msgspec

from radixlang.report import Report
from radixserve.planner.prompt_tree import TreeNode
from radixserve.planner.trace import Trace


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of tokens.

    ``sent``: of all prompts. ``cached``: of those, found in the cache. ``computed``: prompt tokens that were computed, what was held ahead
    included. ``needed``: the fewest that a cache without end computes for the same calls (edges of the tree of prompts). ``generated``:
    output tokens, ``forced`` of them where a constraint left one choice.
    """

    sent: int
    cached: int
    computed: int
    needed: int
    generated: int
    forced: int

    @property
    def hit_rate(self) -> float:
        """The share of what was sent that did not have to be computed."""
        return (self.sent - self.computed) / self.sent if self.sent else 0.0

    @property
    def best_hit_rate(self) -> float:
        """The same for a cache without end."""
        return (self.sent - self.needed) / self.sent if self.sent else 0.0

    @property
    def share_of_best(self) -> float | None:
        """What was re-used, of what could be; None where nothing could be."""
        best = self.sent - self.needed
        return (self.sent - self.computed) / best if best else None


class Blocks(msgspec.Struct, frozen=True, kw_only=True):
    """KV blocks of ``size`` tokens in a pool of ``pool``.

    ``held``: the most that running calls held at once, which is what a pool must have. ``kept``: the most that were not free. Where nothing
    was evicted, that is the smallest pool in which nothing is. ``evicted``: how often blocks were taken from the tree; ``preempted``: how
    often a running call had to give way.
    """

    size: int
    pool: int
    held: int
    kept: int
    evicted: int
    preempted: int


class PoolSize(msgspec.Struct, frozen=True, kw_only=True):
    """What the same calls cost in a pool of ``blocks``, which is too small for ``refused`` of them."""

    blocks: int
    refused: int
    computed: int
    evicted: int
    preempted: int
    steps: int


class SharedPrefix(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of prompts that ``sent`` of them have in common, ``tokens`` long, after ``start`` others; ``text``: how it begins."""

    start: int
    tokens: int
    sent: int
    text: str

    @property
    def saved(self) -> int:
        """Tokens that need not be computed because it is shared."""
        return self.tokens * (self.sent - 1)


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """Something that would save ``saves`` prompt tokens, by the same tree on changed prompts; ``calls`` of them change.

    ``kind`` names what was found; ``text`` says what to do. ``examples``: the texts in question.
    """

    kind: str
    text: str
    saves: int
    calls: int
    examples: tuple[str, ...] = ()


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of ``source``; ``str`` of it is the table that the command prints.

    ``seconds``: how long its steps take by the cost that was given, None where none was. ``unknown``: calls whose answers were made up;
    ``strays``: tokens of recorded answers that could not be given. ``refused``: calls that the engine would not take, with the
    reason. ``report``: the language's own account. ``trace``: all calls and steps. ``trees`` (namespace -> root) and ``decode`` are
    for pictures.
    """

    source: str
    calls: int
    tokens: Tokens
    blocks: Blocks
    steps: int
    rows: int
    step_tokens: int
    seconds: float | None
    report: Report
    shared: tuple[SharedPrefix, ...]
    advice: tuple[Advice, ...]
    pools: tuple[PoolSize, ...]
    unknown: int
    strays: int
    refused: tuple[str, ...]
    skipped: int
    trace: Trace
    trees: dict[bytes, TreeNode]
    decode: Any

    def json(self) -> dict[str, Any]:
        """All of it but the pictures, as dictionaries, lists, strings and numbers."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__ if name not in _INSIDE}
        tokens = self.tokens
        fields["hit_rate"] = tokens.hit_rate
        fields["best_hit_rate"] = tokens.best_hit_rate
        fields["share_of_best"] = tokens.share_of_best
        return cast("dict[str, Any]", msgspec.json.decode(msgspec.json.encode(fields)))

    def save_json(self, path: str | Path) -> None:
        """Write `json` to a file."""
        Path(path).write_bytes(msgspec.json.format(msgspec.json.encode(self.json()), indent=2) + b"\n")

    def svg(self) -> str:
        """The tree as a picture (`radixserve.planner.picture`)."""
        from radixserve.planner.picture import tree_picture

        return tree_picture(self)

    def save_svg(self, path: str | Path) -> None:
        """Write the picture to a file."""
        Path(path).write_text(self.svg(), encoding="utf-8")

    def save_html(self, path: str | Path) -> None:
        """Write tables and picture to one file that needs no other."""
        from radixserve.planner.page import plan_page

        Path(path).write_text(plan_page(self), encoding="utf-8")

    def __str__(self) -> str:
        from radixserve.planner.tables import plan_text

        return plan_text(self)


_INSIDE = frozenset({"trace", "trees", "decode"})
