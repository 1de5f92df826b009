"""``radixserve bench serve | step | kernels``: measurements beside the floors that this machine sets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from radixserve.bench.options import (
    OWN_SERVER,
    Finished,
    FloorOptions,
    KernelOptions,
    Note,
    ServeOptions,
    StepOptions,
)
from radixserve.bench.results import write_result
from radixserve.bench.step_case import DEFAULT_CASES
from radixserve.bench.workloads import NAMES, Scale
from radixserve.cli.flags import EngineOptions, expand_flags
from radixserve.cli.report import FAILED, note, report_error, reported_errors
from radixserve.errors import ConfigError


def _serve(options: ServeOptions, floors: FloorOptions, note: Note) -> Finished:
    from radixserve.bench.commands import run_serve

    return run_serve(options, floors, note)


def _step(options: StepOptions, floors: FloorOptions, note: Note) -> Finished:
    from radixserve.bench.commands import run_step

    return run_step(options, floors, note)


def _kernels(options: KernelOptions, floors: FloorOptions, note: Note) -> Finished:
    from radixserve.bench.commands import run_kernels

    return run_kernels(options, floors, note)


@dataclass(frozen=True, slots=True)
class Benches:
    """What runs the benchmarks. The real ones are imported when they run, so that ``--help`` does not wait for torch."""

    serve: Callable[[ServeOptions, FloorOptions, Note], Finished] = _serve
    step: Callable[[StepOptions, FloorOptions, Note], Finished] = _step
    kernels: Callable[[KernelOptions, FloorOptions, Note], Finished] = _kernels


Limits = Annotated[
    Path | None,
    typer.Option(
        help="Take the machine's limits from this file, a result of before, instead of measuring them.",
        show_default=False,
    ),
]
Floors = Annotated[bool, typer.Option(help="Measure the machine's limits (two seconds), and compute floors from them.")]
Out = Annotated[Path | None, typer.Option(help="Write all figures to this JSON file.", show_default=False)]
Plot = Annotated[Path | None, typer.Option(help="Write a chart to this SVG file.", show_default=False)]


def bench_app(benches: Benches) -> typer.Typer:
    """The commands over ``benches``."""
    app = typer.Typer(
        help="Measure servers, steps and kernels beside the floors that this machine sets.", no_args_is_help=True
    )
    app.command("serve")(serve_command(benches))
    app.command("step")(step_command(benches))
    app.command("kernels")(kernels_command(benches))
    return app


def serve_command(benches: Benches) -> Callable[..., None]:
    """``bench serve``."""

    @reported_errors()
    @expand_flags
    def command(
        url: Annotated[
            str | None,
            typer.Option(
                help="The server under test; without it one is started, with the engine options below.",
                show_default=False,
            ),
        ] = None,
        name: Annotated[str, typer.Option(help="What to call it.")] = OWN_SERVER,
        peer: Annotated[
            list[str] | None,
            typer.Option(
                metavar="NAME=URL",
                help="Another server, measured in turns with it; may be repeated.",
                show_default=False,
            ),
        ] = None,
        native: Annotated[
            list[str] | None,
            typer.Option(
                metavar="NAME",
                help="This server's weights are in the blocks of the model's file: so is its floor; may be repeated.",
                show_default=False,
            ),
        ] = None,
        model_name: Annotated[
            str | None,
            typer.Option(help="What the servers call the model, where they do not tell.", show_default=False),
        ] = None,
        workload: Annotated[
            list[str] | None,
            typer.Option(metavar="|".join(NAMES), help="Only this one; may be repeated.", show_default=False),
        ] = None,
        rounds: Annotated[int, typer.Option(help="Runs of each workload on each server; medians are shown.")] = 3,
        prompt_seed: Annotated[
            int, typer.Option(help="Of the prompts: a server that has seen them is warm. Each round takes the next.")
        ] = 1,
        token_ids: Annotated[bool, typer.Option("--token-ids", help="Send prompts as token ids, not as text.")] = False,
        requests: Annotated[
            int | None, typer.Option(help="Try out: at most so many requests of a workload.", show_default=False)
        ] = None,
        tokens: Annotated[
            int | None, typer.Option(help="Try out: at most so many output tokens of a request.", show_default=False)
        ] = None,
        prompts: Annotated[float, typer.Option(help="Try out: this share of the prompts' lengths.")] = 1.0,
        floors: Floors = True,
        limits: Limits = None,
        out: Out = None,
        plot: Plot = None,
        *,
        options: EngineOptions,
    ) -> None:
        """Run the workloads W1 to W8 against servers of /v1/completions.

        Prompts are made with the tokenizer of --model, whose shapes also give the floors.
        """
        for flag, number in (("requests", requests), ("tokens", tokens)):
            if number is not None and number < 1:
                raise ConfigError(flag, f"must be at least 1, not {number}")
        if not 0 < prompts <= 1:
            raise ConfigError("prompts", f"must be above 0 and at most 1, not {prompts}")
        model = options.pop("model", None)
        given = ServeOptions(
            url=url,
            name=name,
            peers=_peers(peer or ()),
            native=frozenset(native or ()),
            model=model or ServeOptions().model,
            model_name=model_name,
            engine=options,
            workloads=tuple(workload or NAMES),
            rounds=rounds,
            seed=prompt_seed,
            scale=Scale(requests, tokens, prompts),
            token_ids=token_ids,
        )
        _show(benches.serve(given, FloorOptions(floors, limits), note), out, plot)

    return command


def step_command(benches: Benches) -> Callable[..., None]:
    """``bench step``."""

    @reported_errors()
    @expand_flags
    def command(
        case: Annotated[
            list[str] | None,
            typer.Option(
                help="16@1000 is 16 decodes at 1,000 tokens, 16@1000/shared the same with one prefix, p512@1000 512 tokens of a prompt "
                f"over 1,000, and a plus joins two; may be repeated. [default: {' '.join(DEFAULT_CASES)}]",
                show_default=False,
            ),
        ] = None,
        steps: Annotated[int, typer.Option(help="Timed steps of each case.")] = StepOptions().steps,
        busy: Annotated[int, typer.Option(help="Start so many processes that compete for the cores.")] = 0,
        floors: Floors = True,
        limits: Limits = None,
        out: Out = None,
        plot: Plot = None,
        *,
        options: EngineOptions,
    ) -> None:
        """Time steps of an engine in this process, and say where the time goes.

        Contexts are computed first: 64 unrelated ones of 1,000 tokens take as long as a prompt of 64,000.
        """
        given = StepOptions(options, tuple(case or DEFAULT_CASES), steps, busy)
        _show(benches.step(given, FloorOptions(floors, limits), note), out, plot)

    return command


def kernels_command(benches: Benches) -> Callable[..., None]:
    """``bench kernels``."""
    default = KernelOptions()

    @reported_errors()
    def command(
        group: Annotated[
            list[str] | None,
            typer.Argument(metavar="[linear|quant|attention|step]...", help="Which (all).", show_default=False),
        ] = None,
        threads: Annotated[int, typer.Option(help="Of all competitors; 0 takes the cores this process may use.")] = 0,
        repeats: Annotated[int, typer.Option(help="Runs of each; medians are shown.")] = default.repeats,
        most_tokens: Annotated[int, typer.Option(help="Leave larger batches out.")] = default.most_tokens,
        floors: Floors = True,
        limits: Limits = None,
        out: Out = None,
        plot: Plot = None,
    ) -> None:
        """Time the native kernels by themselves, beside oneDNN's prepacked linears."""
        given = KernelOptions(tuple(group or ()), threads, repeats, most_tokens)
        _show(benches.kernels(given, FloorOptions(floors, limits), note), out, plot)

    return command


def _peers(texts: list[str] | tuple[str, ...]) -> dict[str, str]:
    peers: dict[str, str] = {}
    for text in texts:
        name, found, url = text.partition("=")
        if not name or not found or not url:
            raise ConfigError("peer", f"must be NAME=URL, not {text!r}")
        if name in peers:
            raise ConfigError("peer", f"{name!r} is given twice")
        peers[name] = url
    return peers


def _show(done: Finished, out: Path | None, plot: Path | None) -> None:
    """Print the tables and write the files; raises `typer.Exit` where requests failed."""
    typer.echo(done.text, nl=False)
    if out is not None:
        write_result(done.report, out)
    if plot is not None:
        plot.parent.mkdir(parents=True, exist_ok=True)
        plot.write_text(done.chart)
    if done.errors:
        report_error(f"{done.errors} requests failed")
        raise typer.Exit(FAILED)
