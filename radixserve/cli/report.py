"""What the commands print besides the model's text: statistics, tables and errors. All of it goes to standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from radixserve.cli.engine import Output
from radixserve.errors import ConfigError, InvalidRequest, ModelLoadError, RadixServeError

BAD_INPUT = 2
FAILED = 1

# A model can be talked into writing terminal control sequences; only line ends and tabs reach the terminal.
_CONTROLS = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


@contextmanager
def reported_errors() -> Iterator[None]:
    """Turn the package's own errors into one line and an exit code; a bug keeps its traceback."""
    try:
        yield
    except RadixServeError as error:
        report_error(str(error))
        bad_input = isinstance(error, (ConfigError, InvalidRequest, ModelLoadError))
        raise typer.Exit(BAD_INPUT if bad_input else FAILED) from error


def report_error(text: str) -> None:
    """One line that says what is wrong."""
    _console().print(f"[bold red]error:[/] {escape(' '.join(text.split()))}", soft_wrap=True, highlight=False)


def note(text: str) -> None:
    """A remark beside the model's text."""
    _console().print(f"[dim]{escape(text)}[/]", soft_wrap=True, highlight=False)


def write_text(text: str) -> None:
    """Write the model's text as it is made; on a terminal without control characters, elsewhere as it is."""
    sys.stdout.write(text.translate(_CONTROLS) if _is_terminal() else text)
    sys.stdout.flush()


def summary(output: Output) -> str:
    """Tokens, speed and end of one generation in a line."""
    timings = output.timings
    parts = [f"{output.prompt_tokens} prompt tokens ({output.cached_tokens} cached)", f"{output.completion_tokens} new"]
    speed = tokens_per_second(output)
    if speed is not None:
        parts.append(f"{speed:.1f} tokens/s")
    if timings.first_token_s is not None:
        parts.append(f"first token after {timings.first_token_s:.2f} s")
    if output.finish_reason is not None:
        parts.append(f"ended by {output.finish_reason}")
    return ", ".join(parts)


def tokens_per_second(output: Output) -> float | None:
    """Speed of decoding: tokens after the first over the time after the first; None where there is no such time."""
    first = output.timings.first_token_s
    steps = output.completion_tokens - max(1, len(output.samples))
    if first is None or steps < 1 or output.timings.total_s <= first:
        return None
    return steps / (output.timings.total_s - first)


def stats_table(stats: dict[str, Any]) -> None:
    """Counters as a table; nested ones get dotted names."""
    table = Table(show_header=False, box=None)
    table.add_column(style="dim")
    table.add_column(justify="right")
    _add_rows(stats, "", lambda name, value: table.add_row(escape(name), escape(str(value))))
    _console().print(table)


def _add_rows(stats: dict[str, Any], prefix: str, add: Callable[[str, Any], None]) -> None:
    for name, value in stats.items():
        if isinstance(value, dict):
            _add_rows(value, f"{prefix}{name}.", add)
        else:
            add(prefix + name, f"{value:.4g}" if isinstance(value, float) else value)


def _console() -> Console:
    return Console(stderr=True)


def _is_terminal() -> bool:
    return sys.stdout.isatty()
