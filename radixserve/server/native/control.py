"""Ending requests and emptying the cache."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from radixserve.errors import InvalidRequest
from radixserve.server import bodies
from radixserve.server.errors import JSONResponse
from radixserve.server.native.parameters import parameters
from radixserve.server.requests import admin_of, caller_of, service_of

MAX_RIDS = 10_000


class AbortRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which requests to end: by the names they were sent with or given, or all of the caller's own.

    With the admin key others' requests are found as well. ``abort_message`` is inert.
    """

    rid: str | None = None
    rids: list[str] | None = None
    abort_all: bool | None = None
    abort_message: str | None = None


class AbortResult(msgspec.Struct, kw_only=True):
    """``found``: how many of them were running or waiting; 0 is no error."""

    found: int


class FlushRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What to drop: the caller's own namespace, the part of it under ``cache_salt``, or everything (admin).

    ``all`` and ``cache_salt`` may stand in the URL instead.
    """

    all: bool = False
    cache_salt: str | None = None


class FlushResult(msgspec.Struct, kw_only=True):
    """``blocks``: how many were dropped; those that running requests use stay."""

    blocks: int


async def abort(request: Request) -> Response:
    """End requests."""
    service, caller = service_of(request), caller_of(request)
    fields = await bodies.read(request, AbortRequest, service.body_limit)
    given = [name for name in ("rid", "rids") if getattr(fields, name) is not None]
    if fields.abort_all:
        given.append("abort_all")
    if len(given) != 1:
        raise InvalidRequest(
            given[1] if given else "rid", "exactly one of rid, rids and abort_all must be given", "invalid_value"
        )
    names = fields.rids if fields.rid is None else [fields.rid]
    if names is not None and len(names) > MAX_RIDS:
        raise InvalidRequest("rids", f"holds {len(names)} names, at most {MAX_RIDS} are taken")
    return JSONResponse(AbortResult(found=await service.abort(caller, names)))


async def flush_cache(request: Request) -> Response:
    """Drop what is cached and not in use."""
    service, caller = service_of(request), caller_of(request)
    fields = parameters(request, FlushRequest)
    if request.method == "POST":
        fields = await bodies.read(request, FlushRequest, service.body_limit, default=fields)
    if fields.all:
        if fields.cache_salt is not None:
            raise InvalidRequest("cache_salt", "all namespaces are dropped with all: true")
        admin_of(request)
    salt = None if fields.all else service.callers.salt(caller, fields.cache_salt)
    return JSONResponse(FlushResult(blocks=await service.client.flush(salt)))
