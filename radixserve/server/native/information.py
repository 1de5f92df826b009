"""What is served, by what, and with which options."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import time
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from radixserve.server.errors import JSONResponse
from radixserve.server.requests import service_of
from radixserve.server.service import Service

# Options that are secrets: only whether they are set is told.
_SECRET = {"api_key", "admin_key"}


class ModelInfo(msgspec.Struct, kw_only=True):
    """SGLang's fields, and facts about the model. ``preferred_sampling_params``: defaults of its own files."""

    model_path: str
    tokenizer_path: str
    is_generation: bool
    preferred_sampling_params: dict[str, Any] | None
    served_model_name: str
    architecture: str
    fingerprint: str
    vocab_size: int
    hidden_size: int
    context_length: int
    eos_token_ids: list[int]
    has_chat_template: bool


class ServerInfo(msgspec.Struct, kw_only=True):
    """Everything in effect. ``runner``: which kernels run; ``broken_promises``: why bits may depend on the batch here.

    ``max_total_num_tokens``: tokens of KV that the pool holds. ``stats``: as the engine counts, None once it is gone, and
    then ``failure`` says why. Where an option is a secret, the value says only whether it is set.
    """

    served_model_name: str
    served_model_names: list[str]
    model_path: str
    version: str
    status: str
    failure: str | None
    uptime_s: float
    context_length: int
    block_size: int
    num_blocks: int
    max_total_num_tokens: int
    max_running_requests: int
    engine: dict[str, Any]
    server: dict[str, Any]
    runner: dict[str, str | int]
    broken_promises: list[str]
    active_requests: int
    stats: dict[str, Any] | None


class Version(msgspec.Struct, kw_only=True):
    """The package's version."""

    version: str


class Welcome(msgspec.Struct, kw_only=True):
    """Where to go from here; paths by what they are for."""

    name: str
    version: str
    model: str
    links: dict[str, str]


def version() -> str:
    """The installed package's."""
    return importlib.metadata.version("radixserve")


async def model_info(request: Request) -> Response:
    """Facts about the model."""
    service = service_of(request)
    info = service.info
    preferred = msgspec.to_builtins(info.default_sampling)
    return JSONResponse(
        ModelInfo(
            model_path=info.model,
            tokenizer_path=info.model,
            is_generation=True,
            preferred_sampling_params=preferred or None,
            served_model_name=service.name,
            architecture=info.architecture,
            fingerprint=info.fingerprint,
            vocab_size=info.vocab_size,
            hidden_size=info.hidden_size,
            context_length=info.context_length,
            eos_token_ids=list(info.eos_ids),
            has_chat_template=service.text.chat_template is not None,
        )
    )


async def server_info(request: Request) -> Response:
    """Facts about the server, its engine and what both are doing."""
    service = service_of(request)
    info = service.info
    failure = service.client.failure
    return JSONResponse(
        ServerInfo(
            served_model_name=service.name,
            served_model_names=list(service.names),
            model_path=info.model,
            version=version(),
            status="failed" if failure is not None else "ready" if service.ready else "not ready",
            failure=failure,
            uptime_s=round(time.time() - service.created, 3),
            context_length=info.context_length,
            block_size=info.block_size,
            num_blocks=info.num_blocks,
            max_total_num_tokens=info.num_blocks * info.block_size,
            max_running_requests=info.max_running,
            engine=info.options,
            server=_options(service),
            runner=info.runner,
            broken_promises=info.broken_promises,
            active_requests=service.num_active,
            stats=await service.client.stats() if failure is None else None,
        )
    )


async def show_version(request: Request) -> Response:
    """The version."""
    return JSONResponse(Version(version=version()))


async def welcome(request: Request) -> Response:
    """What this is."""
    service = service_of(request)
    return JSONResponse(
        Welcome(
            name="radixserve",
            version=version(),
            model=service.name,
            links={
                "interface": "/openapi.json",
                "models": "/v1/models",
                "chat": "/v1/chat/completions",
                "health": "/health",
                "metrics": "/metrics",
                "server": "/server_info",
                "cache": "/cache",
            },
        )
    )


def _options(service: Service) -> dict[str, Any]:
    options = service.options
    return {
        item.name: bool(getattr(options, item.name)) if item.name in _SECRET else getattr(options, item.name)
        for item in dataclasses.fields(options)
    }
