"""The reports of `radixserve.bench.step` and `radixserve.bench.kernels` as text and as charts."""

from __future__ import annotations

from collections.abc import Sequence

from radixserve.bench.chart import Bar, Group, bar_chart
from radixserve.bench.kernels import KernelReport
from radixserve.bench.part_timer import PARTS
from radixserve.bench.step import StepReport, StepResult
from radixserve.bench.tables import bound_cells, cell, machine_line, table

_MS = 1e3
_FLOOR = ("bytes / bandwidth", "operations / peak", "floor")


def step_text(report: StepReport) -> str:
    """The time of every step beside its floor, where it goes, and what a shared prefix saves."""
    times = [
        [
            case.title,
            str(case.tokens),
            *bound_cells(case.floor.total if case.floor is not None else None, _MS),
            cell(case.median_s, _MS),
            cell(case.best_s, _MS),
            cell(case.ratio),
        ]
        for case in report.cases
    ]
    split = [
        [case.title, *(cell(case.parts_s[part], _MS) for part in PARTS), cell(case.overhead_s, _MS)]
        for case in report.cases
    ]
    kv = [
        [case.title, *(cell(size, 1e-6) for size in (case.kv_bytes.distinct, case.kv_bytes.read, case.kv_bytes.asked))]
        for case in report.cases
    ]
    parts = [
        machine_line(report.machine),
        f"{report.model}: " + ", ".join(f"{name} {value}" for name, value in report.runner.items()),
        *([f"Beside {report.busy} busy processes."] if report.busy else []),
        "Milliseconds:\n\n" + table(("step", "tokens", *_FLOOR, "measured", "best", "ratio"), times),
        "Where they go; overhead is all but forward and head:\n\n" + table(("step", *PARTS, "overhead"), split),
        "MB of keys and values: distinct ones, read by attention, and asked for by all rows together:\n\n"
        + table(("step", "distinct", "read", "asked"), kv),
    ]
    if pairs := shared_pairs(report.cases):
        gains = [
            [apart.title, cell(apart.median_s, _MS), cell(shared.median_s, _MS), cell(apart.median_s / shared.median_s)]
            for apart, shared in pairs
        ]
        parts.append("Nothing shared against one prefix:\n\n" + table(("step", "apart", "shared", "ratio"), gains))
    return "\n\n".join(parts) + "\n"


def shared_pairs(cases: Sequence[StepResult]) -> list[tuple[StepResult, StepResult]]:
    """Cases without and with a shared prefix that are alike otherwise."""
    by_name = {case.name: case for case in cases}
    return [
        (by_name[plain], case)
        for name, case in by_name.items()
        if (plain := name.replace("/shared", "")) in by_name and plain != name
    ]


def step_chart(report: StepReport) -> str:
    """Steps over their floors, or in milliseconds without floors."""
    scales = [case.floor.seconds if case.floor is not None else None for case in report.cases]
    groups = [
        Group(case.title, (_over("step", case.median_s, floor),))
        for case, floor in zip(report.cases, scales, strict=True)
    ]
    return bar_chart(f"Steps of {report.model}", _unit(scales), groups)


def kernel_text(report: KernelReport) -> str:
    """Every kernel beside its floor."""
    head = ("kernel", "case", *_FLOOR, "measured", "best", "ratio", "GB/s", "GOP/s", "KV read MB", "oneDNN")
    rows = [
        [
            result.group,
            result.name,
            *bound_cells(result.floor, _MS),
            cell(result.median_s, _MS),
            cell(result.best_s, _MS),
            cell(result.ratio),
            cell(result.bytes / result.median_s, 1e-9),
            cell(result.operations / result.median_s, 1e-9),
            cell(result.read_bytes, 1e-6),
            cell(result.rival_s, _MS),
        ]
        for result in report.results
    ]
    setting = f"Instruction set {report.isa}, {report.threads} threads; milliseconds:"
    return f"{machine_line(report.machine)}\n\n{setting}\n\n{table(head, rows)}\n"


def kernel_chart(report: KernelReport) -> str:
    """Kernels and their rivals over their floors, or in milliseconds without floors."""
    scales = [result.floor.seconds if result.floor is not None else None for result in report.results]
    groups = []
    for result, floor in zip(report.results, scales, strict=True):
        rival = () if result.rival_s is None else (_over("oneDNN", result.rival_s, floor),)
        groups.append(Group(f"{result.group} {result.name}", (_over("native", result.median_s, floor), *rival)))
    return bar_chart("Native kernels", _unit(scales), groups)


def _over(series: str, seconds: float, floor: float | None) -> Bar:
    return Bar(series, seconds * _MS) if floor is None else Bar(series, seconds / floor, 1.0)


def _unit(floors: Sequence[float | None]) -> str:
    return "milliseconds" if None in floors else "time over the floor"
