"""What a handler reads off a request besides its body."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from starlette.requests import Request

from radixserve.errors import InvalidRequest
from radixserve.server.callers import Caller
from radixserve.server.service import Service

T = TypeVar("T")

# Bytes of a body whose text takes well below a millisecond to render and tokenize.
_SHORT = 8192


def service_of(request: Request) -> Service:
    """The service that the application was built for."""
    service: Service = request.app.state.service
    return service


def caller_of(request: Request) -> Caller:
    """Who sent the request, as the gate found."""
    caller: Caller = request.scope["radixserve.caller"]
    return caller


def admin_of(request: Request) -> Caller:
    """The caller, who must be the operator. Raises `InvalidRequest` with code ``admin_key_required``."""
    caller = caller_of(request)
    if not caller.admin:
        how = "send it as 'Authorization: Bearer KEY'"
        if not service_of(request).callers.has_admin:
            how = "start the server with --admin-key to have one"
        raise InvalidRequest(None, f"this needs the admin key; {how}", "admin_key_required")
    return caller


async def off_loop(request: Request, make: Callable[..., T], *arguments: object) -> T:
    """``make(*arguments)``, on a thread where the request is long: nobody's stream should wait for its tokenizing."""
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) <= _SHORT:
        return make(*arguments)
    return await asyncio.to_thread(make, *arguments)
