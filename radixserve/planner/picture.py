"""The tree of prompts as SVG: as wide as its tokens, as dark as it is shared; depth goes down.

An icicle: every edge is a bar as wide as the tokens of the edges below it and its own, so the width of a bar is what it would take to
compute that part of the tree once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from radixserve.planner.plan import Plan
from radixserve.planner.prompt_tree import TreeNode
from radixserve.planner.tables import clean

_WIDTH, _ROW, _TOP, _MARGIN = 1160.0, 22, 64, 20
_LETTER = 6.4
# Narrower bars are left out, and with them all below.
_NARROWEST = 0.6
_DEEPEST = 60
_HOVER_TOKENS = 120
_SHADES = ("#e8eef5", "#c3d5e8", "#8fb4d6", "#5a90c0", "#2f6ca6", "#174a7c")
_OUTPUT = "#e9c98f"


@dataclass(frozen=True, slots=True)
class _Bar:
    node: TreeNode
    depth: int
    left: float
    width: float
    space: str


def tree_picture(plan: Plan) -> str:
    """The picture of a plan's tree. Texts of prompts are escaped; hovering over a bar shows them."""
    bars, left_out = _layout(plan)
    rows = 1 + max((bar.depth for bar in bars), default=0)
    height = _TOP + rows * _ROW + 34
    box = f"0 0 {_WIDTH + 2 * _MARGIN:.0f} {height}"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}" width="100%" font-family="sans-serif" font-size="11" role="img">',
        f"<title>{escape(clean(plan.source))}</title>",
        f'<rect width="100%" height="{height}" fill="white"/>',
        _text(
            _MARGIN, 20, f"{plan.source}: {plan.tokens.sent:,} tokens sent, {plan.tokens.needed:,} in the tree", size=14
        ),
        *_legend(),
        *(_drawn(bar, plan.decode) for bar in bars),
    ]
    if left_out:
        lines.append(_text(_MARGIN, height - 12, f"{left_out:,} smaller edges are not drawn", color="#666"))
    return "\n".join([*lines, "</svg>"]) + "\n"


def _layout(plan: Plan) -> tuple[list[_Bar], int]:
    """All bars wide enough to be seen, and how many edges are not."""
    weights = {id(node): 0 for root in plan.trees.values() for node, _ in root.walk()}
    for root in plan.trees.values():
        for node, _ in reversed(list(root.walk())):
            weights[id(node)] = node.length + sum(weights[id(child)] for child in node.children.values())
    total = sum(weights[id(root)] for root in plan.trees.values()) or 1
    scale = _WIDTH / total
    bars: list[_Bar] = []
    left_out = 0
    waiting: list[_Bar] = []
    left = float(_MARGIN)
    for number, root in enumerate(plan.trees.values(), 1):
        space = f"namespace {number}" if len(plan.trees) > 1 else ""
        waiting.append(_Bar(root, -1, left, weights[id(root)] * scale, space))
        left += weights[id(root)] * scale
    while waiting:
        bar = waiting.pop()
        if bar.node.length:
            if bar.width < _NARROWEST or bar.depth >= _DEEPEST:
                left_out += sum(1 for _ in bar.node.walk())
                continue
            bars.append(bar)
        left = bar.left
        for child in bar.node.children.values():
            width = weights[id(child)] * scale
            waiting.append(_Bar(child, bar.depth + 1, left, width, bar.space))
            left += width
    return bars, left_out


def _drawn(bar: _Bar, decode: Callable[[Sequence[int]], str]) -> str:
    node = bar.node
    y = _TOP + bar.depth * _ROW
    text = decode(node.tokens[:_HOVER_TOKENS])
    more = "…" if node.length > _HOVER_TOKENS else ""
    facts = [f"{node.length:,} tokens after {node.start:,}"]
    if node.sent:
        facts.append(f"in {node.sent:,} prompts")
    if node.drawn:
        facts.append(f"in {node.drawn:,} outputs")
    if bar.space:
        facts.append(bar.space)
    hover = escape(f"{', '.join(facts)}\n{_shown(text)}{more}")
    label = _label(text, bar.width)
    dark = node.sent > 4
    return (
        f"<g><title>{hover}</title>"
        f'<rect x="{bar.left:.2f}" y="{y}" width="{max(bar.width - 0.3, 0.3):.2f}" height="{_ROW - 2}" rx="1.5" fill="{_shade(node)}"/>'
        + (_text(bar.left + 4, y + 14, label, color="white" if dark else "#222") if label else "")
        + "</g>"
    )


def _shade(node: TreeNode) -> str:
    """The more prompts have it, the darker; outputs that no prompt has are of another colour."""
    if not node.sent:
        return _OUTPUT
    level = 0
    while level + 1 < len(_SHADES) and node.sent >= 2 ** (level + 1):
        level += 1
    return _SHADES[level]


def _legend() -> list[str]:
    names = ["1 prompt", "2", "4", "8", "16", "32 and more"]
    lines: list[str] = []
    x = float(_MARGIN)
    for color, name in [*zip(_SHADES, names, strict=True), (_OUTPUT, "output only")]:
        lines.append(
            f'<rect x="{x:.1f}" y="34" width="14" height="14" fill="{color}" stroke="#999" stroke-width="0.3"/>'
        )
        lines.append(_text(x + 19, 45, name))
        x += 34 + _LETTER * len(name)
    return lines


def _label(text: str, width: float) -> str:
    room = int((width - 8) / _LETTER)
    shown = " ".join(clean(text.replace("\n", " ")).split())
    if room < 3 or not shown:
        return ""
    return shown if len(shown) <= room else shown[: room - 1] + "…"


def _shown(text: str) -> str:
    return "\n".join(map(clean, text.splitlines()))


def _text(x: float, y: float, text: str, *, size: int = 11, color: str = "#222") -> str:
    return f'<text x="{x:.1f}" y="{y}" font-size="{size}" fill="{color}">{escape(clean(text))}</text>'
