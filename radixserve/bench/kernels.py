"""``bench kernels``: the native CPU kernels by themselves, beside their floors and oneDNN's prepacked linears.

Competitors run in turns in one process; figures are medians, and the best, of several runs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from radixserve.bench.floors import Bound, ModelCost, bound
from radixserve.bench.kernel_step import (
    ATTENDED,
    CASES,
    FFN,
    LINEARS,
    MODEL,
    WIDTH,
    RecordedStep,
    attend,
    case_work,
    random_caches,
    random_quantized,
    step_batch,
)
from radixserve.bench.machine import Limits, Machine, describe_machine
from radixserve.bench.options import KernelOptions, Note
from radixserve.bench.results import created_now
from radixserve.errors import ConfigError
from radixserve.native.abi import Format
from radixserve.native.library import NativeLibrary
from radixserve.native.operations import linear
from radixserve.native.packing import BLOCK_BYTES, PackedWeight, pack_dense
from radixserve.native.program import Program

# 768 for 576, a multiple of every format's blocks.
_BLOCK_SHAPES = ((3072, 768), (768, 1536))
_BLOCK_COPIES = 10


@dataclass(frozen=True, slots=True)
class KernelResult:
    """``bytes`` that must be read and ``operations`` that must be done; ``read_bytes``: of KV, as counted by the kernels, None
    elsewhere; ``rival_s``: oneDNN's median where it runs too. ``ratio``: median to floor.
    """

    group: str
    name: str
    median_s: float
    best_s: float
    bytes: int
    operations: int
    floor: Bound | None
    ratio: float | None
    read_bytes: int | None = None
    rival_s: float | None = None


@dataclass(frozen=True, slots=True)
class KernelReport:
    """Everything, as it is written to JSON."""

    kind: str
    format: int
    created: str
    machine: Machine
    isa: str
    threads: int
    results: list[KernelResult]


@dataclass(frozen=True, slots=True)
class _Bench:
    """``tokens``: batch sizes larger than this are left out; ``repeats``: runs of each."""

    library: NativeLibrary
    limits: Limits | None
    repeats: int
    most_tokens: int

    def sizes(self, *counts: int) -> list[int]:
        return [count for count in counts if count <= self.most_tokens]

    def cases(self) -> Iterator[tuple[str, list[tuple[int, int, int]]]]:
        return ((name, rows) for name, rows in CASES.items() if sum(count for _, count, _ in rows) <= self.most_tokens)


def bench_kernels(options: KernelOptions, limits: Limits | None, note: Note) -> KernelReport:
    """Measure groups of `GROUPS`. Raises `ConfigError`, and `NativeUnavailable` where there is no kernel library."""
    if unknown := [group for group in options.groups if group not in GROUPS]:
        raise ConfigError("group", f"unknown: {', '.join(unknown)}; known are {', '.join(GROUPS)}")
    if options.repeats < 1:
        raise ConfigError("repeats", f"must be at least 1, not {options.repeats}")
    if options.threads < 0:
        raise ConfigError("threads", f"must be at least 0, not {options.threads}")
    library = NativeLibrary.load()
    if options.threads:
        library.set_threads(options.threads)
    torch.set_num_threads(library.threads)
    bench = _Bench(library, limits, options.repeats, options.most_tokens)
    results: list[KernelResult] = []
    for group in options.groups or GROUPS:
        note(group)
        results += GROUPS[group](bench)
    return KernelReport("kernels", 1, created_now(), describe_machine(limits), library.isa, library.threads, results)


def interleaved(calls: dict[str, Callable[[], object]], repeats: int) -> dict[str, tuple[float, float]]:
    """Median and best seconds of each call, taken in turns; the first turn does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats + 1):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - start)
    return {name: (statistics.median(runs[1:]), min(runs[1:])) for name, runs in seconds.items()}


def _result(
    group: str,
    name: str,
    times: tuple[float, float],
    floor: Bound | None,
    size: int,
    operations: int,
    *,
    read_bytes: int | None = None,
    rival_s: float | None = None,
) -> KernelResult:
    ratio = times[0] / floor.seconds if floor is not None else None
    return KernelResult(group, name, *times, size, operations, floor, ratio, read_bytes, rival_s)


