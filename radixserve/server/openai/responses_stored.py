"""``/v1/responses/{id}``: what is kept of a response, shown, listed and forgotten; the caller's own only."""

from __future__ import annotations

from typing import Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from radixserve.errors import InvalidRequest, UnsupportedFeature
from radixserve.server.endpoints import Query
from radixserve.server.errors import JSONResponse
from radixserve.server.native.parameters import parameters
from radixserve.server.openai.responses_answers import DeletedResponse, ItemList
from radixserve.server.openai.responses_store import StoredResponse
from radixserve.server.requests import caller_of, service_of

_MAX_PAGE = 100

SALT_QUERY = Query(
    "cache_salt", "The salt that the response was made with, where it had one.", {"type": "string", "minLength": 1}
)
LIST_QUERY = (
    Query("limit", "How many items.", {"type": "integer", "minimum": 1, "maximum": _MAX_PAGE, "default": 20}),
    Query("order", "Newest first, or oldest first.", {"type": "string", "enum": ["desc", "asc"], "default": "desc"}),
    Query("after", "The id of the item before the first one.", {"type": "string"}),
    SALT_QUERY,
)


class _Salted(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Where to look. A salt is part of the namespace that a response is stored in."""

    cache_salt: str | None = None


class _Retrieval(_Salted, kw_only=True, forbid_unknown_fields=True):
    """OpenAI's query. Responses are kept when they have ended, so there is nothing to stream."""

    stream: bool | None = None


class _Page(_Salted, kw_only=True, forbid_unknown_fields=True):
    """Which of the items."""

    limit: int = 20
    order: Literal["desc", "asc"] = "desc"
    after: str | None = None


async def get_response(request: Request) -> Response:
    """The response as it ended; 404 where none of that id is kept in the caller's namespace."""
    query = parameters(request, _Retrieval)
    if query.stream:
        raise UnsupportedFeature("stream", "only a response that is being made can be streamed")
    _, stored = _stored(request, query)
    return Response(stored.body, media_type="application/json")


async def delete_response(request: Request) -> Response:
    """Forget it."""
    salt, stored = _stored(request, parameters(request, _Salted))
    service_of(request).responses.delete(salt, stored.id)
    return JSONResponse(DeletedResponse(id=stored.id))


async def list_input_items(request: Request) -> Response:
    """What the response was made from, items of the responses before it included, page by page."""
    page = parameters(request, _Page)
    if not 1 <= page.limit <= _MAX_PAGE:
        raise InvalidRequest("limit", f"must be between 1 and {_MAX_PAGE}")
    _, stored = _stored(request, page)
    items = list(stored.input if page.order == "asc" else reversed(stored.input))
    if page.after is not None:
        at = next((at for at, item in enumerate(items) if item.id == page.after), None)
        if at is None:
            raise InvalidRequest("after", f"no item {page.after[:100]!r} is among them", "not_found")
        items = items[at + 1 :]
    shown = items[: page.limit]
    return JSONResponse(
        ItemList(
            data=[item.shown for item in shown],
            first_id=shown[0].id if shown else None,
            last_id=shown[-1].id if shown else None,
            has_more=len(shown) < len(items),
        )
    )


async def cancel_response(request: Request) -> Response:
    """Refused: only responses that are made in the background can be cancelled, and none are."""
    _stored(request, parameters(request, _Salted))
    raise InvalidRequest(
        "response_id", "only responses made with background: true can be cancelled; this one has ended"
    )


def _stored(request: Request, query: _Salted) -> tuple[bytes, StoredResponse]:
    """The response that the URL names, and its namespace. Raises `InvalidRequest` with code ``not_found``."""
    service = service_of(request)
    salt = service.callers.salt(caller_of(request), query.cache_salt)
    name = request.path_params["response_id"]
    stored = service.responses.get(salt, name)
    if stored is None:
        raise InvalidRequest("response_id", f"no response {name[:100]!r} is stored here", "not_found")
    return salt, stored
