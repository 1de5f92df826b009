"""What the operator sees while the server starts: progress, then one screen."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TextIO

from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from radixserve.server.service import Service


class Screen:
    """Progress and facts on ``stream``; on a terminal the progress line is replaced, elsewhere lines follow lines."""

    def __init__(self, stream: TextIO) -> None:
        self._console = Console(file=stream, highlight=False)
        self._status = self._console.status("starting") if self._console.is_terminal else None
        if self._status is not None:
            self._status.start()

    def progress(self, text: str) -> None:
        """What is being done now."""
        with _writing():
            if self._status is not None:
                self._status.update(escape(text))
            else:
                self._console.print(escape(text), soft_wrap=True)

    def show(self, service: Service, url: str) -> None:
        """The server is ready at ``url``."""
        self.close()
        info = service.info
        facts = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
        facts.add_column(style="dim")
        facts.add_column(overflow="fold")
        runner = info.runner
        tokens = info.num_blocks * info.block_size
        rows = {
            "model": f"{', '.join(service.names)} ({info.architecture}, {info.source})",
            "arithmetic": ", ".join(f"{name} {value}" for name, value in runner.items() if not name.endswith("bytes")),
            "KV cache": f"{info.num_blocks:,} blocks of {info.block_size} = {tokens:,} tokens, {_megabytes(runner)}",
            "context": f"{info.context_length:,} tokens",
            "access": _access(service),
            "URL": f"{url}/v1",
        }
        for name, value in rows.items():
            facts.add_row(name, escape(value))
        with _writing():
            self._console.print(Panel(facts, title="radixserve is ready", title_align="left", border_style="green"))
            for reason in info.broken_promises:
                self._console.print(f"[yellow]cold == warm cannot be kept on this machine:[/] {escape(reason)}")
            self._console.print(escape(_curl(service, url)), soft_wrap=True)

    def close(self) -> None:
        """No more progress."""
        if self._status is not None:
            self._status.stop()
            self._status = None


@contextlib.contextmanager
def _writing() -> Iterator[None]:
    """A server serves also where nobody can read its screen (a closed standard error, a full disk)."""
    with contextlib.suppress(OSError, ValueError):
        yield


def _megabytes(runner: dict[str, str | int]) -> str:
    size = runner.get("kv_bytes")
    return f"{int(size) >> 20:,} MiB" if size is not None else "size unknown"


def _access(service: Service) -> str:
    keys = len(service.options.api_key)
    api = "open to all" if not keys else f"{keys} API key{'s' if keys > 1 else ''}"
    return f"{api}, {'with' if service.callers.has_admin else 'no'} admin key"


def _curl(service: Service, url: str) -> str:
    key = " -H 'Authorization: Bearer YOUR_KEY'" if service.options.api_key else ""
    body = (
        f'{{"model": "{service.name}", "messages": [{{"role": "user", "content": "Say hello."}}], '
        '"max_tokens": 32, "temperature": 0.2}'
    )
    return f"curl {url}/v1/chat/completions{key} -H 'Content-Type: application/json' -d '{body}'"
