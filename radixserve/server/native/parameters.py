"""Parameters in a URL, decoded as strictly as a body."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from starlette.requests import Request

from radixserve.errors import InvalidRequest
from radixserve.server.bodies import convert

T = TypeVar("T", bound=msgspec.Struct)


def parameters(request: Request, kind: type[T]) -> T:
    """The struct that the URL's query holds. A flag without a value is true. Raises `InvalidRequest` by name."""
    flags = {item.name for item in msgspec.structs.fields(kind) if item.type is bool}
    values: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name in values:
            raise InvalidRequest(name[:200], "is given twice")
        values[name] = "true" if name in flags and value == "" else value
    return convert(values, kind)
