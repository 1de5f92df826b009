"""Exceptions to HTTP: status codes and OpenAI's error body.

Whatever a client sends ends in a status below 500; 500 is a request that failed while it ran, 503 an engine that is
gone.
"""

from __future__ import annotations

import logging
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import Response

from radixserve.errors import EngineClosed, InvalidRequest, QueueFull, RequestFailed

logger = logging.getLogger(__name__)

# Codes of `InvalidRequest` that are not a 400.
_STATUS = {
    "invalid_api_key": 401,
    "admin_key_required": 403,
    "model_not_found": 404,
    "not_found": 404,
    "request_timeout": 408,
    "request_too_large": 413,
    "unsupported_media_type": 415,
    "queue_full": 429,
}
_KIND = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


class ErrorDetail(msgspec.Struct, kw_only=True):
    """What was wrong: in words, in kind, in which field, and under which stable code."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct, kw_only=True):
    """OpenAI's error body."""

    error: ErrorDetail


class JSONResponse(Response):
    """A JSON body from msgspec structs and plain containers."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """The body's bytes."""
        return msgspec.json.encode(content)


def describe(error: Exception) -> tuple[int, ErrorDetail]:
    """Status and body for an exception; one that nobody raised on purpose is logged and says nothing of itself."""
    if isinstance(error, InvalidRequest):
        status = _STATUS.get(error.code, 400)
        kind = _KIND.get(status, "invalid_request_error")
        return status, ErrorDetail(message=_message(error), type=kind, param=error.param, code=error.code)
    if isinstance(error, HTTPException):
        code = {404: "not_found", 405: "method_not_allowed", 503: "not_ready"}.get(error.status_code)
        kind = "invalid_request_error" if error.status_code < 500 else "server_error"
        return error.status_code, ErrorDetail(message=str(error.detail), type=kind, code=code)
    if isinstance(error, RequestFailed):
        return 500, ErrorDetail(message=f"the request failed: {error.reason}", type="server_error", code="failed")
    if isinstance(error, EngineClosed):
        return 503, ErrorDetail(message=f"the engine is gone: {error}", type="server_error", code="engine_gone")
    logger.error("an unforeseen error in a request", exc_info=error)
    return 500, ErrorDetail(message="internal error; the server's log has it", type="server_error", code="internal")


def error_response(error: Exception) -> JSONResponse:
    """The HTTP answer for an exception."""
    status, detail = describe(error)
    headers: dict[str, str] = {}
    if isinstance(error, QueueFull):
        headers["Retry-After"] = str(error.retry_after_s)
    if isinstance(error, HTTPException) and error.headers:
        headers.update(error.headers)
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(ErrorBody(error=detail), status, headers)


def _message(error: InvalidRequest) -> str:
    # Some clients tell a context overflow by this very text, so the message goes out without the field before it.
    return error.message if error.code == "context_length_exceeded" else str(error)
