"""``bench serve``: whole workloads against one server or several, in turns, beside what an ideal engine would need."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from radixserve.bench.floors import Floor, ModelCost, Precision, model_costs
from radixserve.bench.ideal import Ideal, ideal_run, longest_context
from radixserve.bench.machine import Limits, Machine, describe_machine
from radixserve.bench.measures import Figures, Run, measure, medians
from radixserve.bench.options import Note, ServeOptions
from radixserve.bench.processes import busy_seconds, listener, usage_below, wait_for_rest
from radixserve.bench.prose import Prose
from radixserve.bench.results import created_now
from radixserve.bench.servers import Server, discover, own_server
from radixserve.bench.session import complete, play
from radixserve.bench.workloads import LONG, Call, Scale, Text, Workload, build_workload
from radixserve.model.text import load_text_model

_WARM_UP_CALLS, _WARM_UP_PROMPT, _WARM_UP_OUTPUT = 4, 40, 8
_PATIENCE_S = 8.0


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The ideal engine on one workload. ``figures``: those of `radixserve.bench.measures` that it bounds."""

    floor: Floor
    steps: int
    computed_tokens: int
    cached_tokens: int
    figures: Figures


@dataclass(frozen=True, slots=True)
class ServerResult:
    """``ratio``: of the median headline figure to its floor (1 is the floor, 2 is twice as slow); None without a floor or with errors."""

    server: str
    median: Figures
    ratio: float | None
    runs: list[Run]


@dataclass(frozen=True, slots=True)
class WorkloadResult:
    """``headline``: the figure by which servers are compared. ``ideal``: by precision of the weights."""

    name: str
    title: str
    calls: int
    concurrency: int
    headline: str
    ideal: dict[str, Ceiling]
    servers: list[ServerResult]


@dataclass(frozen=True, slots=True)
class ServeReport:
    """Everything, as it is written to JSON; the format is described in ``bench/README.md``."""

    kind: str
    format: int
    created: str
    machine: Machine
    model: str
    rounds: int
    seed: int
    scale: Scale
    engine: Mapping[str, Any]
    servers: list[Server]
    workloads: list[WorkloadResult]

    @property
    def errors(self) -> int:
        """Requests that failed, in all runs."""
        return sum(run.errors for workload in self.workloads for server in workload.servers for run in server.runs)


def headline_of(workload: str) -> str:
    """The figure by which servers are compared on a workload; names that end in ``per_s`` are better when larger."""
    return {"W6": "decode_tokens_per_s", "W8": "beside_itl_p99_ms"}.get(workload, "output_tokens_per_s")


def bounded_figure(workload: str) -> str:
    """The figure that the floor of a workload bounds."""
    return "long_ttft_s" if workload == "W8" else headline_of(workload)


def slowness(name: str, value: float, best: float) -> float:
    """How many times worse ``value`` is than ``best`` of a figure."""
    return best / value if name.endswith("per_s") else value / best


async def bench_serve(options: ServeOptions, limits: Limits | None, note: Note) -> ServeReport:
    """Run it all; ``note`` is told what is being done. Raises `ConfigError` and `RadixServeError`."""
    options.validate()
    prose = Prose(load_text_model(options.model).tokenizer)
    costs = model_costs(options.model)
    async with contextlib.AsyncExitStack() as stack:
        url = options.url
        if url is None:
            note("starting the server")
            url = await stack.enter_async_context(own_server({"model": options.model, **options.engine}))
        servers = [
            await discover(name, place, model=options.model_name, native=name in options.native)
            for name, place in {options.name: url, **options.peers}.items()
        ]
        runs: dict[tuple[str, str], list[Run]] = {}
        for number in range(options.rounds):
            for name in options.workloads:
                # Another seed each round, or the second would find its prompts in the caches.
                workload = build_workload(name, prose, options.seed + number, options.scale)
                first = number % len(servers)
                for server in servers[first:] + servers[:first]:
                    note(f"round {number + 1}, {name} {workload.title}, {server.name}")
                    run = await _run(workload, server, prose, options, note)
                    runs.setdefault((name, server.name), []).append(run)
    shapes = [build_workload(name, prose, options.seed, options.scale) for name in options.workloads]
    return ServeReport(
        kind="serve",
        format=1,
        created=created_now(),
        machine=describe_machine(limits),
        model=options.model,
        rounds=options.rounds,
        seed=options.seed,
        scale=options.scale,
        engine=options.engine,
        servers=servers,
        workloads=[_result(workload, servers, runs, costs, limits) for workload in shapes],
    )


