"""The table of all endpoints: the routes and the OpenAPI document are made from it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Query:
    """A parameter in the URL; ``schema`` is its JSON schema."""

    name: str
    summary: str
    schema: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One method of one path.

    ``body``, ``answer``: the msgspec types of the request's body and of the JSON response, None where there is none.
    ``body_required``: whether an empty body is refused. ``stream``: the msgspec type of the events where the endpoint
    can stream. ``media_type``: of a response that is not JSON.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    tag: str
    body: Any = None
    answer: Any = None
    stream: Any = None
    media_type: str | None = None
    body_required: bool = True
    query: tuple[Query, ...] = ()
