"""``radixserve plan``: what a program or a log of prompts needs, without a model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from radixserve.cli.flags import EngineOptions, expand_flags
from radixserve.cli.report import reported_errors
from radixserve.config import EngineConfig
from radixserve.errors import ConfigError

if TYPE_CHECKING:
    from radixserve.planner.plan import Plan

_LOGS = (".jsonl", ".ndjson", ".log")


def plan_command() -> Callable[..., None]:
    """The command."""

    @reported_errors()
    @expand_flags
    def command(
        file: Annotated[
            Path,
            typer.Argument(
                metavar="FILE.py|LOG.jsonl",
                help="A Python file with a program and its inputs, or a log: a prompt or the body of a request a line.",
            ),
        ],
        program: Annotated[
            str | None,
            typer.Option(
                help="Name of the program in the file. [default: program, or the only one]", show_default=False
            ),
        ] = None,
        inputs: Annotated[
            Path | None,
            typer.Option(
                help="JSON file with a list of arguments, one entry a run. [default: what the file calls inputs]",
                show_default=False,
            ),
        ] = None,
        recording: Annotated[
            Path | None,
            typer.Option(
                help="Answers of a real run (radixlang.recording), instead of made-up ones.", show_default=False
            ),
        ] = None,
        output_tokens: Annotated[
            int, typer.Option(help="Length of outputs that nothing is known of, where max_tokens is not less.")
        ] = 64,
        concurrency: Annotated[int, typer.Option(help="Programs, or calls of a log, at a time.")] = 64,
        hints: Annotated[bool, typer.Option(help="Programs tell the engine of their forks in advance.")] = True,
        history: Annotated[
            bool,
            typer.Option(
                help="Of a log: answers that come back in conversations keep the tokens they were generated with."
            ),
        ] = True,
        pools: Annotated[
            str | None,
            typer.Option(metavar="BLOCKS,...", help="Sizes of the pool to try the same calls in.", show_default=False),
        ] = None,
        step_cost: Annotated[
            str | None,
            typer.Option(
                metavar="FIXED,TOKEN,PAIR",
                help="Seconds of a step, of each token in it, and of each pair of a token and one that it attends to.",
                show_default=False,
            ),
        ] = None,
        advise: Annotated[bool, typer.Option(help="Look for what could be better.")] = True,
        json: Annotated[
            Path | None, typer.Option("--json", help="Write the numbers to this file.", show_default=False)
        ] = None,
        html: Annotated[
            Path | None, typer.Option(help="Write tables and the tree to this file.", show_default=False)
        ] = None,
        svg: Annotated[
            Path | None, typer.Option(help="Write a picture of the tree to this file.", show_default=False)
        ] = None,
        *,
        options: EngineOptions,
    ) -> None:
        """Tell what a program or a log needs: tokens, hits, blocks, steps, and what could be better.

        It runs through the engine's own cache and scheduler with a stand-in for the model, whose tokenizer and chat template are all
        that is loaded. The pool is ample unless --num-blocks or --kv-memory-mb say otherwise.
        """
        is_log = file.suffix in _LOGS
        _check_kind(is_log, file, program=program, inputs=inputs, recording=recording)
        plan = _plan(
            file,
            is_log=is_log,
            program=program,
            inputs=inputs,
            recording=recording,
            hints=hints,
            history=history,
            config=EngineConfig.from_options(**options),
            settings={
                "output_tokens": output_tokens,
                "concurrency": concurrency,
                "pools": _sizes(pools),
                "advise": advise,
            },
            step_cost=step_cost,
        )
        _show(plan)
        for path, save in ((json, plan.save_json), (html, plan.save_html), (svg, plan.save_svg)):
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                save(path)

    return command


def _plan(
    file: Path,
    *,
    is_log: bool,
    program: str | None,
    inputs: Path | None,
    recording: Path | None,
    hints: bool,
    history: bool,
    config: EngineConfig,
    settings: dict[str, Any],
    step_cost: str | None,
) -> Plan:
    # Imported here so that --help does not wait for it.
    from radixlang.errors import RadixlangError
    from radixlang.recording import Recording
    from radixserve.planner.options import PlanOptions
    from radixserve.planner.planning import plan_log, plan_program
    from radixserve.planner.program_file import read_program
    from radixserve.planner.step_cost import NOMINAL, parse_step_cost

    options = PlanOptions(cost=NOMINAL if step_cost is None else parse_step_cost(step_cost), **settings)
    if is_log:
        return plan_log(file, options=options, config=config, history=history)
    found = read_program(file, program, inputs)
    try:
        answers = None if recording is None else Recording.load(recording)
    except RadixlangError as error:
        raise ConfigError("recording", str(error)) from None
    try:
        return plan_program(
            found.program,
            found.inputs,
            source=str(file),
            options=options,
            config=config,
            recording=answers,
            run_options={"hints": hints},
        )
    except RadixlangError as error:
        raise ConfigError("file", f"the program failed: {error}") from error


def _check_kind(is_log: bool, file: Path, **of_programs: object) -> None:
    if not is_log and file.suffix != ".py":
        raise ConfigError("file", f"{file} is neither a .py file nor a log ({', '.join(_LOGS)})")
    for name, value in of_programs.items():
        if is_log and value is not None:
            raise ConfigError(name, "is for programs, not for logs")


def _sizes(text: str | None) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",")) if text else ()
    except ValueError:
        raise ConfigError("pools", f"must be numbers of blocks, separated by commas, not {text!r}") from None


def _show(plan: Plan) -> None:
    from rich.console import Console

    from radixserve.planner.tables import plan_tables, plan_text

    console = Console()
    if console.is_terminal:
        console.print(plan_tables(plan))
    else:
        typer.echo(plan_text(plan))
