"""The ASGI application over a `Service`."""

from __future__ import annotations

from collections import defaultdict

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from radixserve.server.bodies import ClientGone
from radixserve.server.endpoints import Endpoint, Handler
from radixserve.server.errors import error_response
from radixserve.server.gate import Gate
from radixserve.server.routes import ENDPOINTS
from radixserve.server.service import Service


def build_app(service: Service) -> ASGIApp:
    """All endpoints over ``service``, behind the gate and, where origins are given, CORS."""
    application = Starlette(
        routes=_routes(ENDPOINTS),
        exception_handlers={HTTPException: _http_error},
    )
    application.router.redirect_slashes = False
    application.state.service = service
    app: ASGIApp = Gate(application, service, frozenset(endpoint.path for endpoint in ENDPOINTS))
    if service.options.cors:
        app = CORSMiddleware(
            app,
            allow_origins=service.options.cors,
            allow_methods=("GET", "POST", "DELETE", "OPTIONS"),
            allow_headers=("*",),
            expose_headers=("X-Request-Id", "Retry-After"),
        )
    return app


def _routes(endpoints: tuple[Endpoint, ...]) -> list[Route]:
    by_path: dict[str, dict[str, Handler]] = defaultdict(dict)
    for endpoint in endpoints:
        by_path[endpoint.path][endpoint.method] = endpoint.handler
    return [Route(path, _dispatch(handlers), methods=list(handlers)) for path, handlers in by_path.items()]


def _dispatch(handlers: dict[str, Handler]) -> Handler:
    """One handler for a path that several methods share; HEAD is GET without its body, as the server sends it."""

    async def dispatch(request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        try:
            return await handlers[method](request)
        except ClientGone:
            # Nobody reads it; the log shows it.
            return Response(status_code=499)
        except Exception as error:
            return error_response(error)

    return dispatch


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "registered for these"
    if error.status_code == 404:
        error = HTTPException(404, f"there is no {request.url.path[:200]} here; /openapi.json lists what there is")
    elif error.status_code == 405:
        error = HTTPException(405, f"{request.method} is not a method of {request.url.path[:200]}", error.headers)
    return error_response(error)
