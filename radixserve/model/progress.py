"""The progress bar of loading."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def byte_progress(description: str, total: int, enabled: bool | None) -> Iterator[Callable[[int], None]]:
    """Yield a function to call with the number of bytes just done, of ``total``.

    ``enabled`` None shows the bar only if standard error is a terminal; the bar goes away when all is done.
    """
    if not (sys.stderr.isatty() if enabled is None else enabled):
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True, force_terminal=enabled), transient=True) as bar:
        task = bar.add_task(description, total=total)
        yield lambda done: bar.advance(task, done)
