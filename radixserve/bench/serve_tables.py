"""The report of `radixserve.bench.serve` as text and as a chart."""

from __future__ import annotations

from collections.abc import Iterator

from radixserve.bench.chart import Bar, Group, bar_chart, number
from radixserve.bench.measures import Figures
from radixserve.bench.serve import ServeReport, ServerResult, WorkloadResult, bounded_figure, slowness
from radixserve.bench.tables import NONE, bound_cells, cell, machine_line, table

_HEAD = (
    "workload",
    "server",
    "wall s",
    "out tok/s",
    "TTFT p50/p99 ms",
    "ITL p50/p99 ms",
    "cached / prompt",
    "floor of",
    "floor",
    "measured",
    "ratio",
    "errors",
    "foreign CPU",
    "peak MB",
    "besides",
)
_LABELS = {
    "output_tokens_per_s": "out tok/s",
    "decode_tokens_per_s": "decode tok/s",
    "long_ttft_s": "long TTFT s",
    "beside_itl_p99_ms": "ITL p99 beside, ms",
}


def serve_text(report: ServeReport) -> str:
    """The figures of every workload and server, what the floors are made of, and the servers beside one another."""
    parts = [machine_line(report.machine), table(_HEAD, _rows(report))]
    floors = list(_floor_rows(report))
    if floors:
        made_of = ("workload", "weights", "part", "GB", "bytes / bandwidth s", "TOP", "operations / peak s", "floor s")
        parts.append("What an ideal engine would need:\n\n" + table(made_of, floors))
    if len(report.servers) > 1:
        first = report.servers[0].name
        others = [server.name for server in report.servers[1:]]
        head = ("workload", "by", *(f"times as good as {name}" for name in others))
        parts.append(f"{first} beside the others:\n\n" + table(head, _comparison(report, others)))
    return "\n\n".join(parts) + "\n"


def serve_chart(report: ServeReport) -> str:
    """Times over the floor of each server's precision where there is one; else the throughput."""
    floors = any(result.ratio is not None for workload in report.workloads for result in workload.servers)
    groups = []
    for workload in report.workloads:
        bars = [
            Bar(result.server, result.ratio, 1.0)
            if floors
            else Bar(result.server, result.median.get("output_tokens_per_s"))
            for result in workload.servers
        ]
        groups.append(Group(f"{workload.name} {workload.title}", tuple(bars)))
    unit = "time over the floor: 1 is an ideal engine on this machine" if floors else "output tokens a second"
    return bar_chart("Workloads", unit, groups)


def _rows(report: ServeReport) -> Iterator[list[str]]:
    precision = {server.name: server.precision for server in report.servers}
    for workload in report.workloads:
        figure = bounded_figure(workload.name)
        for result in workload.servers:
            ideal = workload.ideal.get(precision[result.server])
            median = result.median
            yield [
                f"{workload.name} {workload.title}",
                result.server,
                cell(median.get("wall_s")),
                cell(median.get("output_tokens_per_s")),
                _pair(median, "ttft"),
                _pair(median, "itl"),
                f"{median.get('cached_tokens', 0):.0f} / {median.get('prompt_tokens', 0):.0f}",
                _LABELS[figure],
                cell(ideal.figures[figure] if ideal is not None else None),
                cell(median.get(figure)),
                cell(result.ratio),
                str(sum(run.errors for run in result.runs)),
                cell(median.get("foreign_cpu_s")),
                cell(median.get("server_peak_mb")),
                _besides(workload, result),
            ]


def _pair(figures: Figures, name: str) -> str:
    return f"{cell(figures.get(f'{name}_p50_ms'))} / {cell(figures.get(f'{name}_p99_ms'))}"


def _besides(workload: WorkloadResult, result: ServerResult) -> str:
    median = result.median
    facts = []
    if "valid" in median:
        facts.append(f"{median['valid']:.0f} of {workload.calls} valid")
    if "beside_itl_p99_ms" in median:
        facts.append(f"ITL p99 beside the long prompt {number(median['beside_itl_p99_ms'])} ms")
    error = next((run.error for run in result.runs if run.error), None)
    if error is not None:
        facts.append(" ".join(error.split())[:100].replace("|", "/"))
    return "; ".join(facts) or NONE


def _floor_rows(report: ServeReport) -> Iterator[list[str]]:
    for workload in report.workloads:
        for precision, ideal in workload.ideal.items():
            floor = ideal.floor
            parts = {
                "projections": floor.projections,
                "attention": floor.attention,
                "head": floor.head,
                "all": floor.total,
            }
            for part, one in parts.items():
                memory, compute, seconds = bound_cells(one, 1.0)
                yield [
                    workload.name,
                    precision,
                    part,
                    cell(one.bytes, 1e-9),
                    memory,
                    cell(one.operations, 1e-12),
                    compute,
                    seconds,
                ]


def _comparison(report: ServeReport, others: list[str]) -> Iterator[list[str]]:
    for workload in report.workloads:
        by_server = {result.server: result.median for result in workload.servers}
        first = by_server[report.servers[0].name]
        figures = [workload.headline] + ([bounded_figure(workload.name)] if workload.name == "W8" else [])
        for figure in figures:
            factors = []
            for name in others:
                both = figure in first and figure in by_server[name]
                factors.append(slowness(figure, by_server[name][figure], first[figure]) if both else None)
            yield [workload.name, _LABELS[figure], *map(cell, factors)]
