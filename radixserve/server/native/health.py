"""Whether the server lives, whether it can answer, and its metrics."""

from __future__ import annotations

import time
from typing import Literal

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from radixserve.errors import EngineClosed
from radixserve.server.errors import JSONResponse
from radixserve.server.metrics import CONTENT_TYPE
from radixserve.server.requests import service_of
from radixserve.server.service import Service


class Health(msgspec.Struct, kw_only=True):
    """All is well."""

    status: Literal["ok"] = "ok"


async def health(request: Request) -> Response:
    """Alive: 503 with the reason once the engine is gone."""
    _check_alive(service_of(request))
    return JSONResponse(Health())


async def ready(request: Request) -> Response:
    """Able to answer: a token was generated lately, or is now."""
    service = service_of(request)
    _check_alive(service)
    if not service.ready:
        raise HTTPException(503, "the server is warming up or ending")
    if not service.token_lately:
        await _generate(service)
    return JSONResponse(Health())


async def health_generate(request: Request) -> Response:
    """Able to answer: a token is generated now, warmed up or not."""
    service = service_of(request)
    _check_alive(service)
    await _generate(service)
    return JSONResponse(Health())


async def metrics(request: Request) -> Response:
    """All series; those of the engine are missing once it is gone."""
    service = service_of(request)
    try:
        stats = await service.client.stats()
    except EngineClosed:
        stats = {}
    return Response(service.metrics.render(stats), media_type=CONTENT_TYPE)


def _check_alive(service: Service) -> None:
    if service.client.failure is not None:
        raise EngineClosed(service.client.failure)


async def _generate(service: Service) -> None:
    began = time.perf_counter()
    reason = await service.probe.run()
    # Where others got tokens meanwhile, the engine is busy and well.
    if reason is not None and service.last_token < began:
        raise HTTPException(503, reason)
