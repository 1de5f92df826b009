"""``POST /v1/schema/check``: what becomes of a JSON schema, before it is used."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from radixserve.errors import InvalidRequest
from radixserve.server import bodies
from radixserve.server.errors import JSONResponse
from radixserve.server.requests import service_of
from radixserve.server.streaming import while_connected


class SchemaCheckRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """``schema``: itself, or as JSON text."""

    schema: Any


async def check_schema(request: Request) -> Response:
    """The report; a bad schema is no bad request here."""
    service = service_of(request)
    schema = (await bodies.read(request, SchemaCheckRequest, service.body_limit)).schema
    if isinstance(schema, str):
        try:
            schema = msgspec.json.decode(schema)
        except (msgspec.DecodeError, RecursionError) as error:
            raise InvalidRequest("schema", f"is not valid JSON: {error}", "invalid_json") from None
    return JSONResponse(await while_connected(request.receive, service.schema_checker.check(schema)))
