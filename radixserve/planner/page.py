"""A plan as one HTML file that needs no other: tables, advice and the picture of the tree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from radixserve.planner.picture import tree_picture
from radixserve.planner.plan import Plan
from radixserve.planner.tables import POOL_COLUMNS, clean, facts_of, notes_of

_LEFT, _TOTAL = ' class="text"', ' class="total"'
_STYLE = """
body { font: 14px/1.5 system-ui, sans-serif; color: #222; margin: 2rem auto; max-width: 1240px; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.05rem; margin: 1.8rem 0 .4rem; }
table { border-collapse: collapse; } th { font-weight: normal; color: #666; text-align: right; }
td, th { padding: .15rem .9rem .15rem 0; vertical-align: top; } td { text-align: right; font-variant-numeric: tabular-nums; }
td.text, th.text { text-align: left; } tr.total td { font-weight: bold; border-top: 1px solid #ccc; }
li { margin: .3rem 0; } svg g:hover rect { stroke: #000; stroke-width: 1; }
""".strip()


def plan_page(plan: Plan) -> str:
    """The file. Nothing of a prompt is markup in it, and it loads nothing."""
    title = escape(clean(plan.source))
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        f"<title>Plan of {title}</title><style>{_STYLE}</style></head><body>",
        f"<h1>Plan of {title}</h1>",
        _table((), facts_of(plan), text={0, 1}),
        "<h2>The tree</h2>",
        "<p>Width is tokens to compute, colour how many prompts share them. Hover over a bar for its text.</p>",
        tree_picture(plan),
        "<h2>Advice</h2>",
        _list(f"<b>{advice.saves:,} tokens</b>: {escape(clean(advice.text))}" for advice in plan.advice)
        or "<p>None.</p>",
        "<h2>What the calls need</h2>",
        _variables(plan),
        "<h2>What they share</h2>",
        _table(
            ("saved", "tokens", "times", "after", "text"),
            [
                (f"{one.saved:,}", f"{one.tokens:,}", f"{one.sent:,}", f"{one.start:,}", clean(one.text))
                for one in plan.shared
            ],
            text={4},
        ),
    ]
    if plan.pools:
        rows = [
            tuple(
                f"{number:,}"
                for number in (one.blocks, one.refused, one.computed, one.evicted, one.preempted, one.steps)
            )
            for one in plan.pools
        ]
        parts += [
            "<h2>Other pools</h2>",
            _table(POOL_COLUMNS, rows, text=set()),
        ]
    notes = _list(escape(note) for note in notes_of(plan))
    if notes:
        parts += ["<h2>Notes</h2>", notes]
    return "\n".join([*parts, "</body></html>"]) + "\n"


def _variables(plan: Plan) -> str:
    lines = (*plan.report.variables, plan.report.total)
    rows = [
        (
            clean(line.name),
            "" if line.kind == "all" else line.kind,
            *(
                "-" if count is None else f"{count:,}"
                for count in (line.calls, line.prompt, line.cached, line.computed, line.needed, line.generated)
            ),
        )
        for line in lines
    ]
    names = ("variable", "kind", "calls", "prompt", "cached", "computed", "needed", "generated")
    return _table(names, rows, text={0, 1}, total=True)


def _table(names: Sequence[str], rows: Sequence[Sequence[str]], *, text: set[int], total: bool = False) -> str:
    def cells(values: Sequence[str], tag: str) -> str:
        return "".join(
            f"<{tag}{_LEFT if place in text else ''}>{escape(value)}</{tag}>" for place, value in enumerate(values)
        )

    head = f"<tr>{cells(names, 'th')}</tr>" if names else ""
    body = [
        f"<tr{_TOTAL if total and number == len(rows) else ''}>{cells(row, 'td')}</tr>"
        for number, row in enumerate(rows, 1)
    ]
    return f"<table>{head}{''.join(body)}</table>"


def _list(items: Iterable[str]) -> str:
    found = "".join(f"<li>{item}</li>" for item in items)
    return f"<ul>{found}</ul>" if found else ""
