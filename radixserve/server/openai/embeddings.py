"""``POST /v1/embeddings``: pooled final hidden states of a language model.

A model that was trained to write text and not to embed it gives vectors that tell topics apart and no more; the answer
says how they were made.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from radixserve.errors import UnsupportedFeature
from radixserve.messages import Pooling, SamplingParams
from radixserve.server import bodies
from radixserve.server.errors import JSONResponse
from radixserve.server.openai.prompts import parse_prompts
from radixserve.server.requests import caller_of, off_loop, service_of
from radixserve.server.service import new_id
from radixserve.server.streaming import while_connected


class EmbeddingRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """OpenAI's fields, and ``pooling`` of ours: ``mean`` over the text's tokens, or the ``last`` one's state."""

    input: str | list[Any]
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    user: str | None = None
    pooling: Literal["mean", "last"] | None = None
    priority: int | None = None
    cache_salt: str | None = None


class Embedding(msgspec.Struct, kw_only=True):
    """One vector of length 1: numbers, or with ``base64`` their little-endian float32 bytes."""

    index: int
    embedding: list[float] | str
    object: str = "embedding"


class EmbeddingUsage(msgspec.Struct, kw_only=True):
    """Tokens of all inputs."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(msgspec.Struct, kw_only=True):
    """The answer. ``pooling``: how the vectors were made of the model's final hidden states."""

    data: list[Embedding]
    model: str
    usage: EmbeddingUsage
    pooling: str
    object: str = "list"


async def embeddings(request: Request) -> Response:
    """Handle one request."""
    service, caller = service_of(request), caller_of(request)
    fields = await bodies.read(request, EmbeddingRequest, service.body_limit)
    service.check_model(fields.model)
    size = service.info.hidden_size
    if fields.dimensions is not None and fields.dimensions != size:
        raise UnsupportedFeature("dimensions", f"vectors of this model have {size} dimensions and cannot be shortened")
    pooling: Pooling = fields.pooling or "mean"
    prompts = await off_loop(request, parse_prompts, fields.input, "input", service, SamplingParams(max_tokens=0))
    jobs = service.jobs(
        caller,
        [prompt.token_ids for prompt in prompts],
        SamplingParams(max_tokens=0),
        priority=fields.priority,
        cache_salt=fields.cache_salt,
        pooling=pooling,
    )
    work = service.collect(caller, new_id("embd-"), jobs)
    outputs = await while_connected(request.receive, work)
    tokens = sum(output.prompt_tokens for output in outputs)
    return JSONResponse(
        EmbeddingList(
            data=[
                Embedding(index=index, embedding=_encoded(output.embedding or [], fields.encoding_format))
                for index, output in enumerate(outputs)
            ],
            model=service.name,
            usage=EmbeddingUsage(prompt_tokens=tokens, total_tokens=tokens),
            pooling=pooling,
        )
    )


def _encoded(vector: Sequence[float], encoding: str | None) -> list[float] | str:
    if encoding == "base64":
        return base64.b64encode(np.asarray(vector, "<f4").tobytes()).decode("ascii")
    return list(vector)
