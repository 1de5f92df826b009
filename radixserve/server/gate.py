"""What every request passes before and after its handler: a request id, the API key, the log line and the error body.

Plain ASGI, because a stream must not be taken apart and put together again on its way out.
"""

from __future__ import annotations

import logging
import time
import uuid
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from radixserve.server.errors import error_response
from radixserve.server.logs import request_facts
from radixserve.server.service import Service

logger = logging.getLogger("radixserve.access")

# Open to all: what load balancers, orchestrators and scrapers ask, and the interface's description.
OPEN_PATHS = frozenset({"/", "/health", "/health_generate", "/ping", "/ready", "/metrics", "/openapi.json"})
_MAX_ID = 128


class Gate:
    """Wraps ``app``; ``paths`` are the known ones, under which responses are counted."""

    def __init__(self, app: ASGIApp, service: Service, paths: frozenset[str]) -> None:
        self._app = app
        self._service = service
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request; lifespan events pass through."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        headers = Headers(scope=scope)
        request_id = _request_id(headers.get("x-request-id"))
        scope["radixserve.request_id"] = request_id
        facts: dict[str, Any] = {}
        request_facts.set(facts)
        status = 0

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["X-Request-Id"] = request_id
            await send(message)

        try:
            if scope["path"] not in OPEN_PATHS and scope["method"] != "OPTIONS":
                scope["radixserve.caller"] = self._service.callers.identify(
                    headers.get("authorization"), headers.get("x-api-key")
                )
            await self._app(scope, receive, answer)
        except Exception as error:
            if status:
                # The response has begun: all that is left is to end it, which the server does.
                raise
            await error_response(error)(scope, receive, answer)
        finally:
            self._log(scope, request_id, status, time.perf_counter() - began, facts)

    def _log(self, scope: Scope, request_id: str, status: int, seconds: float, facts: dict[str, Any]) -> None:
        path = scope["path"]
        self._service.metrics.responses.labels(path if path in self._paths else "other", str(status)).inc()
        caller = scope.get("radixserve.caller")
        logger.info(
            "%s %s %d in %.1f ms",
            scope["method"],
            path,
            status,
            seconds * 1e3,
            extra={
                "facts": {
                    "request_id": request_id,
                    "method": scope["method"],
                    "path": path,
                    "status": status,
                    "ms": round(seconds * 1e3, 2),
                    "key": caller.key_id if caller is not None else "",
                    **facts,
                }
            },
        )


def _request_id(given: str | None) -> str:
    """The client's own id where it is one that may stand in a header and a log line."""
    if given and len(given) <= _MAX_ID and given.isascii() and given.isprintable():
        return given
    return f"req-{uuid.uuid4().hex}"
