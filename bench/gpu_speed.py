"""Speed: steps beside the roofline that was measured on the device, and what sharing, cascades, graphs and chunks bring."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np

from bench.gpu_bed import Bed, Job, measured_limits, prompts, run_jobs
from bench.gpu_scene import plan_row
from radixserve.attention.flashinfer.backend import FlashInferAttention
from radixserve.engine.assembly import Assembly
from radixserve.model.config import ModelConfig
from radixserve.model.weights import weight_shapes
from radixserve.runtime.model_runner import ModelRunner
from radixserve.scheduler.plan import StepPlan

Report = dict[str, Any]


def limits(bed: Bed) -> Report:
    """What the device copies and multiplies."""
    found = measured_limits(bed)
    return {"bytes_per_s": found.bytes_s, "flops_per_s": found.flops_s}


def decode(bed: Bed) -> Report:
    """Steps of decodes, launched as graphs and one by one, beside the reading of all weights and contexts."""
    context = 100 if bed.small else 1000
    rows = (1, 3) if bed.small else (1, 8, 32, 64)
    report: Report = {"context": context, "steps": []}
    for graph in ("off", "on") if bed.on_gpu else ("off",):
        options: Report = {"cuda_graph": graph, "max_running": max(rows)} if bed.on_gpu else {}
        assembly = bed.assembly(**options)
        for count in rows:
            report["steps"].append({"graphs": graph, **_decode_step(bed, assembly, count, context)})
        assembly.core.close()
    return report


def _decode_step(bed: Bed, assembly: Assembly, rows: int, context: int) -> Report:
    config, runner = bed.config(), _filled(assembly.runner)
    pages = -(-(context + 1) // runner.kv.block_size)
    tables = [np.arange(row * pages, (row + 1) * pages) % assembly.info.num_blocks for row in range(rows)]
    plan = StepPlan(0, tuple(plan_row([5], table, start=context) for table in tables))
    seconds = bed.seconds(lambda: runner.execute(plan))
    read = _weight_count(config) * bed.dtype.itemsize + rows * context * config.kv_bytes_per_token(bed.dtype.itemsize)
    floor = read / measured_limits(bed).bytes_s
    return {
        "rows": rows,
        "ms": 1000 * seconds,
        "floor_ms": 1000 * floor,
        "of_roofline": floor / seconds,
        "tokens_per_s": rows / seconds,
    }


def prefill(bed: Bed) -> Report:
    """Prompts computed in one step, beside the products of their tokens and the pairs that attend to each other."""
    config, tokens = bed.config(), (64, 200) if bed.small else (512, 2048, 8192)
    fewer: Report = {"max_running": 8} if bed.small else {}
    assembly = bed.assembly(max_batch_tokens=max(tokens), **fewer)
    runner = _filled(assembly.runner)
    steps = []
    for count in tokens:
        table = np.arange(-(-count // runner.kv.block_size))
        plan = StepPlan(0, (plan_row([5] * count, table),))
        seconds = bed.seconds(functools.partial(runner.execute, plan), times=5)
        # Two operations for each weight of a layer and token, and four for each pair, query head and element of a head.
        products = 2 * count * (_weight_count(config) - config.vocab_size * config.hidden_size)
        attended = 4 * config.num_layers * config.num_heads * config.head_dim * count * (count + 1) // 2
        floor = (products + attended) / measured_limits(bed).flops_s
        steps.append(
            {
                "tokens": count,
                "ms": 1000 * seconds,
                "floor_ms": 1000 * floor,
                "of_roofline": floor / seconds,
                "tokens_per_s": count / seconds,
            }
        )
    assembly.core.close()
    return {"steps": steps}


def serve(bed: Bed) -> Report:
    """Requests through scheduler, cache and sampler."""
    count, tokens = (4, 6) if bed.small else (64, 128)
    assembly = bed.assembly(max_batch_tokens=256 if bed.small else 2048)
    jobs = [Job(prompt, tokens) for prompt in prompts(count, 0, 50 if bed.small else 500, bed.config().vocab_size)]
    run_jobs(assembly, [Job(jobs[0].prompt[:9], 2)])
    run = run_jobs(assembly, jobs)
    facts = dict(assembly.info.runner)
    assembly.core.close()
    return {
        "requests": count,
        "output_tokens": count * tokens,
        "prompt_tokens": sum(len(job.prompt) for job in jobs),
        "seconds": run.seconds,
        "output_tokens_per_s": count * tokens / run.seconds,
        "runner": facts,
        "weights": _weight_count(bed.config()),
    }


def prefix_sharing(bed: Bed) -> Report:
    """Sixteen agents over one prompt, with the radix cache and without."""
    count, shared, own, tokens = (4, 100, 10, 3) if bed.small else (16, 1500, 100, 32)
    jobs = [Job(prompt, tokens) for prompt in prompts(count, shared, own, bed.config().vocab_size)]
    report: Report = {"requests": count, "shared_tokens": shared}
    for cache in ("on", "off"):
        assembly = bed.assembly(prefix_cache=cache)
        run_jobs(assembly, [Job(prompts(1, 0, 20, bed.config().vocab_size, seed=9)[0], 2)])
        report[f"seconds_{cache}"] = run_jobs(assembly, jobs).seconds
        assembly.core.close()
    return {**report, "times_faster": report["seconds_off"] / report["seconds_on"]}


def cascade(bed: Bed) -> Report:
    """Steps of decodes over one long prompt: its pages read once for all rows, or once for each."""
    bed.need_gpu("the CPU's backends share reads within their kernels")
    assembly = bed.assembly(cuda_graph="off")
    runner = _filled(assembly.runner)
    assert isinstance(runner.attention, FlashInferAttention)
    cost, steps = runner.attention.cost, []
    for rows, shared in ((4, 1500), (16, 1500), (16, 8000), (64, 8000)):
        trunk = np.arange(-(-shared // 16))
        tables = [np.concatenate((trunk, [len(trunk) + row])) for row in range(rows)]
        plan = StepPlan(0, tuple(plan_row([5], table, start=16 * len(trunk) + 3) for table in tables))
        step: Report = {"rows": rows, "shared_tokens": shared}
        for name, level in (("on", 0), ("off", 1 << 60)):
            runner.attention.cost = type(cost)(cost.page, cost.token, level)
            before = runner.attention.cascades
            step[f"ms_{name}"] = 1000 * bed.seconds(functools.partial(runner.execute, plan))
            assert (runner.attention.cascades > before) == (name == "on")
        runner.attention.cost = cost
        before = runner.attention.cascades
        runner.execute(plan)
        step["chosen_by_rule"] = runner.attention.cascades > before
        steps.append(step)
    assembly.core.close()
    return {"steps": steps}


def inter_token_latency(bed: Bed) -> Report:
    """The P99 gap between the tokens of running requests while long prompts arrive, in chunks and whole."""
    running, tokens, long, arriving = (2, 12, 100, 1) if bed.small else (16, 400, 8000, 8)
    config = bed.config()
    jobs = [Job(prompt, tokens) for prompt in prompts(running, 0, 64 if not bed.small else 8, config.vocab_size)]
    jobs += [Job(prompt, 2) for prompt in prompts(arriving, 0, long, config.vocab_size, seed=1)]
    # One after the other, while the others run.
    later = {running + index: 8 + (tokens // (2 * arriving)) * index for index in range(arriving)}
    report: Report = {"running": running, "prompts": arriving, "prompt_tokens": long}
    for name, chunked in (("chunked", True), ("whole", False)):
        sizes: Report = {"max_batch_tokens": 64} if bed.small else {"context_length": long + 1000}
        assembly = bed.assembly(chunked_prefill=chunked, **sizes)
        run_jobs(assembly, jobs[:1])
        run = run_jobs(assembly, jobs, later=later)
        gaps = [gap for job in range(running) for gap in run.gaps_ms(job)]
        report[f"{name}_p99_ms"] = float(np.percentile(gaps, 99))
        report[f"{name}_median_ms"] = statistics.median(gaps)
        report[f"{name}_seconds"] = run.seconds
        assembly.core.close()
    return report


def deterministic_cost(bed: Bed) -> Report:
    """What deterministic mode takes: the same decodes and the same prompt, with it and without."""
    bed.need_gpu("a CPU computes so anyway")
    report: Report = {}
    for deterministic in (False, True):
        assembly = bed.assembly(deterministic=deterministic, max_batch_tokens=2048)
        runner = _filled(assembly.runner)
        name = "deterministic" if deterministic else "default"
        report[name] = {"decode": _decode_step(bed, assembly, 32, 1000)}
        plan = StepPlan(0, (plan_row([5] * 2048, np.arange(128)),))
        report[name]["prefill_2048_ms"] = 1000 * bed.seconds(functools.partial(runner.execute, plan), times=5)
        assembly.core.close()
    return report


def _filled(runner: object) -> ModelRunner:
    """The runner, whose pool holds numbers now: what a step reads that nobody computed must not be NaN."""
    assert isinstance(runner, ModelRunner)
    for index in range(runner.kv.num_layers):
        for half in runner.kv.layer(index):
            half.normal_()
    return runner


def _weight_count(config: ModelConfig) -> int:
    return sum(int(np.prod(shape)) for shape in weight_shapes(config).values())


SPEED: dict[str, tuple[float, Callable[[Bed], Report]]] = {
    "limits": (20, limits),
    "serve": (40, serve),
    "decode": (50, decode),
    "prefill": (40, prefill),
    "inter_token_latency": (50, inter_token_latency),
    "cascade": (40, cascade),
    "prefix_sharing": (40, prefix_sharing),
    "deterministic_cost": (50, deterministic_cost),
}


def summary(results: dict[str, Report]) -> list[str]:
    """What was measured, in lines for a reader."""

    def steps(name: str) -> list[Report]:
        found: list[Report] = results.get(name, {}).get("steps", [])
        return found

    lines = []
    if found := results.get("limits"):
        speed, power = found["bytes_per_s"] / 1e12, found["flops_per_s"] / 1e12
        lines.append(f"device: copies {speed:.2f} TB/s, products {power:.0f} TFLOP/s")
    lines += [
        f"decode, graphs {step['graphs']}, {step['rows']} rows: {step['ms']:.2f} ms, {step['of_roofline']:.1%} of the roofline"
        for step in steps("decode")
    ]
    lines += [
        f"prefill of {step['tokens']}: {step['ms']:.2f} ms, {step['of_roofline']:.1%} of the roofline"
        for step in steps("prefill")
    ]
    if found := results.get("serve"):
        lines.append(f"serving {found['requests']} requests: {found['output_tokens_per_s']:.0f} tokens/s")
    if found := results.get("prefix_sharing"):
        lines.append(f"prefix sharing: {found['seconds_on']:.2f} s, without {found['seconds_off']:.2f} s")
    lines += [
        f"cascade, {step['rows']} rows over {step['shared_tokens']} tokens: {step['ms_on']:.2f} ms, without {step['ms_off']:.2f} ms"
        for step in steps("cascade")
    ]
    if found := results.get("inter_token_latency"):
        lines.append(f"P99 gap: {found['chunked_p99_ms']:.1f} ms, without chunks {found['whole_p99_ms']:.1f} ms")
    return lines
