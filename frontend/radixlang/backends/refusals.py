"""What a server answers instead of a result, as an error of this package."""

from __future__ import annotations

from typing import Any

import msgspec

from radixlang.errors import BackendClosed, BackendError, Refused

# Statuses that are about the request and not about the server.
_OF_THE_REQUEST = range(400, 500)
_NO_SUCH_PATH = (404, 405)
_TIMED_OUT = 408
_UNAVAILABLE = range(502, 505)
_SHOWN = 500


def error_of(status: int, body: bytes, where: str) -> BackendError:
    """The error that a response of ``status`` with ``body`` stands for; ``where`` names the server and the path.

    A refusal for which the server gives no code has one where the path itself is what is missing: ``not_found``.
    """
    detail = _detail(body)
    param, message, code = _text(detail.get("param")), _text(detail.get("message")), _text(detail.get("code"))
    if message is None:
        message = body[:_SHOWN].decode("utf-8", "replace").strip() or f"status {status} without a word"
    if status in _UNAVAILABLE or code == "engine_gone":
        return BackendClosed(f"{where}: {message}")
    if status not in _OF_THE_REQUEST or status == _TIMED_OUT:
        return BackendError(f"{where}: {message}")
    if code is None and status in _NO_SUCH_PATH:
        code = "not_found"
    # Some servers put the field's name before the message as well.
    return Refused(param, message.removeprefix(f"{param}: "), code)


def error_in_stream(data: bytes, where: str) -> BackendError | None:
    """The error that an event of a stream is; None for one that brings something."""
    if not data.startswith(b'{"error"'):
        return None
    kind = _text(_detail(data).get("type")) or ""
    return error_of(500 if kind == "server_error" else 400, data, where)


def _detail(body: bytes) -> dict[str, Any]:
    """OpenAI's ``error`` object, or what other servers have in its place."""
    try:
        answer = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}
    if not isinstance(answer, dict):
        return {}
    for name in ("error", "detail"):
        found = answer.get(name)
        if isinstance(found, dict):
            return found
        if found is not None:
            return {"message": found if isinstance(found, str) else msgspec.json.encode(found).decode()}
    return answer


def _text(value: Any) -> str | None:
    return None if value is None or value == "" else str(value)
