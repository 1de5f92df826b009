"""The progress of loading: a bar on a terminal, or whoever asked to be told."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Takes a description, the bytes done and the bytes there are in all.
Progress = Callable[[str, int, int], None]


@contextmanager
def byte_progress(description: str, total: int, progress: Progress | bool | None) -> Iterator[Callable[[int], None]]:
    """Yield a function to call with the number of bytes just done, of ``total``.

    ``progress``: who is told of it; True shows a bar on standard error instead, which goes away when all is done; None
    does so if that is a terminal.
    """
    if callable(progress):
        yield _Told(description, total, progress).advance
        return
    if not (sys.stderr.isatty() if progress is None else progress):
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Bar(*columns, console=Console(stderr=True, force_terminal=progress), transient=True) as bar:
        task = bar.add_task(description, total=total)
        yield lambda done: bar.advance(task, done)


class _Told:
    def __init__(self, description: str, total: int, listener: Progress) -> None:
        self._description = description
        self._total = total
        self._listener = listener
        self._done = 0

    def advance(self, count: int) -> None:
        self._done += count
        self._listener(self._description, self._done, self._total)
