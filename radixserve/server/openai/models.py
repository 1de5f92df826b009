"""``GET /v1/models`` and ``/v1/models/{id}``."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from radixserve.server.errors import JSONResponse
from radixserve.server.requests import service_of
from radixserve.server.service import Service


class ModelCard(msgspec.Struct, kw_only=True):
    """A model under one of its names. ``max_model_len``: its context in tokens; ``root``: the file it came from."""

    id: str
    created: int
    max_model_len: int
    root: str
    object: str = "model"
    owned_by: str = "radixserve"


class ModelList(msgspec.Struct, kw_only=True):
    """All of them."""

    data: list[ModelCard]
    object: str = "list"


async def list_models(request: Request) -> Response:
    """All names that the model is served under."""
    service = service_of(request)
    return JSONResponse(ModelList(data=[_card(service, name) for name in service.names]))


async def get_model(request: Request) -> Response:
    """One of them; 404 for any other."""
    service = service_of(request)
    name = request.path_params["model"]
    service.check_model(name)
    return JSONResponse(_card(service, name))


def _card(service: Service, name: str) -> ModelCard:
    return ModelCard(
        id=name, created=service.created, max_model_len=service.info.context_length, root=service.info.model
    )
