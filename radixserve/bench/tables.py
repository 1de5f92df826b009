"""What the tables of all reports have in common."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from radixserve.bench.chart import number
from radixserve.bench.floors import Bound
from radixserve.bench.machine import Machine

NONE = "–"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table whose columns also line up as plain text; the first is aligned to the left."""
    lines = [list(head), *map(list, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    lines.insert(1, ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])])
    return "\n".join(
        "| " + " | ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) + " |" for line in lines
    )


def cell(value: float | None, scale: float = 1.0) -> str:
    """A number, times ``scale``; a dash for None."""
    return NONE if value is None else number(value * scale)


def bound_cells(floor: Bound | None, scale: float) -> list[str]:
    """Bytes over bandwidth, operations over peak, and the floor that follows; times ``scale`` seconds."""
    if floor is None:
        return [NONE] * 3
    return [cell(seconds, scale) for seconds in (floor.memory_s, floor.compute_s, floor.seconds)]


def machine_line(machine: Machine) -> str:
    """Where a report comes from, and what that can do at most."""
    limits = machine.limits
    where = f"{machine.cpu}, {machine.cores} cores"
    if limits is None:
        return f"{where}; its limits were not measured, so there are no floors."
    return (
        f"{where}; with {limits.threads} threads it reads {limits.dram / 1e9:.1f} GB/s from memory and {limits.cache / 1e9:.0f} GB/s "
        f"from the cache, and does {limits.bf16 / 1e9:.0f} bf16, {limits.int8 / 1e9:.0f} int8 and {limits.fp32 / 1e9:.0f} fp32 GOP/s."
    )
