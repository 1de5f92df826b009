"""The benchmarks as the command line runs them: limits first, then the measurements, then text and chart."""

from __future__ import annotations

import asyncio

from radixserve.bench.machine import Limits, measure_limits, read_limits
from radixserve.bench.options import Finished, FloorOptions, KernelOptions, Note, ServeOptions, StepOptions
from radixserve.errors import NativeUnavailable


def run_serve(options: ServeOptions, floors: FloorOptions, note: Note) -> Finished:
    """Workloads against servers."""
    from radixserve.bench.serve import bench_serve
    from radixserve.bench.serve_tables import serve_chart, serve_text

    options.validate()
    report = asyncio.run(bench_serve(options, _limits(floors, 0, note), note))
    return Finished(report, serve_text(report), serve_chart(report), report.errors)


def run_step(options: StepOptions, floors: FloorOptions, note: Note) -> Finished:
    """Steps of an engine in this process."""
    from radixserve.bench.engine_tables import step_chart, step_text
    from radixserve.bench.step import bench_step

    report = bench_step(options, _limits(floors, options.engine.get("threads", 0), note), note)
    return Finished(report, step_text(report), step_chart(report))


def run_kernels(options: KernelOptions, floors: FloorOptions, note: Note) -> Finished:
    """Kernels by themselves."""
    from radixserve.bench.engine_tables import kernel_chart, kernel_text
    from radixserve.bench.kernels import bench_kernels

    report = bench_kernels(options, _limits(floors, options.threads, note), note)
    return Finished(report, kernel_text(report), kernel_chart(report))


def _limits(floors: FloorOptions, threads: int, note: Note) -> Limits | None:
    """The machine's limits with so many threads; None where they are not wanted or cannot be measured, which is told."""
    if not floors.wanted:
        return None
    if floors.file is not None:
        return read_limits(floors.file)
    note("measuring the machine's limits")
    try:
        return measure_limits(threads)
    except NativeUnavailable as error:
        note(str(error))
        return None
