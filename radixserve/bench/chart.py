"""A bar chart as SVG, without a plotting library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

_COLORS = ("#2563a8", "#d97b29", "#4b9a5f", "#8d5aa8", "#a8364b", "#5d6b78")
_PLOT, _MARGIN, _VALUES = 520, 20, 90
_LETTER = 6.7  # width of a letter of the labels, on average and a little more
_TOP, _BAR, _GAP, _GROUP_GAP = 76, 15, 3, 14


@dataclass(frozen=True, slots=True)
class Bar:
    """``value``: None is a bar that could not be measured. ``floor``: drawn as a mark; None has none."""

    series: str
    value: float | None
    floor: float | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """Bars that stand together under one label."""

    label: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class _Frame:
    """Where the bars stand: from ``left`` on, ``scale`` pixels a unit, between ``top`` and ``bottom``."""

    left: float
    scale: float
    top: float
    bottom: float


def bar_chart(title: str, unit: str, groups: Sequence[Group]) -> str:
    """Horizontal bars in groups, each as long as its value in ``unit``; floors are marks across them."""
    bars = [bar for group in groups for bar in group.bars]
    numbers = [number for bar in bars for number in (bar.value, bar.floor) if number is not None]
    largest = max(numbers, default=0.0) or 1.0
    step = _tick(largest)
    end = step * math.ceil(largest / step)
    left = 2 * _MARGIN + _LETTER * max((len(group.label) for group in groups), default=0)
    bottom = _TOP + sum(len(group.bars) * (_BAR + _GAP) + _GROUP_GAP for group in groups)
    frame = _Frame(left, _PLOT / end, _TOP, bottom)
    width, height = left + _PLOT + _VALUES, bottom + 34
    series = list(dict.fromkeys(bar.series for bar in bars))
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        _text(_MARGIN, 26, title, size=15),
        _text(_MARGIN, 44, unit, color="#555"),
        *_legend(series, floor=any(bar.floor is not None for bar in bars)),
        *_axis(frame, step, end),
    ]
    y = _TOP
    for group in groups:
        middle = y + len(group.bars) * (_BAR + _GAP) / 2 + 4
        lines.append(_text(left - 10, middle, group.label, anchor="end"))
        for bar in group.bars:
            lines += _bar(bar, _COLORS[series.index(bar.series) % len(_COLORS)], y, frame)
            y += _BAR + _GAP
        y += _GROUP_GAP
    return "\n".join([*lines, "</svg>"]) + "\n"


def number(value: float) -> str:
    """A number as people read it: about three digits."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}"


def _bar(bar: Bar, color: str, y: float, frame: _Frame) -> list[str]:
    base = y + _BAR - 3
    if bar.value is None:
        return [_text(frame.left + 4, base, "not measured", color="#888")]
    width = bar.value * frame.scale
    lines = [f'<rect x="{frame.left:.1f}" y="{y}" width="{width:.1f}" height="{_BAR}" fill="{color}"/>']
    end = width
    if bar.floor is not None:
        end = max(width, bar.floor * frame.scale)
        lines.append(_line(frame.left + bar.floor * frame.scale, y - 2, y + _BAR + 2, "black", 2))
    return [*lines, _text(frame.left + end + 5, base, number(bar.value))]


def _legend(series: Sequence[str], *, floor: bool) -> list[str]:
    lines, x = [], float(_MARGIN)
    for index, name in enumerate(series):
        lines.append(f'<rect x="{x:.1f}" y="54" width="11" height="11" fill="{_COLORS[index % len(_COLORS)]}"/>')
        lines.append(_text(x + 16, 64, name))
        x += 34 + _LETTER * len(name)
    return [*lines, _line(x + 5, 53, 66, "black", 2), _text(x + 16, 64, "floor")] if floor else lines


def _axis(frame: _Frame, step: float, end: float) -> list[str]:
    lines = []
    for index in range(round(end / step) + 1):
        x = frame.left + index * step * frame.scale
        lines.append(_line(x, frame.top - 6, frame.bottom, "#ddd", 1))
        lines.append(_text(x, frame.bottom + 18, f"{index * step:g}", anchor="middle", color="#555"))
    return lines


def _tick(largest: float) -> float:
    """A round step that divides ``largest`` into at most eight."""
    base = 10.0 ** math.floor(math.log10(largest / 8))
    return next(base * factor for factor in (1, 2, 2.5, 5, 10) if largest / (base * factor) <= 8)


def _line(x: float, top: float, bottom: float, color: str, width: int) -> str:
    return f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top:.1f}" y2="{bottom:.1f}" stroke="{color}" stroke-width="{width}"/>'


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 12, color: str = "#111") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{color}">{escape(text)}</text>'
    )