def _linears(bench: _Bench) -> Iterator[KernelResult]:
    """All linears of the model in bf16 at several batch sizes, beside oneDNN's prepacked ones."""
    weights = [[torch.randn(n, k).bfloat16() for n, k in LINEARS] for _ in range(MODEL.num_layers)]
    packed = [pack_dense(weight) for layer in weights for weight in layer]
    prepacked = [(torch.ops.mkldnn._reorder_linear_weight(w, 16), w.shape[1]) for layer in weights for w in layer]
    size = ModelCost.dense(MODEL).layer_bytes
    for count in bench.sizes(1, 4, 16, 64, 256, 512):
        inputs = {k: torch.randn(count, k).bfloat16() for k in (WIDTH, FFN)}
        outputs = {n: torch.empty(count, n).bfloat16() for n, _ in LINEARS}
        program = Program(bench.library, [linear(w, inputs[w.in_features], outputs[w.out_features]) for w in packed])

        def rival(inputs: dict[int, torch.Tensor] = inputs) -> None:
            for weight, width in prepacked:
                torch.ops.mkldnn._linear_pointwise(inputs[width], weight, None, "none", [], "")

        batch = step_batch([(count, count, 0)])
        times = interleaved({"own": partial(program.run, batch), "rival": rival}, bench.repeats)
        operations = size * count
        floor = _floor(bench.limits, size, operations, "bf16")
        yield _result(
            "linear", f"bf16, {count} tokens", times["own"], floor, size, operations, rival_s=times["rival"][0]
        )


def _quantized(bench: _Bench) -> Iterator[KernelResult]:
    """The formats of GGUF files beside bf16, in the same shapes."""
    for count in bench.sizes(1, 16, 256):
        inputs = {k: torch.randn(count, k).bfloat16() for _, k in _BLOCK_SHAPES}
        outputs = {n: torch.empty(count, n).bfloat16() for n, _ in _BLOCK_SHAPES}
        batch = step_batch([(count, count, 0)])
        calls: dict[str, Callable[[], object]] = {}
        sizes: dict[str, int] = {}
        for form in (Format.DENSE_BF16, *BLOCK_BYTES):
            weights = [_block_weight(form, n, k) for _ in range(_BLOCK_COPIES) for n, k in _BLOCK_SHAPES]
            program = Program(
                bench.library, [linear(w, inputs[w.in_features], outputs[w.out_features]) for w in weights]
            )
            calls[form.name] = partial(program.run, batch)
            sizes[form.name] = sum(weight.nbytes for weight in weights)
        operations = 2 * count * _BLOCK_COPIES * sum(n * k for n, k in _BLOCK_SHAPES)
        for name, times in interleaved(calls, bench.repeats).items():
            floor = _floor(bench.limits, sizes[name], operations, "bf16" if name == Format.DENSE_BF16.name else "int8")
            yield _result("quant", f"{name}, {count} tokens", times, floor, sizes[name], operations)


def _block_weight(form: Format, out_features: int, in_features: int) -> PackedWeight:
    if form is Format.DENSE_BF16:
        return pack_dense(torch.randn(out_features, in_features).bfloat16())
    return random_quantized(form, out_features, in_features)


def _attention(bench: _Bench) -> Iterator[KernelResult]:
    """The attention of all layers, with the KV bytes that it read."""
    k, v = random_caches()
    cost = ModelCost.dense(MODEL)
    for name, rows in bench.cases():
        work = case_work(rows)
        q = torch.randn(work.tokens, ATTENDED).bfloat16()
        out = torch.empty_like(q)
        program = Program(bench.library, [attend(q, *layer, out) for layer in zip(k, v, strict=True)])
        batch = step_batch(rows)
        bench.library.reset_counters()
        program.run(batch)
        read = bench.library.kv_traffic().read
        times = interleaved({name: partial(program.run, batch)}, bench.repeats)[name]
        floor = cost.step(work, bench.limits).attention if bench.limits is not None else None
        size, operations = cost.kv_bytes * work.kv_tokens, cost.pair_operations * work.pairs
        yield _result("attention", name, times, floor, size, operations, read_bytes=read)


def _steps(bench: _Bench) -> Iterator[KernelResult]:
    """Whole steps with greedy choice, as one call of the library."""
    # One after the other: two models and caches in turns would only measure each other's evictions.
    for kind in ("bf16", "Q4_1"):
        step = RecordedStep(bench.library, quantized=kind == "Q4_1")
        for name, rows in bench.cases():
            work = case_work(rows)
            times = interleaved({name: partial(step.program.run, step_batch(rows))}, bench.repeats)[name]
            floor = step.cost.step(work, bench.limits).total if bench.limits is not None else None
            size = step.layer_bytes + step.head_bytes + step.cost.kv_bytes * work.kv_tokens
            operations = (
                2 * step.cost.layer_weights * work.tokens
                + 2 * step.cost.head_weights * work.sampled
                + step.cost.pair_operations * work.pairs
            )
            yield _result("step", f"{kind}, {name}", times, floor, size, operations)


def _floor(limits: Limits | None, size: int, operations: int, peak: str) -> Bound | None:
    if limits is None:
        return None
    return bound(size, operations, bandwidth=limits.dram, peak=limits.bf16 if peak == "bf16" else limits.int8)


GROUPS: dict[str, Callable[[_Bench], Iterator[KernelResult]]] = {
    "linear": _linears,
    "quant": _quantized,
    "attention": _attention,
    "step": _steps,
}
