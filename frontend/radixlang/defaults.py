"""The backend of programs that are not told one."""

from __future__ import annotations

from typing import Any

from radixlang.backends.base import Backend
from radixlang.errors import InvalidProgram
from radixlang.loop import background_loop, running_loop, wait_from_thread

_default: Backend | None = None


def set_default_backend(backend: Backend | None) -> None:
    """Programs of this process run on ``backend`` where `run` and its like are not given one."""
    global _default
    _default = backend


def backend_or_default(backend: Backend | None = None) -> Backend:
    """``backend``, or the default. Raises `InvalidProgram` where there is neither."""
    chosen = backend if backend is not None else _default
    if chosen is None:
        raise InvalidProgram("backend", "is not given, and there is no default (set_default_backend)")
    if not hasattr(chosen, "token_exact"):
        raise InvalidProgram(
            "backend", f"is one of this package's backends (Runtime, RuntimeEndpoint, ...), not {chosen!r}"
        )
    return chosen


def flush_cache(backend: Backend | None = None) -> None:
    """Drop what a backend's cache holds and nobody uses. Blocks."""
    _check_thread("flush_cache")
    wait_from_thread(backend_or_default(backend).flush(), background_loop())


def get_server_info(backend: Backend | None = None) -> dict[str, Any]:
    """Facts about a backend's model: at least ``model`` and ``context_length``. Blocks."""
    _check_thread("get_server_info")
    return wait_from_thread(backend_or_default(backend).info(), background_loop())


def _check_thread(what: str) -> None:
    if running_loop() is background_loop():
        raise InvalidProgram(what, "would block the loop that it waits for: await the backend's own method")