async def _run(workload: Workload, server: Server, prose: Prose, options: ServeOptions, note: Note) -> Run:
    """One session, once the machine is at rest, and after a few requests that do not count."""
    process = listener(server.port)
    if process is not None and not await wait_for_rest(_PATIENCE_S):
        note("this machine does not come to rest; foreign CPU tells what others took")
    # Prompts that no other run has, and no workload.
    warm_up = build_workload(
        "W5", prose, -1 - options.seed, Scale(_WARM_UP_CALLS, _WARM_UP_OUTPUT, _WARM_UP_PROMPT / 512)
    )
    await play(warm_up, server, prose=prose if options.token_ids else None)
    if workload.calls[0].schema is not None:
        call = Call((Text("JSON:", 0),), _WARM_UP_OUTPUT, schema=workload.calls[0].schema)
        await complete(server, call, "JSON:")
    before, busy, own = usage_below(process), busy_seconds(), time.process_time()
    session = await play(workload, server, prose=prose if options.token_ids else None)
    after = usage_below(process)
    run = measure(workload, session)
    if process is not None:
        spent, client = after.cpu_s - before.cpu_s, time.process_time() - own
        run.figures["server_cpu_s"] = spent
        run.figures["client_cpu_s"] = client
        run.figures["foreign_cpu_s"] = max(0.0, busy_seconds() - busy - spent - client)
        run.figures["server_peak_mb"] = after.peak_bytes / 2**20
    return run


def _result(
    workload: Workload,
    servers: Sequence[Server],
    runs: Mapping[tuple[str, str], list[Run]],
    costs: Mapping[Precision, ModelCost],
    limits: Limits | None,
) -> WorkloadResult:
    ideal: dict[str, Ceiling] = {}
    for precision in dict.fromkeys(server.precision for server in servers):
        cost = costs.get(precision)
        longest = longest_context(workload)
        if limits is not None and cost is not None and (cost.longest or longest) >= longest:
            ideal[precision] = _ceiling(workload, ideal_run(workload, cost, limits))
    results = []
    for server in servers:
        own = runs[workload.name, server.name]
        median = medians(own)
        ceiling, figure = ideal.get(server.precision), bounded_figure(workload.name)
        whole = ceiling is not None and not any(run.errors for run in own) and figure in median
        ratio = slowness(figure, median[figure], ceiling.figures[figure]) if whole and ceiling is not None else None
        results.append(ServerResult(server.name, median, ratio, own))
    return WorkloadResult(
        workload.name,
        workload.title,
        len(workload.calls),
        workload.concurrency,
        headline_of(workload.name),
        ideal,
        results,
    )


def _ceiling(workload: Workload, ideal: Ideal) -> Ceiling:
    output = sum(call.max_tokens for call in workload.calls)
    figures: Figures = {
        "wall_s": ideal.seconds,
        "output_tokens_per_s": output / ideal.seconds,
        "cached_tokens": float(ideal.cached_tokens),
    }
    decodes = [
        (call.max_tokens - 1) / (ideal.done_s[index] - ideal.first_s[index])
        for index, call in enumerate(workload.calls)
        if call.max_tokens > 1
    ]
    if workload.concurrency == 1 and decodes:
        figures["decode_tokens_per_s"] = sum(decodes) / len(decodes)
    for index, call in enumerate(workload.calls):
        if call.group == LONG:
            figures["long_ttft_s"] = ideal.first_s[index] - ideal.sent_s[index]
    return Ceiling(ideal.floor, ideal.steps, ideal.computed_tokens, ideal.cached_tokens, figures)
