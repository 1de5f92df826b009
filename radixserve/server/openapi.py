"""The OpenAPI document, made from the table of endpoints and the structs that they decode and encode."""

from __future__ import annotations

import functools
import importlib.metadata
import re
from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from radixserve.server.endpoints import Endpoint
from radixserve.server.errors import ErrorBody
from radixserve.server.gate import OPEN_PATHS

_REFERENCE = "#/components/schemas/{name}"
_CONVERTER = re.compile(r"\{(\w+)(?::\w+)?\}")


def document(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """OpenAPI 3.1 for ``endpoints``."""
    types = [kind for endpoint in endpoints for kind in (endpoint.body, endpoint.answer, endpoint.stream) if kind]
    unique = list(dict.fromkeys([*types, ErrorBody]))
    schemas, components = msgspec.json.schema_components(unique, ref_template=_REFERENCE)
    schema_of = dict(zip(unique, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        path = _CONVERTER.sub(r"{\1}", endpoint.path)
        paths.setdefault(path, {})[endpoint.method.lower()] = _operation(endpoint, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "radixserve",
            "version": importlib.metadata.version("radixserve"),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": {name: _named(name, schema) for name, schema in components.items()},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def openapi_handler(endpoints: Sequence[Endpoint]) -> Any:
    """The handler that serves the document of ``endpoints``."""

    @functools.cache
    def made() -> bytes:
        return msgspec.json.encode(document(endpoints))

    async def openapi(request: Request) -> Response:
        """The document."""
        return Response(made(), media_type="application/json")

    return openapi


def _operation(endpoint: Endpoint, schema_of: dict[Any, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if endpoint.answer is not None:
        content["application/json"] = {"schema": schema_of[endpoint.answer]}
    if endpoint.stream is not None:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    if endpoint.media_type is not None:
        content[endpoint.media_type] = {"schema": {"type": "string"}}
    operation: dict[str, Any] = {
        "summary": endpoint.summary,
        "tags": [endpoint.tag],
        "operationId": f"{endpoint.method.lower()}_{re.sub(r'[^a-z0-9]+', '_', endpoint.path.lower()).strip('_')}",
        "responses": {
            "200": {"description": "Done.", **({"content": content} if content else {})},
            "4XX": {
                "description": "Refused; the body names the field.",
                "content": {"application/json": {"schema": schema_of[ErrorBody]}},
            },
            "503": {
                "description": "The engine is gone or not ready.",
                "content": {"application/json": {"schema": schema_of[ErrorBody]}},
            },
        },
    }
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _CONVERTER.findall(endpoint.path)
    ]
    parameters += [
        {"name": item.name, "in": "query", "required": False, "description": item.summary, "schema": item.schema}
        for item in endpoint.query
    ]
    if parameters:
        operation["parameters"] = parameters
    if endpoint.body is not None:
        operation["requestBody"] = {
            "required": endpoint.body_required,
            "content": {"application/json": {"schema": schema_of[endpoint.body]}},
        }
    if endpoint.path not in OPEN_PATHS:
        operation["security"] = [{"key": []}, {}]
    return operation


def _named(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"title": name, **schema}
