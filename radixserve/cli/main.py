"""The entry point ``radixserve``."""

from __future__ import annotations

import importlib.metadata
from typing import Annotated

import typer

from radixserve.cli.bench import Benches, bench_app
from radixserve.cli.chat import chat_command
from radixserve.cli.engine import EngineFactory, open_engine
from radixserve.cli.generate import generate_command
from radixserve.cli.plan import plan_command
from radixserve.cli.serve import Serve, serve_command, serve_http


def build_app(
    factory: EngineFactory = open_engine, serve: Serve = serve_http, benches: Benches | None = None
) -> typer.Typer:
    """The command line over engines that ``factory`` opens from flat engine options, a server that ``serve`` runs, and ``benches``."""
    app = typer.Typer(
        name="radixserve",
        help="Serve language models from a radix tree of paged KV blocks.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(_root)
    app.command("serve")(serve_command(serve))
    app.command("generate")(generate_command(factory))
    app.command("chat")(chat_command(factory))
    app.command("plan")(plan_command())
    app.add_typer(bench_app(benches or Benches()), name="bench")
    return app


def main() -> None:
    """Run the command line."""
    import readline  # noqa: F401  line editing and history for input()

    build_app()(prog_name="radixserve")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"radixserve {importlib.metadata.version('radixserve')}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Serve language models from a radix tree of paged KV blocks."""
