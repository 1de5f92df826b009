"""A plan as text: what the command prints."""

from __future__ import annotations

import io

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from radixserve.planner.plan import Plan

_WIDTH = 120
_MOST_SHARED = 8
POOL_COLUMNS = ("blocks", "refused", "computed", "evicted", "preempted", "steps")
# What was sent can hold anything; only printable characters reach a terminal.
_CONTROLS = dict.fromkeys((*range(32), *range(127, 160)))


def plan_text(plan: Plan, width: int = _WIDTH) -> str:
    """The tables without colours."""
    console = Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False)
    console.print(plan_tables(plan))
    file = console.file
    assert isinstance(file, io.StringIO), "it was made above"
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def plan_tables(plan: Plan) -> RenderableType:
    """All tables of a plan."""
    parts: list[RenderableType] = [Text(f"Plan of {clean(plan.source)}", style="bold"), _facts(plan)]
    if len(plan.report.variables) > 1 or plan.report.variables[0].name != "(log)":
        parts.append(_section("What the calls need", _variables(plan)))
    if plan.shared:
        parts.append(_section("What they share", _shared(plan)))
    if plan.pools:
        parts.append(_section("Other pools", _pools(plan)))
    parts.append(_section("Advice", _advice(plan)))
    notes = notes_of(plan)
    if notes:
        parts.append(_section("Notes", Group(*(Text(f"• {note}") for note in notes))))
    return Group(*parts)


def facts_of(plan: Plan) -> list[tuple[str, str]]:
    """The plan in lines of name and value."""
    tokens, blocks = plan.tokens, plan.blocks
    share = tokens.share_of_best
    facts = [
        ("calls", f"{plan.calls:,}"),
        ("tokens sent", f"{tokens.sent:,}"),
        ("tokens computed", f"{tokens.computed:,}, at least {tokens.needed:,} (edges of the tree)"),
        (
            "hit rate",
            f"{tokens.hit_rate:.1%} of at most {tokens.best_hit_rate:.1%}"
            + ("" if share is None else f": {share:.1%} of what can be re-used"),
        ),
        (
            "tokens generated",
            f"{tokens.generated:,}" + (f", {tokens.forced:,} of them forced" if tokens.forced else ""),
        ),
        (
            "steps",
            f"{plan.steps:,} with {plan.rows / max(1, plan.steps):.1f} rows and {plan.step_tokens / max(1, plan.steps):.1f} tokens",
        ),
        ("blocks needed", f"{blocks.held:,} of {blocks.size} tokens at once, {blocks.kept:,} to keep everything"),
    ]
    if blocks.evicted or blocks.preempted:
        facts.append(
            ("pool", f"{blocks.pool:,} blocks; {blocks.evicted:,} were evicted, {blocks.preempted:,} calls preempted")
        )
    if plan.seconds is not None:
        facts.append(("time of steps", f"{plan.seconds:.2f} s"))
    return facts


def notes_of(plan: Plan) -> list[str]:
    """What the reader must know of how the numbers came to be."""
    notes = []
    if plan.unknown:
        notes.append(
            f"{plan.unknown:,} of {plan.calls:,} calls have made-up outputs, so what depends on outputs is a guess"
        )
    if plan.strays:
        notes.append(f"{plan.strays:,} recorded tokens could not be given: their constraint forbids them")
    if plan.skipped:
        notes.append(f"{plan.skipped:,} lines hold no prompts and were skipped")
    notes += [f"refused: {clean(reason)}" for reason in plan.refused[:20]]
    if len(plan.refused) > 20:
        notes.append(f"{len(plan.refused) - 20:,} more were refused")
    return notes


def clean(text: str) -> str:
    """Without control characters."""
    return text.translate(_CONTROLS)


def _section(title: str, body: RenderableType) -> RenderableType:
    return Padding(Group(Text(title, style="bold"), body), (1, 0, 0, 0))


def _facts(plan: Plan) -> Table:
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim")
    table.add_column()
    for name, value in facts_of(plan):
        table.add_row(name, value)
    return table


def _variables(plan: Plan) -> Table:
    table = _table("variable", "kind", "calls", "prompt", "cached", "computed", "needed", "generated", left=2)
    for line in (*plan.report.variables, plan.report.total):
        counts = (line.calls, line.prompt, line.cached, line.computed, line.needed, line.generated)
        kind = "" if line.kind == "all" else line.kind
        table.add_row(
            escape(clean(line.name)),
            kind,
            *("-" if count is None else f"{count:,}" for count in counts),
            style="bold" if line.kind == "all" else None,
        )
    return table


def _shared(plan: Plan) -> Table:
    table = _table("saved", "tokens", "times", "after", "text", left=0, last_left=True)
    for piece in plan.shared[:_MOST_SHARED]:
        numbers = (piece.saved, piece.tokens, piece.sent, piece.start)
        table.add_row(
            *(f"{number:,}" for number in numbers), Text(clean(piece.text), overflow="ellipsis", no_wrap=True)
        )
    return table


def _pools(plan: Plan) -> Table:
    table = _table(*POOL_COLUMNS, left=0)
    for size in plan.pools:
        numbers = (size.blocks, size.refused, size.computed, size.evicted, size.preempted, size.steps)
        table.add_row(*(f"{number:,}" for number in numbers))
    return table


def _advice(plan: Plan) -> RenderableType:
    if not plan.advice:
        return Text("none: nothing was found that would make more of it shareable", style="dim")
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(justify="right", style="bold")
    table.add_column()
    for advice in plan.advice:
        table.add_row(f"{advice.saves:,}", Text(clean(advice.text)))
    return table


def _table(*names: str, left: int, last_left: bool = False) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for place, name in enumerate(names):
        is_text = place < left or (last_left and place == len(names) - 1)
        table.add_column(name, justify="left" if is_text else "right")
    return table
