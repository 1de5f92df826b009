"""Which handler serves what: the one list of all endpoints."""

from __future__ import annotations

from radixserve.server.endpoints import Endpoint
from radixserve.server.native.routes import NATIVE
from radixserve.server.openai.routes import OPENAI
from radixserve.server.openapi import openapi_handler

_SERVED = (*OPENAI, *NATIVE)

ENDPOINTS: tuple[Endpoint, ...] = (
    *_SERVED,
    Endpoint("GET", "/openapi.json", openapi_handler(_SERVED), "This document.", "operations", answer=dict),
)
