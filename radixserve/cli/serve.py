"""``radixserve serve``: the HTTP server."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from radixserve.cli.flags import EngineOptions, ServerFields, engine_flags, expand_flags, server_flags
from radixserve.cli.report import reported_errors
from radixserve.cli.sources import environment_options, file_options
from radixserve.config import EngineConfig
from radixserve.errors import ConfigError
from radixserve.server.options import ServerOptions

# Serves until it is told to stop; returns the exit code.
Serve = Callable[[dict[str, Any], ServerOptions], int]


def serve_command(serve: Serve) -> Callable[..., None]:
    """The command over ``serve``."""

    @reported_errors()
    @expand_flags
    def command(
        name: Annotated[
            str | None,
            typer.Argument(metavar="MODEL", help="The same as --model.", show_default=False),
        ] = None,
        config: Annotated[
            Path | None,
            typer.Option(help="TOML file with options under the names of these flags.", envvar="RADIXSERVE_CONFIG"),
        ] = None,
        *,
        server: ServerFields,
        options: EngineOptions,
    ) -> None:
        """Serve MODEL (the embedded one unless given) to OpenAI's clients.

        Every option may also stand in the --config file (max_batch_tokens = 1024) or in the environment
        (RADIXSERVE_MAX_BATCH_TOKENS=1024). Flags go before the environment, and that before the file.
        """
        if name is not None and options.setdefault("model", name) != name:
            raise ConfigError("model", f"{name!r} is given as MODEL and {options['model']!r} as --model")
        engine_options, server_options = merge({**options, **server}, os.environ, config)
        raise typer.Exit(serve(engine_options, server_options))

    return command


def merge(
    given: Mapping[str, Any], environment: Mapping[str, str], config: Path | None
) -> tuple[dict[str, Any], ServerOptions]:
    """Engine options by flat name, and the server's, from flags, environment and file; all of them checked.

    Raises `ConfigError`.
    """
    flags = [*engine_flags(beside_sampling=False), *server_flags()]
    merged: dict[str, Any] = {} if config is None else file_options(config, flags)
    merged |= environment_options(environment, flags)
    merged |= given
    names = {item.name for item in dataclasses.fields(ServerOptions)}
    server = {key: value for key, value in merged.items() if key in names}
    engine = {key: value for key, value in merged.items() if key not in names}
    EngineConfig.from_options(**engine)
    server_options = ServerOptions(**server)
    server_options.validate()
    return engine, server_options


def serve_http(engine_options: dict[str, Any], server_options: ServerOptions) -> int:
    """The real thing. It is imported here so that ``--help`` does not wait for it."""
    from radixserve.server.serving import serve

    return serve(engine_options, server_options)
